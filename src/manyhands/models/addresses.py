"""Where a model is served: at one address, at several (replicas), or at those that a file lists, which may change while a run goes on.

A setting has them as one text, as a tuple of texts, or as ``@FILE``. The file has an address a line; empty lines do not count, nor what
stands behind ``#`` at the beginning of a line, or behind a space and ``#``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from manyhands.core.errors import UserError
from manyhands.core.redaction import protect
from manyhands.core.settings import Checked, shown
from manyhands.core.text import expand_home
from manyhands.runs.options import is_file_of_values

Addresses = str | tuple[str, ...]
MAX_ADDRESSES = 1000
MAX_BYTES = 1 << 20
"""Of a file."""
LOOK_SECONDS = 1.0
"""How often a file is looked at, and how old a change must be, so that no half of it is read."""
_BETWEEN = re.compile(r"[,\s]+")
_SECRET_PARAMETER = re.compile(r"key|token|secret|passw|sig(nature)?$|^code$", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s)#.*")


def read_addresses(value: Any) -> Addresses:
    """The value of a setting: one text for one address or ``@FILE``, a tuple for several. Raises ValueError."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ValueError("must be an address that starts with http:// or https://, or a list of some")
    if len(parts) == 1 and is_file_of_values(text := parts[0].strip()):
        if not text[1:].strip():
            raise ValueError("must name a file behind the @")
        return f"@{text[1:].strip()}"
    words = [word for part in parts for word in _BETWEEN.split(part.strip())]
    found = tuple(read_address(word) for word in words if word or len(words) == 1)
    if not 1 <= len(found) <= MAX_ADDRESSES:
        raise ValueError(f"must be 1 to {MAX_ADDRESSES:,} addresses")
    return found[0] if len(found) == 1 else found


def optional_addresses(value: Any) -> Addresses | None:
    """The like; None for nothing."""
    return None if value is None or (isinstance(value, str) and not value.strip()) else read_addresses(value)


OptionalAddresses = Annotated[Addresses | None, Checked(optional_addresses)]


def read_address(text: str) -> str:
    """One address. Raises ValueError."""
    text = text.strip()
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("must be an address that starts with http:// or https://" + _instead(text))
    if "@" in parts.netloc:
        raise ValueError("must not hold a name and password, which would be recorded; give a key with --api_key")
    if protected_keys(parts):
        raise ValueError("must not hold a key, which would be recorded; give it with --api_key or --header")
    return text


def protected_keys(address: SplitResult) -> bool:
    """Whether an address has keys in its query. They are protected from now on, since the line that refuses it shows what was given."""
    keys = [key for name, key in parse_qsl(address.query, keep_blank_values=True) if _SECRET_PARAMETER.search(name)]
    protect(keys)
    return bool(keys)


def _instead(text: str) -> str:
    return "; a file of addresses stands alone, as @FILE" if is_file_of_values(text) else ""


def addresses_of(base_url: Addresses) -> tuple[str, ...]:
    """The addresses that a setting means now. Raises UserError naming file and line."""
    if not is_file_of_values(base_url):
        return (base_url,) if isinstance(base_url, str) else base_url
    return AddressFile(base_url).read()


class AddressFile:
    """A file of addresses, which is looked at now and then. ``named``: as in the setting, ``@FILE``."""

    def __init__(self, named: str) -> None:
        self.path = expand_home(named[1:])
        self._seen: tuple[float, ...] = ()
        self._look_at = 0.0

    def read(self) -> tuple[str, ...]:
        """The addresses in it. Raises UserError naming file and line."""
        self._seen = self._state()
        try:
            with self.path.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
            lines = data.decode("utf-8-sig").splitlines()
        except OSError as error:
            raise UserError(f"--base_url: can't read {self.path}: {error.strerror or error}") from error
        except UnicodeDecodeError:
            raise UserError(f"--base_url: {self.path}: not UTF-8 text") from None
        found = [address for number, line in enumerate(lines, 1) for address in self._of_line(line, number)]
        if len(data) > MAX_BYTES or not 1 <= len(found) <= MAX_ADDRESSES:
            raise UserError(f"--base_url: {self.path}: must list 1 to {MAX_ADDRESSES:,} addresses, a line each")
        return tuple(found)

    def changed(self) -> tuple[str, ...] | None:
        """What is in it if that changed since it was last read; None if not, or if it was looked at just now. Raises UserError, once for
        each change, if what is in it can't be used."""
        now = time.monotonic()
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_SECONDS
        state = self._state()
        if state == self._seen or (state and abs(time.time() - state[0]) < LOOK_SECONDS):
            return None
        return self.read()

    def _state(self) -> tuple[float, ...]:
        """What changes with the file; nothing if it is not there."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_mtime, found.st_size, found.st_ino

    def _of_line(self, line: str, number: int) -> Sequence[str]:
        text = _COMMENT.sub("", line).strip()
        if not text:
            return ()
        try:
            return [read_address(word) for word in _BETWEEN.split(text) if word]
        except ValueError as error:
            raise UserError(f"--base_url: {self.path}:{number}: {error}, not {shown(text)}") from None


def paired(addresses: Sequence[str], keys: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    """Each address with its key: one key is for all, several are in the order of the addresses, or all for the only one. An empty text
    stands for no key. Raises ValueError."""
    if len(keys) <= 1:
        pairs = [(address, keys[0] if keys else "") for address in addresses]
    elif len(addresses) == 1:
        pairs = [(addresses[0], key) for key in keys]
    elif len(addresses) == len(keys):
        pairs = list(zip(addresses, keys, strict=True))
    else:
        raise ValueError(
            f"{len(keys)} keys for {len(addresses)} addresses: give one key, or one for each address in order"
        )
    return tuple(dict.fromkeys((address, key or None) for address, key in pairs))
