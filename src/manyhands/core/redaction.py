"""Keeping secrets out of everything that is recorded, written or shown.

There is one set of secrets for a process: what its environment names a key, a token or a password, and what is added to it
(``protect``). They are taken out where text comes in (an endpoint's answer, what a tool or a program printed), before any of it is cut;
and again where it goes out (the journal, output files, the terminal), so that what nobody thought of is caught there.

A secret is found as it is and with any of its characters escaped, as JSON (``\\u002d``, ``\\/``, to any depth), URLs (``%2D``), HTML
(``&#45;``, ``&amp;``) and programs (``\\x2d``, ``\\055``) write them. It is not found reversed, in base64, encrypted, or with something
else in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from string import ascii_letters, digits
from typing import overload
from urllib.parse import unquote, urlsplit

from manyhands.core.jsonio import Json, compact_line, dumps, line, loads

REDACTED = "[redacted]"
MIN_LENGTH = 8
"""Characters below which a value is no secret, or too common to be taken out of texts."""
_MIN_NUMBER = 16
"""Digits from which on a number is a secret: shorter ones are amounts and limits."""
_MIN_LINE = 16
"""Characters from which on a line of a secret is one by itself."""
_MIN_HALF = 6
"""Characters of a secret that are taken out of the end of a text that was cut there."""
_NAMES = re.compile(
    r"((API|ACCESS|SECRET|PRIVATE)_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN)S?$|^(API_?KEY|TOKEN)_", re.IGNORECASE
)
_NO_SECRETS = re.compile(r"_(FILE|PATH|DIR|NAME|URL|ID|TYPE)$", re.IGNORECASE)
_PROXIES = re.compile(r"(https?|all|ftp)_proxy|.*_URL", re.IGNORECASE)
_STAND_IN = re.compile(
    r"(?:sk|no|not|none|null|any|dummy|fake|empty|unused|local|localhost|ollama|lm|llm|vllm|studio|llama|cpp|server|openai|simulated"
    r"|trajectories|csv_jobs|completed|discarded|cancelled|assistant|messages|functions?|tool_calls|arguments|terminal|content"
    r"|metadata|password|postgres|administrator|database|default|development|production|staging|username"
    r"|model|your|my|the|api|key|keys|token|here|needed|required|anything|placeholder|change|changeme|me|[-_. ])+",
    re.IGNORECASE,
)
"""What people give where a key is requested and none is needed, and words that stand in every journal."""
_USER_INFO = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?:[^\s/@?#:]*:\S*|[^\s/@?#:]*)@")
_QUOTED = "/\"'\\"
"""What may also stand behind a backslash as it is."""
_RETURN = "\r"
_SHORT = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""Letters that stand behind a backslash for a control character, in JSON and in programs."""
_TOKENS = frozenset(f"{ascii_letters}{digits}-_")
"""What most secrets are made of. For any such secret, the escapes of all of these are looked for, so that the pattern is made once."""
_SLASHES = r"\\{0,31}+"
_ZEROS = "0{0,8}+"
"""Backslashes after the first (as many as JSON within JSON has, five deep) and zeros in front of a number: bounded, since a search would
otherwise take time that grows with the square of a run of them."""
_MAYBE = {"\\": r"\\[uUx0-7]", "%": r"%[0-9A-Fa-f]", "&": r"&[#A-Za-z]"}
"""What stands in every escape, but for those of quotation marks and slashes. Each pattern begins with one certain character, to which a
search skips ten times as fast as to one of several, and which most texts don't have."""
_TEXT_MAYBE = [(mark, re.compile(pattern)) for mark, pattern in _MAYBE.items()]
_ENCODED_MAYBE = [(mark.encode(), re.compile(pattern.encode())) for mark, pattern in _MAYBE.items()]


def is_secret(value: str) -> bool:
    """Whether a value is long enough, and not one of the words that stand in for a key where none is needed."""
    if len(value) < MIN_LENGTH or (value.isdigit() and len(value) < _MIN_NUMBER):
        return False
    return not _STAND_IN.fullmatch(value)


def _lines_of(text: str) -> list[str]:
    """The lines of a secret that has several, as a private key's file, which may be shown one by one; not those that every such file has,
    and none that is short."""
    lines = text.splitlines()
    if len(lines) < 2:
        return []
    return [line for line in lines if len(line) >= _MIN_LINE and not line.startswith("-----")]


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """The secrets of an environment: by their names (``…_API_KEY``, ``…_TOKEN``, ``…_PASSWORD`` …), and the passwords in its URLs."""
    found = [value for name, value in environ.items() if _NAMES.search(name) and not _NO_SECRETS.search(name)]
    found += [
        key for value in found if "," in value for key in map(str.strip, value.split(","))
    ]  # several keys in one variable
    urls = (value for name, value in environ.items() if "@" in value and _PROXIES.fullmatch(name))
    return [*found, *(password for url in urls for password in passwords_of(url))]


def passwords_of(url: str) -> list[str]:
    """The password in a URL, as it is written and as it is meant; none where there is none."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return []
    return [password, unquote(password)] if password else []


def without_user_info(text: str) -> str:
    """The text with the names and passwords taken out of its URLs. For messages about what a person typed, not for a model's texts."""
    return _USER_INFO.sub(rf"\1{REDACTED}@", text) if "://" in text and "@" in text else text


class _Secret:
    """One secret: what it looks like in texts, and in the bytes of JSON documents. Its patterns are made when they are first needed: that
    takes longer than most processes, and few texts hold an escape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.encoded = dumps(text)[1:-1]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self._spelled)

    @cached_property
    def encoded_pattern(self) -> re.Pattern[bytes]:
        return re.compile(self._spelled.encode())

    @cached_property
    def _spelled(self) -> str:
        return "".join(map(_spellings, re.findall(r"\\+|[^\\]", self.text)))


class Redactor:
    """Replaces secrets wherever they stand in texts and JSON values: its own, and those of ``always``."""

    def __init__(self, secrets: Iterable[str] = (), *, always: Redactor | None = None) -> None:
        self._always = always
        self._secrets: tuple[_Secret, ...] = ()
        self.add(secrets)

    @classmethod
    def of(cls, environ: Mapping[str, str], *more: str) -> Redactor:
        """For the secrets of an environment, which are known by their names, some more, and those of this process."""
        return cls([*secrets_of(environ), *more], always=KNOWN)

    def add(self, secrets: Iterable[str]) -> None:
        """Know more secrets from now on."""
        known = {secret.text for secret in self._secrets}
        each = dict.fromkeys(part for text in secrets for part in (text, *_lines_of(text)))
        new = [_Secret(text) for text in each if text not in known and is_secret(text)]
        if not new:
            return
        self._secrets = tuple(sorted((*self._secrets, *new), key=lambda secret: -len(secret.text)))
        characters = frozenset(character for secret in self._secrets for character in secret.text)
        self._characters = _TOKENS if characters <= _TOKENS else characters
        self._quoted = not self._characters.isdisjoint((*_QUOTED, *_SHORT))

    def __bool__(self) -> bool:
        """Whether there is any secret."""
        return bool(self._all())

    def text(self, text: str) -> str:
        """The text without secrets."""
        for redactor in self._chain():
            escaped = redactor._has_escape(text)
            for secret in redactor._secrets:
                if escaped or secret.text in text:
                    text = secret.pattern.sub(REDACTED, text)
        return text

    def data(self, data: bytes) -> bytes:
        """The like for the bytes of a text, in whichever encoding."""
        return self._replaced(data, REDACTED.encode())

    def masked(self, data: bytes) -> bytes:
        """The like for bytes (of JSON) whose length must stay: secrets become asterisks."""
        return self._replaced(data, _asterisks)

    def json(self, value: Json) -> Json:
        """A JSON value with the secrets taken out of all its texts, also of names."""
        if not self._all() or not self.is_in(data := dumps(value)):
            return value
        try:
            return self._walked(value)
        except RecursionError:
            return loads(self.data(data))

    @overload
    def document(self, text: str) -> str: ...

    @overload
    def document(self, text: str | bytes) -> str | bytes: ...

    def document(self, text: str | bytes) -> str | bytes:
        """A JSON document (or line) as text or in UTF-8, decoded to find secrets, and written again only if it holds one."""
        if not self._all() or not self.is_in(text if isinstance(text, bytes) else text.encode("utf-8", "replace")):
            return text
        return self._document(text.decode()).encode() if isinstance(text, bytes) else self._document(text)

    def _document(self, text: str) -> str:
        try:
            value = loads(text)
        except (ValueError, RecursionError):
            return self.text(text)
        as_compact = compact_line(value).decode()[:-1] == text
        return compact_line(self.json(value)).decode()[:-1] if as_compact else line(self.json(value))

    def is_in(self, document: bytes) -> bool:
        """Whether there may be a secret in a JSON document."""
        for redactor in self._chain():
            if any(secret.encoded in document for secret in redactor._secrets):
                return True
            if redactor._has_encoded_escape(document) and any(
                secret.encoded_pattern.search(document) is not None for secret in redactor._secrets
            ):
                return True
        return False

    def cut(self, data: bytes, *, start: bool = False, end: bool = False) -> bytes:
        """Bytes that were cut already at their start or end, where half a secret may have stayed: it is blanked, without changing the
        length."""
        for secret in self._all():
            for size in range(min(len(secret.encoded) - 1, len(data)), _MIN_HALF - 1, -1):
                if end and data.endswith(secret.encoded[:size]):
                    data = data[:-size] + b"*" * size
                if start and data.startswith(secret.encoded[-size:]):
                    data = b"*" * size + data[size:]
        return data

    def _all(self) -> tuple[_Secret, ...]:
        return self._secrets if self._always is None else (*self._always._all(), *self._secrets)

    def _chain(self) -> tuple[Redactor, ...]:
        """Those that have secrets, of it and what it has always."""
        always = () if self._always is None else self._always._chain()
        return (*always, self) if self._secrets else always

    def _has_escape(self, text: str) -> bool:
        """Whether a character of a secret may be escaped in it. The first look is the quick one."""
        quick = self._quoted or any(mark in text and each.search(text) for mark, each in _TEXT_MAYBE)
        return quick and any(each.search(text) for each in _escapes_of(self._characters)[0])

    def _has_encoded_escape(self, data: bytes) -> bool:
        quick = self._quoted or any(mark in data and each.search(data) for mark, each in _ENCODED_MAYBE)
        return quick and any(each.search(data) for each in _escapes_of(self._characters)[1])

    def _replaced(self, data: bytes, by: bytes | Callable[[re.Match[bytes]], bytes]) -> bytes:
        for redactor in self._chain():
            escaped = redactor._has_encoded_escape(data)
            for secret in redactor._secrets:
                if escaped or secret.encoded in data or secret.text.encode("utf-8", "replace") in data:
                    data = secret.encoded_pattern.sub(by, data)
        return data

    def _walked(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self._walked(part) for part in value]
        if isinstance(value, dict):
            return {
                self.text(name) if isinstance(name, str) else name: self._walked(part) for name, part in value.items()
            }
        return value


KNOWN = Redactor()
"""The redactor of this process: what it knows, everything that is recorded, written or shown goes through."""


def protect(secrets: Iterable[str]) -> None:
    """Take these out of everything from now on."""
    KNOWN.add(secrets)


def protect_environment(environ: Mapping[str, str]) -> None:
    """The like for the secrets of an environment."""
    KNOWN.add(secrets_of(environ))


def _asterisks(found: re.Match[bytes]) -> bytes:
    """As many as there are bytes. Where the first one ends an escape of JSON (``\\n``), it stays, so that the document remains one."""
    before = found.string[max(0, found.start() - 64) : found.start()]
    ends_escape = (len(before) - len(before.rstrip(b"\\"))) % 2 and found[0][:1] in b"bfnrt"
    return found[0][:1] + b"*" * (len(found[0]) - 1) if ends_escape else b"*" * len(found[0])


@lru_cache(maxsize=64)
def _escapes_of(characters: frozenset[str]) -> tuple[list[re.Pattern[str]], list[re.Pattern[bytes]]]:
    escapes = _spelled_escapes(characters)
    return [re.compile(each) for each in escapes], [re.compile(each.encode()) for each in escapes]


def _spelled_escapes(characters: frozenset[str]) -> list[str]:
    """Patterns for the beginning of any escape of any of these characters, each of which begins with one certain character, as in
    ``_MAYBE``. They may find more than that."""
    if not characters or not all(character.isascii() for character in characters):
        return [r"\\[uUx0-7\\/\"'bfnrt]", r"\r\n", r"%[0-9A-Fa-f]", r"&[#A-Za-z]"]
    codes = sorted(map(ord, characters))
    wide = "|".join(_hex(code, 2) for code in codes)
    octal, decimal = "|".join(f"{code:o}" for code in codes), "|".join(map(str, codes))
    names = _html_names(characters)
    quoted = "".join(re.escape(character) for character in _QUOTED if character in characters)
    quoted += "".join(letter for character, letter in _SHORT.items() if character in characters)
    program = rf"\\{_SLASHES}(?=[uUx0-7{quoted}])(?:[uU]\{{?{_ZEROS}(?:{wide})|x(?:{wide})|{_ZEROS}(?:{octal})" + (
        f"|[{quoted}])" if quoted else ")"
    )
    if "\\" in characters:
        program = r"\\"
    html = "|".join((f"#{_ZEROS}(?:{decimal})", f"#[xX]{_ZEROS}(?:{wide})", *names))
    return [program, *([r"\r\n"] if "\n" in characters else []), f"%(?:{wide})", f"&(?:{html})"]


def _spellings(part: str) -> str:
    """A pattern for one character of a secret, or for a run of backslashes, however it is escaped. Each alternative begins with one
    certain character, so that a search can skip all that begins with another."""
    character = part[0]
    code = ord(character)
    escaped = [*_as_program(code), _as_url(character), rf"&#{_ZEROS}{code};?", f"&#[xX]{_ZEROS}{_hex(code)};?"]
    escaped += [f"&{name}" for name in _html_names((character,))]
    if character == "\\":
        return rf"(?:\\{{{len(part)},{32 * len(part)}}}|(?:{'|'.join(escaped)}){{{len(part)}}})"
    if character in _QUOTED:
        escaped.append(rf"\\{_SLASHES}{re.escape(character)}")
    if character in _SHORT:
        escaped.append(rf"\\{_SLASHES}{_SHORT[character]}")
    if character == "\n":  # files with line ends of Windows have one more before it
        return rf"{_spellings(_RETURN)}?(?:{'|'.join([re.escape(character), *escaped])})"
    return f"(?:{'|'.join([re.escape(character), *escaped])})"


def _html_names(characters: Collection[str]) -> list[str]:
    """Patterns of the names that HTML has for these characters."""
    from html.entities import html5  # a large table, and many processes know no secret

    return [re.escape(name) for name, text in html5.items() if text in characters]


def _as_program(code: int) -> list[str]:
    found = [rf"\\{_SLASHES}u\{{{_ZEROS}{_hex(code)}\}}", rf"\\{_SLASHES}U{_ZEROS}{_hex(code)}"]
    units = chr(code).encode("utf-16-be", "surrogatepass")
    found.append(
        "".join(rf"\\{_SLASHES}u{_hex(int.from_bytes(units[at : at + 2]), 4)}" for at in range(0, len(units), 2))
    )
    if code < 256:
        found += [rf"\\{_SLASHES}x{_hex(code, 2)}", rf"\\{_SLASHES}{_ZEROS}{code:o}"]
    return found


def _as_url(character: str) -> str:
    return "".join(f"%{_hex(byte, 2)}" for byte in character.encode("utf-8", "surrogatepass"))


def _hex(code: int, digits: int = 1) -> str:
    """A number in hexadecimal digits of either case."""
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in f"{code:0{digits}x}")


def describe(error: BaseException) -> str:
    """An unexpected exception in one line: its type, its message, and where in the code it was raised."""
    location = ""
    trace = (
        None if isinstance(error, SyntaxError) else error.__traceback__
    )  # a SyntaxError's message names its own location
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith("<frozen "):  # Python's own importing
            location = f" (in {code.co_name}, {Path(code.co_filename).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {' '.join(KNOWN.text(str(error)).split())}"[:500] + location
