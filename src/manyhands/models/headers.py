"""A person's own HTTP headers: as they are typed, as they are recorded, and as they reach the processes that send them.

Their values may be keys. So they are recorded by name only, unless a value is made of ``${NAME}``, variables of the environment, which are
looked up anew whenever a run is continued.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.redaction import protect

MAX_HEADERS = 32
MAX_LENGTH = 8192
"""Characters of a header's value."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
"""A token of RFC 9110, section 5.6.2."""
_OURS = frozenset(
    ("host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "accept-encoding")
)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TELLING = re.compile(r"key|token|secret|passw|auth|credential|cookie|session|signature", re.IGNORECASE)
"""Names of headers whose values are secrets."""
_OPAQUE = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])\S{20,}")
"""Values that are no words."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header. Its value is in no message about what holds it."""

    name: str
    value: str = field(repr=False)

    @property
    def is_secret(self) -> bool:
        """Whether its name, or the look of its value, says so."""
        return bool(_TELLING.search(self.name) or _OPAQUE.search(self.value))

    @property
    def is_reference(self) -> bool:
        """Whether its value is made of variables alone, apart from a scheme."""
        rest = _REFERENCE.sub("", self.value).strip()
        return rest != self.value and rest in ("", "Bearer", "Basic")

    @property
    def recorded(self) -> str:
        """As a run may keep it: its name, and its value only if that is made of variables."""
        return f"{self.name}: {self.value}" if self.is_reference else self.name

    def resolved(self, environ: Mapping[str, str]) -> Header:
        """With the values of variables. Raises UserError for one that is not set."""

        def found(reference: re.Match[str]) -> str:
            if not environ.get(reference[1]):
                raise UserError(f"--header {self.name}: the environment variable {reference[1]} is not set")
            return environ[reference[1]]

        try:
            return _checked(self.name, _REFERENCE.sub(found, self.value))
        except ValueError as error:
            raise UserError(f"--header {error}") from None


def read_headers(value: Any) -> tuple[Header, ...] | None:
    """Headers as they are given: ``Name: value``, several such, or a mapping. Raises ValueError, naming none of the values."""
    if value in (None, "", [""]):
        return None
    if isinstance(value, Mapping):
        value = [f"{name}: {each}" for name, each in value.items()]
    given = [value] if isinstance(value, (str, Header)) else value
    if not isinstance(given, (list, tuple)):
        raise ValueError("must be 'Name: value', or a list of such")
    if len(given) > MAX_HEADERS:
        raise ValueError(f"may be given {MAX_HEADERS} times")
    found = {header.name.lower(): header for header in map(_read, given)}
    return tuple(found.values()) or None


def _read(text: Any) -> Header:
    if isinstance(text, Header):
        return text
    name, colon, value = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon:
        raise ValueError("must be 'Name: value'")
    return _checked(name.strip(), value.strip())


def _checked(name: str, value: str) -> Header:
    """Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError("must begin with the name of a header, as 'X-Team: mine'")
    if name.lower() in _OURS:
        raise ValueError(f"can't set {name}, which belongs to the connection")
    if not value or len(value) > MAX_LENGTH or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{name} must have a value of printable ASCII characters, {MAX_LENGTH:,} at most")
    return Header(name, value)


def secrets_in(headers: Mapping[str, str]) -> Iterator[str]:
    """The values that are secrets, and what stands behind a scheme (``Bearer``) in them."""
    for name, value in headers.items():
        header = Header(name, value)
        if header.is_secret and not header.is_reference:
            yield value
            yield value.rpartition(" ")[2]


def usable_headers(
    given: Iterable[Header] | None, recorded: Iterable[str] | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """The headers to send, by name: those given, else those that the run was made with. Raises UserError for a variable that is not set,
    and for a recorded header whose value has to be given again."""
    if given is None:
        lacking = [name for name in recorded or () if ":" not in name]
        if lacking:
            again = " ".join(f"--header='{name}: …'" for name in lacking)
            raise UserError(f"values of headers are not recorded: give them again, {again}")
        given = read_headers(list(recorded or ())) or ()
    headers = {header.name: header.value for header in (each.resolved(environ) for each in given)}
    protect(secrets_in(headers))
    return headers


def as_secrets(headers: Mapping[str, str], key: str) -> dict[str, str]:
    """Headers among a workload's secrets, as one: a value that is a mere word must not be taken out of all texts. ``key``: the name of the
    secret that holds the key of the same endpoint."""
    return {f"{key} headers": json.dumps(headers)} if headers else {}


def headers_among(secrets: Mapping[str, str], key: str) -> dict[str, str]:
    """The reverse of ``as_secrets``."""
    headers: dict[str, str] = json.loads(secrets.get(f"{key} headers", "{}"))
    return headers
