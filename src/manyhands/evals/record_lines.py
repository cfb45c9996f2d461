"""Records among the bytes of a JSON Lines file: where each one is, and which lines are none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from manyhands.core.jsonio import Json, TooDeep, canonical, loads
from manyhands.core.redaction import KNOWN
from manyhands.evals.records import RecordFault, record_id

MAX_RECORD = 64 << 20
"""Longest line, in bytes."""
DEEPEST = 200
"""Arrays and objects within each other; what is deeper can't be written down again by every JSON library."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ID = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)')
_LARGE_EXPONENT = re.compile(rb"[eE]\+?[0-9]{3}")
_NO_FIGURE = re.compile(rb'("(?:cost_usd|duration_ms)"\s*:\s*)(?:NaN|-?Infinity)')
_MANY_DIGITS = b"0" * 300
_DIGITS = bytes(ord("0") if code in b"0123456789" else code for code in range(256))
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


class Found(NamedTuple):
    """A record: its test, where its line is in the file (bytes), and hashes of what it says and of its bytes, good for this process."""

    id: str
    offset: int
    length: int
    line: int
    meaning: int
    written: int


class BadLine(NamedTuple):
    """A line that holds no record. ``id``: the test that it seems to be about, if that can be seen; ``cut``: it is the last one, and
    has no end."""

    line: int
    problem: str
    id: str | None = None
    cut: bool = False


Event = Found | BadLine


class NoRecord(ValueError):
    """A line is no record; the message says why."""


class LineScanner:
    """Finds records in bytes that are handed to it piece by piece. Holds at most one line."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._start = 0
        self._line = 0
        self._overlong = False

    @property
    def offset(self) -> int:
        """Of the next byte to be handed in."""
        return self._start + len(self._rest)

    def feed(self, data: bytes) -> list[Event]:
        """What the lines hold that end in this piece."""
        if b"\n" not in data:
            self._keep(data)
            return []
        lines = (bytes(self._rest) + data).split(b"\n")
        rest = lines.pop()
        found = [event for line in lines if (event := self._read(line)) is not None]
        self._rest.clear()
        self._keep(rest)
        return found

    def finish(self) -> list[Event]:
        """The last line, if it has no end."""
        line = bytes(self._rest)
        self._rest.clear()
        event = self._read(line)
        if isinstance(event, BadLine):
            event = event._replace(cut=True)
        return [] if event is None else [event]

    def _keep(self, data: bytes) -> None:
        self._rest += data
        if len(self._rest) > MAX_RECORD:
            self._overlong = True
            self._start += len(self._rest)
            self._rest.clear()

    def _read(self, line: bytes) -> Event | None:
        """What a line holds, None if it is blank."""
        offset, overlong = self._start, self._overlong
        self._start += len(line) + 1
        self._line += 1
        self._overlong = False
        if overlong or len(line) > MAX_RECORD:
            return BadLine(self._line, f"is longer than {MAX_RECORD >> 20} MiB")
        if not line or line.isspace() or line.strip() == BYTE_ORDER_MARK:
            return None
        line = KNOWN.masked(line)
        try:
            record = parse_line(line)
            return Found(record_id(record), offset, len(line), self._line, meaning_of(record), hash(line))
        except (NoRecord, RecordFault) as error:
            return BadLine(self._line, str(error), _likely_id(line))


def parse_line(line: bytes) -> dict[str, Json]:
    """The object in a line; a byte order mark before it does no harm. Raises NoRecord."""
    text = line.strip()
    if text.startswith(BYTE_ORDER_MARK):
        text = text.removeprefix(BYTE_ORDER_MARK).lstrip()
    try:
        text = _with_plain_figures(text)
        value = loads(text)
        if _LARGE_EXPONENT.search(text) or _has_many_digits(text):  # perhaps too large for a float
            json.loads(text, parse_float=_finite)
    except UnicodeDecodeError:
        raise NoRecord("is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise NoRecord(f"is not JSON (at column {error.colno}: {error.msg})") from None
    except (TooDeep, RecursionError):
        raise NoRecord("is nested too deeply") from None
    except ValueError as error:
        raise NoRecord(f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise NoRecord("is not an object")
    if too_deep(text):
        raise NoRecord("is nested too deeply")
    return value


def parse_known_line(line: bytes) -> dict[str, Json]:
    """The object in a line that ``parse_line`` has found good before."""
    value: dict[str, Json] = loads(_with_plain_figures(line.strip().removeprefix(BYTE_ORDER_MARK).lstrip()))
    return value


def _with_plain_figures(text: bytes) -> bytes:
    """A line in which cost and duration are no NaN and the like, which several languages write: an answer is worth more than these."""
    return _NO_FIGURE.sub(rb"\1null", text) if b"NaN" in text or b"Infinity" in text else text


def meaning_of(record: Mapping[str, Json]) -> int:
    """Equal for records that say the same, however they are written."""
    return hash(canonical(record))


def too_deep(text: bytes) -> bool:
    """Whether a JSON text is nested deeper than anything of use."""
    if len(text) <= DEEPEST or text.count(b"{") + text.count(b"[") <= DEEPEST:
        return False
    depth = deepest = 0
    for found in _NESTING.finditer(text):
        if found[0] in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in b"]}":
            depth -= 1
    return deepest > DEEPEST


def _has_many_digits(text: bytes) -> bool:
    return len(text) >= len(_MANY_DIGITS) and _MANY_DIGITS in text.translate(_DIGITS)


def _likely_id(line: bytes) -> str | None:
    found = _ID.search(line)
    if found is None:
        return None
    try:
        value = loads(found[1])
    except ValueError:
        return None
    return str(value)


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError("a number is too large")
    return number
