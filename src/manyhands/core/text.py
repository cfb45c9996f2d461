"""Texts for people and models: safe for a terminal, cut to a length, with numbers in sentences, and with the known name that is most like
a misspelled one.

What a model, a file or a server said is shown, and never obeyed. Names are compared in time that no name can stretch: difflib takes
quadratic time and worse, so texts are cut before they are compared, and only a few are.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from heapq import nlargest
from pathlib import Path

from manyhands.core.jsonio import Json, without_surrogates
from manyhands.core.redaction import KNOWN

WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What texts in UTF-16 begin with where they are marked."""
MAX_COMPARED_LENGTH = 120
"""Characters of a text that are compared."""
_MAX_NAMES = 5000
_MAX_COMPARED = 10
"""Texts that are compared in full: those that have most characters in common with the one that was given."""

_ID = re.compile(r"(?<![\w-])(?=[\w-]*[0-9])[\w-]{12,}|\b(?=[a-f]*[0-9])[0-9a-f]{6,}\b|\b0x[0-9a-f]+", re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]+")
JOINED = "\u0600-\u109f\u1780-\u18af\u2190-\u2bff\ufb50-\ufdff\ufe0f\ufe70-\ufefc\U0001f000-\U0001faff"
"""Characters (Arabic, of India and its neighbours, pictures) between which a joiner or non-joiner is spelling, and is seen."""
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters of both sets, but for line ends and tabs
    # direction, and what has no width
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
    "\ud800-\udfff]"  # halves of characters, which no encoding has
    f"|(?<![{JOINED}])[\u200c\u200d]|[\u200c\u200d](?![{JOINED}])"
)
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Terminal escape sequences: CSI, OSC and the two-character ones (ECMA-48, section 5.3 and 5.4)."""


def shape(text: str) -> str:
    """What stays the same in a message from one time to the next: the text with ``#`` for each id (long, or hexadecimal, with digits) and
    each number."""
    return _DIGITS.sub("#", _ID.sub("#", text))


def closest(name: str, names: Iterable[str], n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Up to ``n`` of the names whose likeness (difflib's ratio, 0 to 1) is at least ``cutoff``, the most alike first.

    As ``difflib.get_close_matches``, for names of up to 120 characters. Longer ones are compared by their first 120.
    """
    matcher = SequenceMatcher(None, b=name[:MAX_COMPARED_LENGTH])
    rough: list[tuple[float, str]] = []
    for _, each in zip(range(_MAX_NAMES), names, strict=False):
        matcher.set_seq1(each[:MAX_COMPARED_LENGTH])
        if matcher.real_quick_ratio() >= cutoff and (bound := matcher.quick_ratio()) >= cutoff:
            rough.append((bound, each))
    scored: list[tuple[float, str]] = []
    for _, each in nlargest(_MAX_COMPARED, rough):
        matcher.set_seq1(each[:MAX_COMPARED_LENGTH])
        if (ratio := matcher.ratio()) >= cutoff:
            scored.append((ratio, each))
    return [each for _, each in nlargest(n, scored)]


def printable(text: str) -> str:
    """The text without what a terminal would obey, or a person would not see: such characters are spelled out."""
    return _UNSAFE.sub(lambda found: _spelled(ord(found[0])), text)


def shell_quoted(text: str) -> str:
    """A text as a word of a command line to be read, copied and pasted. Unlike ``shlex.quote``, it leaves in no character that a terminal
    would take for a key, or that a person would not see: these become escapes within ``$'…'``, which bash, zsh and ksh know."""
    if _UNSAFE.search(text) is None and "\n" not in text and "\t" not in text:
        return shlex.quote(text)
    escaped = _UNSAFE.sub(lambda found: _bytes_spelled(found[0]), text.replace("\\", "\\\\").replace("'", "\\'"))
    return "$'" + escaped.replace("\n", "\\n").replace("\t", "\\t") + "'"


def shell_joined(words: Iterable[str]) -> str:
    """A command line of such words."""
    return " ".join(map(shell_quoted, words))


def cut(text: str, max_length: int) -> str:
    """A text of at most ``max_length`` characters; the last one of a longer text becomes an ellipsis."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def one_line(text: str, max_length: int = 300) -> str:
    """The like on one line, cut to ``max_length`` characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= max_length else f"{line[:max_length]}…"


def json_text(value: Json, *, indent: int | None = None) -> str:
    """JSON for standard output: what ``printable`` spells out is escaped as JSON has it, so that programs read the same value."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: _escaped(found[0]), text)


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _bytes_spelled(character: str) -> str:
    """The bytes of a character in a file's name: half a character may stand for one byte (``os.fsdecode``)."""
    is_byte = "\udc80" <= character <= "\udcff"
    data = character.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def counted(count: int, noun: str) -> str:
    """A number with its noun, whose plural ends in s: ``1 test``, ``1,000 tests``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def are(count: int) -> str:
    """``is`` for one thing, else ``are``."""
    return "is" if count == 1 else "are"


def have(count: int) -> str:
    """``has`` for one thing, else ``have``."""
    return "has" if count == 1 else "have"


def clean(text: str) -> str:
    """The text without what JSON stores and endpoints choke on: lone surrogates and NUL characters become U+FFFD."""
    text = without_surrogates(text)
    return text.replace("\x00", "\ufffd") if "\x00" in text else text


def decode(data: bytes) -> str:
    """What a program printed, as text: bytes that are not UTF-8 become U+FFFD, terminal escape sequences and secrets go."""
    return KNOWN.text(_ESCAPES.sub("", data.decode("utf-8", "replace")).replace("\x00", "\ufffd"))


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters: head and tail, and between them a note of how many were left out. No half of a secret stays."""
    if len(text) <= limit:
        return text
    text = KNOWN.text(text)
    if len(text) <= limit:
        return text
    note = f"\n[… {len(text) - limit} characters left out …]\n"
    capacity = limit - len(note) - 2
    if capacity <= 0:
        return text[: max(0, limit)]
    head = (capacity + 1) // 2
    tail = capacity - head
    note = f"\n[… {len(text) - head - tail} characters left out …]\n"
    return text[:head] + note + text[len(text) - tail :]


def beginning_and_end(text: str, limit: int) -> str:
    """A text on one line: if it is longer than ``limit`` characters, two thirds of them from its beginning and one from its end."""
    text = without_surrogates(" ".join(text.split()))
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 3]} … {text[-tail:]}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name most like the given one, or None if none is much like it."""
    found = closest(name, names, cutoff=0.5)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str], spell: Callable[[str], str] = str) -> str:
    """``; did you mean X?`` if a known name is near, otherwise nothing. ``spell`` writes the name as it is to be typed."""
    near = closest(name, known)
    return f"; did you mean {spell(near[0])}?" if near else ""


def expand_home(path: str | Path) -> Path:
    """A path with its leading ``~`` or ``~user`` replaced by that home directory. As in a shell, it stays if there is no such user."""
    return Path(os.path.expanduser(path))


def wide_encoding(head: bytes, *, marked: bool = False) -> str | None:
    """The codec of a text that begins with these bytes, if it is UTF-16: by its mark, or (unless only ``marked`` texts count) by the zero
    that one of the first two characters' bytes is in all that JSON begins with (RFC 4627, section 3). None for everything else, and for
    less than two bytes."""
    if head.startswith(WIDE_MARKS):
        return "utf-16"
    if marked or len(head) < 2 or (head[0] == 0) == (head[1] == 0):
        return None
    return "utf-16-be" if head[0] == 0 else "utf-16-le"
