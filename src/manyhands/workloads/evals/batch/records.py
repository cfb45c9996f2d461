"""Records among the bytes of a JSON Lines file: where each one is, which lines are none, and which record is whose."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Generic, NamedTuple, TypeVar

from manyhands.core.jsonio import Json, TooDeep, canonical, loads, too_deep
from manyhands.core.redaction import KNOWN
from manyhands.core.text import nearest
from manyhands.workloads.evals.targets.answer_figures import NUMBERS, RecordFault
from manyhands.workloads.evals.targets.answers import MAX_ID_LENGTH, record_id, shown

MAX_RECORD = 64 << 20
"""Bytes of a record's line."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_NAMED = 50
"""Lines and ids that notices name; the others are counted."""
MAX_HINTS = 20
"""Ids for which a similar one is looked for, on either side."""
_MAX_COMPARED = 1000
"""Ids that one id is compared with."""
_ID = re.compile(rb'"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)')
_LARGE_EXPONENT = re.compile(rb"[eE]\+?[0-9]{3}")
_NO_FIGURE = re.compile(rb'("(?:%s)"\s*:\s*)(?:NaN|-?Infinity)' % "|".join(NUMBERS).encode())
_MANY_DIGITS = b"0" * 300
_DIGITS = bytes(ord("0") if code in b"0123456789" else code for code in range(256))


class Found(NamedTuple):
    """A record in a file."""

    id: str
    """Its test."""
    offset: int
    """Where its line begins, in bytes."""
    length: int
    """Of the line, in bytes."""
    line: int
    """The line's number, from 1."""
    meaning: int
    """A hash of what the record says, good for this process."""


class BadLine(NamedTuple):
    """A line that holds no record."""

    line: int
    """The line's number, from 1."""
    problem: str
    """Why it holds none."""
    id: str | None = None
    """The test that it seems to be about, if that can be seen."""
    cut: bool = False
    """Whether it is the last line, and has no end."""


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
            return Found(record_id(record), offset, len(line), self._line, meaning_of(record))
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


def _with_plain_figures(text: bytes) -> bytes:
    """A line in which cost and duration are no NaN and the like, which several languages write: an answer is worth more than these."""
    return _NO_FIGURE.sub(rb"\1null", text) if b"NaN" in text or b"Infinity" in text else text


def meaning_of(record: Mapping[str, Json]) -> int:
    """Equal for records that say the same, however they are written."""
    return hash(canonical(record))


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


Kind = TypeVar("Kind")


@dataclass(slots=True)
class _Named(Generic[Kind]):
    """The first few of many, which notices name, and how many there were."""

    named: list[Kind] = field(default_factory=list)
    count: int = 0

    def add(self, thing: Kind) -> None:
        self.count += 1
        if self.count <= MAX_NAMED:
            self.named.append(thing)

    def others(self, what: str) -> Iterator[str]:
        if self.count > MAX_NAMED:
            yield f"… and {self.count - MAX_NAMED} more {what}"


class RecordIndex:
    """The records of one output, by the ids of their tests."""

    def __init__(self, tests: Sequence[str], requested: Iterable[str], known: Collection[str]) -> None:
        """``tests``: the ids of all tests of the command; ``requested``: those that this output is to answer; ``known``: ids whose records
        are no surprise, with those of ``tests``."""
        self._tests = tests
        self._known = known
        self._requested = dict.fromkeys(requested)
        self._used: dict[str, int] = {}
        """The meanings of the records that were used."""
        self.forget()

    def forget(self) -> None:
        """The file is another one now: what was found is void. Which records were used is remembered."""
        self._entries: dict[str, Found] = {}
        self.records = 0
        self.conflicts: dict[str, tuple[int, int]] = {}
        """The lines of the first two different records of a test."""
        self.broken: dict[str, BadLine] = {}
        self.retracted: dict[str, str] = {}
        """Why a record that may have been used does not count any more."""
        self.bad = _Named[BadLine]()
        self._unknown = _Named[Found]()
        self._repeated = _Named[Found]()

    def requests(self, test_id: str) -> bool:
        """Whether this output is to answer that test."""
        return test_id in self._requested

    def entry(self, test_id: str) -> Found | None:
        """A test's record; None if there is none yet."""
        return self._entries.get(test_id)

    def answers(self, test_id: str) -> bool:
        """Whether there is one record for a test."""
        return test_id in self._entries and test_id not in self.conflicts

    def use(self, test_id: str) -> None:
        """Note that a test's record is an answer now: should it change, the answer is retracted."""
        self._used[test_id] = self._entries[test_id].meaning

    def add(self, event: Event) -> str | None:
        """Take note of a line; the test that can be answered now, if any."""
        if isinstance(event, BadLine):
            self._add_bad(event)
            return None
        self.records += 1
        test_id = event.id
        if test_id in self._entries:
            self._add_again(event)
        elif test_id in self._requested:
            self._entries[test_id] = event
            if self._used.get(test_id, event.meaning) != event.meaning:
                self.retracted[test_id] = "the output was written anew, with another record for it"
            return test_id
        elif test_id not in self._known:
            self._unknown.add(event._replace(id=test_id[: 4 * MAX_ID_LENGTH]))
        return None

    def finish(self) -> None:
        """Nothing more comes: what was used and is not there any more is retracted."""
        for test_id in self._used:
            if test_id not in self._entries:
                self.retracted[test_id] = "the output was written anew, without its record"

    def hints(self) -> dict[str, str]:
        """For tests without a record an unknown id that is much like theirs, where there is one."""
        strangers = [found.id for found in self._unknown.named]
        tests = islice(self._missing(), MAX_HINTS if strangers else 0)
        found = {test_id: nearest(test_id, strangers) for test_id in tests}
        return {test_id: name for test_id, name in found.items() if name is not None}

    def notices(self, unit: str, *, complete: bool) -> Iterator[str]:
        """What a person should know of the output, a line each. ``unit``: what is counted; ``complete``: the command was not cut off, so
        that an end in the middle of a line is worth a word."""
        for bad in self.bad.named:
            if complete or not bad.cut:
                yield f"{unit} {bad.line} {bad.problem}"
        yield from self.bad.others(f"{unit}s without a record")
        candidates = list(islice(self._missing(), _MAX_COMPARED)) or self._tests[:_MAX_COMPARED]
        for index, found in enumerate(self._unknown.named):
            near = nearest(found.id, candidates) if index < MAX_HINTS else None
            hint = "" if near is None else f" (did you mean {shown(near)}?)"
            yield f"unknown id {shown(found.id)} in {unit} {found.line}{hint}"
        yield from self._unknown.others("records with an unknown id")
        for found in self._repeated.named:
            yield f"id {shown(found.id)} twice, identical records (again in {unit} {found.line})"
        yield from self._repeated.others("identical records that came twice")
        for test_id, (first, second) in islice(self.conflicts.items(), MAX_NAMED):
            yield f"id {shown(test_id)} twice, different records ({unit}s {first} and {second})"

    def _missing(self) -> Iterator[str]:
        """The requested tests without a record, in order."""
        return (test_id for test_id in self._requested if test_id not in self._entries)

    def _add_bad(self, bad: BadLine) -> None:
        self.bad.add(bad)
        if bad.id is not None and bad.id in self._requested:
            self.broken.setdefault(bad.id, bad)

    def _add_again(self, found: Found) -> None:
        first = self._entries[found.id]
        if first.meaning == found.meaning:
            self._repeated.add(found)
            return
        self.conflicts.setdefault(found.id, (first.line, found.line))
        self.retracted[found.id] = "there are two different records for it"
