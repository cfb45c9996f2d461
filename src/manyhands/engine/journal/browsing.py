"""Reading a journal piece by piece, for whoever looks at a run while it goes on: pages of items and steps, large values in parts.

Nothing here reads a whole item or a whole run, every query can be given a time limit, and the journal is never written.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from manyhands.core.errors import RunError, StorageError
from manyhands.core.jsonio import Json, line
from manyhands.core.outcomes import ItemState
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.database import connect, queries, storage_errors
from manyhands.engine.journal.reader import JOURNAL, EarlierOutcome, JournalReader, RecordedSession, read_step
from manyhands.engine.journal.records import DamagedBlob, unpack, unpack_within

MAX_QUERY_SECONDS = 1.0
"""That one query may take, where queries are limited."""
_INSTRUCTIONS = 2000
"""Of SQLite's virtual machine, between two looks at the time."""
_PART = 1 << 16
"""Bytes of a value that are given at once."""
_READ = 1 << 22
"""Bytes of a value, as it is stored, that are read at once: no read lasts while somebody takes in what it found."""
MAX_ROW_BYTES, MAX_ROWS_BYTES = 32 << 20, 64 << 20
"""Bytes of JSON that an item may hold to be shown, and all items of a page. A few bytes in the file may be very many."""
MAX_CAUSES = 50
"""Causes of failures that are told apart."""
_ELEMENT = 16
"""Bytes that each list, object and comma counts for besides: two bytes of JSON may be an object that takes 64 in memory."""
_MAX_USAGE = 1 << 10
"""Bytes of a step's usage, as it is stored: it is never so long that it is compressed."""
_MAX_PAYLOAD = 1 << 18
"""Bytes of JSON of a damaged row's payload."""
_PAYLOAD, _RECORD = 2, 10
"""Where they are in a row of items."""
_PAGE = 100
"""Rows that are read at once where all are gone through."""
_LAST_SECOND = 253402300799.0
"""Of the year 9999."""
_REPLACED = 6
"""Where the record is in a row of what items had come to before."""
Value = Literal["request", "output"]
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, ImportError)
"""What reading a record raises that is damaged (DamagedBlob is one of them), or of a form that no installed version knows."""
_WITHOUT_PAUSES = ("list_sessions_without_pauses", "working_seconds_without_pauses")
_OF_OLDER = {query.removesuffix("_without_pauses"): query for query in _WITHOUT_PAUSES}
"""What is asked of a journal of an older version instead."""


class TooSlow(RunError):
    """A query took longer than it may."""


@dataclass(frozen=True, slots=True)
class StepOutline:
    """A step without what it holds."""

    id: int
    scope: str
    seq: int
    kind: str
    started_at: float
    """Seconds since 1970 UTC."""
    finished_at: float
    request_bytes: int
    """As it is stored: compressed, if it is long."""
    output_bytes: int
    usage: Mapping[str, Any]
    """As ``Usage.to_json`` has it; empty for a step that cost nothing."""

    @property
    def address(self) -> str:
        return f"{self.scope}/{self.seq}"


@dataclass(frozen=True, slots=True)
class CauseOfFailures:
    """Failures with one cause, those after which an item was executed again included."""

    cause: str
    count: int
    first_at: float
    last_at: float
    examples: Sequence[str]
    """Messages of no more than three, different from each other."""


@dataclass(slots=True)
class DamagedRow(ItemRow):
    """An item whose row can't be read, as ``message`` says. It has no record, and its payload only if that can be read and is small."""


class JournalBrowser(JournalReader):
    """A reader for people who look around. What a journal of an older version does not have is empty, and bytes that are no text are
    marks in it."""

    def __init__(self, folder: Path, *, any_thread: bool = False) -> None:
        """For one thread, or for several one after the other (``any_thread``). Raises RunError, StorageError."""
        super().__init__(folder, connect(folder / JOURNAL, read_only=True, any_thread=True) if any_thread else None)
        self._asked_at = 0.0
        self._connection.text_factory = _text
        self._connection.execute(
            "PRAGMA trusted_schema = OFF"
        )  # whoever made the file may have put views in the place of tables

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Queries inside take no longer than that together, and each no longer than MAX_QUERY_SECONDS, else TooSlow is raised. What is
        streamed is read by a query for each hundred rows."""
        end = monotonic() + seconds
        self._connection.set_progress_handler(
            lambda: monotonic() > min(end, self._asked_at + MAX_QUERY_SECONDS), _INSTRUCTIONS
        )
        try:
            yield
        finally:
            self._connection.set_progress_handler(None, 0)

    def items_before(
        self, position: int, limit: int, *, state: str | None = None, detail: str | None = None
    ) -> list[ItemRow]:
        """The last items before a position, in order of the input."""
        return self._rows(reversed(self._all("items_in_state_before", position, state, detail, limit)))

    def items_of(self, numbers: Sequence[int]) -> list[ItemRow]:
        """Items by their numbers, in that order; those that there are not are left out. A damaged one is a DamagedRow, as in all pages of
        items."""
        found = {row.number: row for row in self._rows(self._all("items_by_numbers", line(list(numbers))))}
        return [found[number] for number in numbers if number in found]

    def neighbours(self, row: ItemRow) -> tuple[int | None, int | None, int | None]:
        """The numbers of the items before and behind an item in the input, and of the next failed one."""
        found = self._one("item_neighbours", row.position)
        return (None, None, None) if found is None else (found[0], found[1], found[2])

    def first_running_items(self, limit: int) -> list[int]:
        """The first numbers of items that are being executed, or were when the run was killed."""
        return [number for (number,) in self._all("first_running_items", limit)]

    def ends_before(self, at: float | None) -> tuple[int, int]:
        """The ids of the last step and the last failure that were recorded before a time of day, of the last thousand of each; those of
        the last ones without a time."""
        step, failure = (
            self._one(name, 1e300 if at is None else at) for name in ("last_step_before", "last_failure_before")
        )
        return (step[0] if step else 0), (failure[0] if failure else 0)

    def items_active_behind(self, step: int, failure: int, limit: int) -> list[int]:
        """The numbers of the items that have steps or failures behind these ids, in order of recording."""
        failed = [number for (number,) in self._all("items_with_failures_behind", failure, limit)]
        stepped = [number for (number,) in self._all("items_with_steps_behind", step, limit)]
        return list(dict.fromkeys([*failed, *stepped]))

    def sessions(self, limit: int) -> list[RecordedSession]:
        """The sessions of the run, the latest first."""
        return [RecordedSession(*row) for row in self._all("list_sessions", limit)]

    def last_session(self) -> RecordedSession | None:
        return next(iter(self.sessions(1)), None)

    def _unpack(self, blob: bytes) -> Json:
        """Raises DamagedBlob for more than what an item may hold to be shown."""
        return unpack_within(blob, MAX_ROW_BYTES)[0]

    def _read_usage(self, blob: bytes) -> Usage:
        """What can't be read is not counted."""
        with suppress(*UNREADABLE):
            return _read_usage(blob)
        return ZERO

    def failure_causes(self) -> list[CauseOfFailures]:
        """The failures of the run by its MAX_CAUSES most frequent causes, the most frequent first."""
        found = self._all("failure_causes", MAX_CAUSES)
        return [
            CauseOfFailures(cause, count, first, last, [text for (text,) in self._all("failure_examples", cause)])
            for cause, count, first, last in found
        ]

    # What items had come to before

    def earlier_outcomes(self, item_number: int) -> list[EarlierOutcome]:
        """As in a JournalReader. Of one whose record can't be read, or is too large beside those before it, ``message`` says so."""
        found: list[EarlierOutcome] = []
        left = MAX_ROWS_BYTES
        for attempt, state, why, message, blob, finished, reopened in self._earlier_rows(item_number):
            limit, record = min(left, MAX_ROW_BYTES), None
            size = _unpacked_bytes((blob,), limit)
            if size > limit:
                message = "what it holds is too large to be shown"
            else:
                left -= size
                try:
                    record = unpack(blob) if blob else None
                except DamagedBlob as error:
                    message = str(error)
            found.append(EarlierOutcome(attempt, state, why, message, record, finished, reopened))
        return found

    def _replaced_rows(self) -> list[tuple[Any, ...]]:
        """Raises RunError if they hold too much together: whoever wants them adds up all."""
        rows = super()._replaced_rows()
        sizes = (_unpacked_bytes((row[_REPLACED],), MAX_ROWS_BYTES) for row in rows)
        if any(total > MAX_ROWS_BYTES for total in accumulate(sizes)):
            raise RunError(f"{self._path}: what its items had come to before is too large to be shown")
        return rows

    # Steps

    def step_count(self, item_number: int, attempt: int) -> int:
        """How many steps an attempt has."""
        row = self._one("count_steps", item_number, attempt)
        return 0 if row is None else int(row[0])

    def steps_before(self, item_number: int, attempt: int, before: int) -> int:
        """How many steps of an attempt were recorded before that of an id."""
        row = self._one("count_steps_before", item_number, attempt, before)
        return 0 if row is None else int(row[0])

    def outline(self, item_number: int, attempt: int, behind: int, limit: int) -> list[StepOutline]:
        """An attempt's steps behind an id, in order of recording, without what they hold."""
        return [_outlined(*row) for row in self._all("outline_of_steps", item_number, attempt, behind, limit)]

    def outline_before(self, item_number: int, attempt: int, before: int, limit: int) -> list[StepOutline]:
        """The last of an attempt's steps before an id, in order of recording."""
        rows = self._all("outline_of_steps_before", item_number, attempt, before, limit)
        return [_outlined(*row) for row in rows]

    def step_numbered(self, item_number: int, attempt: int, number: int) -> int | None:
        """The id of the step of that number (from 1) of an attempt, in order of recording."""
        row = self._one("step_numbered", item_number, attempt, number - 1)
        return None if row is None else int(row[0])

    def step(self, step_id: int) -> tuple[int, RecordedStep] | None:
        """The number of its item, and a step. Raises DamagedBlob."""
        row = self._one("step_by_id", step_id)
        if row is None:
            return None
        number, *values, usage = row
        try:
            return number, read_step([*values, usage if _is_usage(usage) else None])
        except DamagedBlob as error:
            raise DamagedBlob(f"{self._path}: step {step_id}: {error}") from error

    def step_outline(self, step_id: int) -> tuple[int, int, StepOutline] | None:
        """The item's number, the attempt, and a step without what it holds."""
        row = self._one("outline_of_step", step_id)
        return None if row is None else (row[0], row[1], _outlined(*row[2:]))

    def value_parts(self, step_id: int, value: Value) -> Iterator[bytes]:
        """The JSON text of a step's request or output, in parts, however large it is. Raises DamagedBlob behind the last part of one that
        is cut off or whose checksum differs, and RunError."""
        stored = self._stored(step_id, value)
        first = next(stored, b"")
        kind, checksum, data = first[:1], first[1:5], first[5:] if first[:1] == b"c" else first[1:]
        if kind == b"z":
            yield from self._unpacked(data, stored)
            return
        if kind not in (b"c", b"j"):
            raise self._damage("it is no journal blob")
        found = 0
        while data:
            found = zlib.crc32(data, found)
            yield from (data[place : place + _PART] for place in range(0, len(data), _PART))
            data = next(stored, b"")
        if kind == b"c" and found.to_bytes(4, "big") != checksum:
            raise self._damage("its checksum differs")

    def _stored(self, step_id: int, value: Value) -> Iterator[bytes]:
        """A value as it is stored, in parts that are each read at once."""
        place, size = 0, 1
        while place < size:
            try:
                with (
                    storage_errors(self._path),
                    self._connection.blobopen("steps", value, step_id, readonly=True) as blob,
                ):
                    size = len(blob)
                    blob.seek(min(place, size))
                    data = blob.read(_READ)
            except StorageError as error:
                raise self._damage(error.__cause__) from error
            place += len(data) or size
            yield data

    def _unpacked(self, data: bytes, stored: Iterator[bytes]) -> Iterator[bytes]:
        opened = zlib.decompressobj()
        try:
            while data:
                while data:
                    yield opened.decompress(data, _PART)
                    data = opened.unconsumed_tail
                data = next(stored, b"")
            yield opened.flush()
        except zlib.error as error:
            raise self._damage(error) from error
        if not opened.eof:
            raise self._damage("it is cut off")

    def _damage(self, what: object) -> DamagedBlob:
        return DamagedBlob(f"{self._path}: a record is damaged ({what}); restore the file from a copy")

    def value_beginning(self, step_id: int, value: Value, limit: int) -> tuple[bytes, bool]:
        """The first bytes of a step's request or output as JSON text, and whether that is all."""
        found = bytearray()
        for part in self.value_parts(step_id, value):
            found += part
            if len(found) > limit:
                return bytes(found[:limit]), False
        return bytes(found), True

    def size_of_step(self, step_id: int, limit: int) -> int:
        """How many bytes of JSON a step's request and output are; of more than the limit just some number above it. Raises as
        ``value_parts``."""
        values: tuple[Value, ...] = ("request", "output")
        total = 0
        for value in values:
            for part in self.value_parts(step_id, value):
                total += len(part)
                if total > limit:
                    return total
        return total

    def _rows(self, rows: Iterable[tuple[Any, ...]]) -> list[ItemRow]:
        """Rows, of which those that are damaged, or too large beside those before them, are DamagedRows."""
        found: list[ItemRow] = []
        left = MAX_ROWS_BYTES
        for row in rows:
            limit = min(left, MAX_ROW_BYTES)
            size = _unpacked_bytes((row[_PAYLOAD], row[_RECORD]), limit)
            if size > limit:
                found.append(_damaged(row, self._too_large(row)))
            else:
                left -= size
                found.append(self._shown(row))
        return found

    def _row(self, row: tuple[Any, ...]) -> ItemRow:
        if _unpacked_bytes((row[_PAYLOAD], row[_RECORD]), MAX_ROW_BYTES) > MAX_ROW_BYTES:
            raise DamagedBlob(self._too_large(row))
        return super()._row(row)

    def _too_large(self, row: tuple[Any, ...]) -> str:
        return f"{self._path}: item {row[0]}: what it holds is too large to be shown"

    def _shown(self, row: tuple[Any, ...]) -> ItemRow:
        try:
            found = super()._row(row)
        except DamagedBlob as error:
            return _damaged(row, str(error))
        return found if _has_types(found) else _damaged(row, f"{self._path}: item {row[0]}: its row is damaged")

    def _streamed(self, query: str) -> Iterator[tuple[Any, ...]]:
        position = -1
        while rows := self._all(query, position, _PAGE):
            yield from rows
            position = rows[-1][-1]

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._found(query, *values)
        except (RunError, StorageError) as error:
            cause = str(error.__cause__)
            if isinstance(error.__cause__, sqlite3.OperationalError):
                if "interrupted" in cause:
                    raise TooSlow(f"{self._path}: the answer took too long to find") from error
                if "no such" in cause and not self.is_current():
                    return self._found(_OF_OLDER[query], *values) if self._has_table(query) else []
            raise

    def _found(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        self._asked_at = monotonic()
        try:
            with storage_errors(self._path):
                return self._connection.execute(queries()[query], values).fetchall()
        except UnicodeDecodeError as error:  # in what SQLite has to say
            raise RunError(f"{self._path}: damaged: {error}") from error

    def _has_table(self, query: str) -> bool:
        return query in _OF_OLDER and bool(self._found("has_sessions"))

    def _one(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        found = self._all(query, *values)
        return found[0] if found else None


def _outlined(
    step: int,
    scope: str,
    seq: int,
    kind: str,
    began: float,
    ended: float,
    request: int,
    output: int,
    usage: bytes | None,
) -> StepOutline:
    began, ended = (each if _is_time(each) else 0.0 for each in (began, ended))
    return StepOutline(step, str(scope), seq, str(kind), began, ended, request, output, _usage(usage))


def _unpacked_bytes(blobs: Iterable[Any], limit: int) -> int:
    """How many bytes of JSON are in blobs together, with what its elements count for; of more than the limit just some number above it."""
    total = 0
    for blob in blobs:
        if isinstance(blob, bytes) and blob[:1] == b"z":
            with suppress(zlib.error):  # it is said where it is read
                total += _weight(zlib.decompressobj().decompress(blob[1:], max(1, limit + 1 - total)))
        elif isinstance(blob, bytes):
            total += _weight(blob)
        elif isinstance(blob, str):
            total += len(blob)  # damaged, and not read
    return total


def _weight(data: bytes) -> int:
    return len(data) + _ELEMENT * sum(map(data.count, (b",", b"[", b"{")))


def _is_usage(blob: bytes | None) -> bool:
    """Whether a blob is as small as any usage; nothing is."""
    return blob is None or (len(blob) <= _MAX_USAGE and blob[:1] != b"z")


def _read_usage(blob: bytes) -> Usage:
    """A step's usage. Raises DamagedBlob for what is none, and what else ``UNREADABLE`` names."""
    if not _is_usage(blob):
        raise DamagedBlob("it is no usage of a step")
    return Usage.from_json(unpack(blob))


def _usage(blob: bytes | None) -> Mapping[str, Any]:
    """What a step used; nothing where that can't be read."""
    with suppress(*UNREADABLE):
        if blob:
            found = _read_usage(blob).to_json()
            return found if all(isinstance(each, (int, float)) for each in found.values()) else {}
    return {}


def _damaged(row: tuple[Any, ...], problem: str) -> DamagedRow:
    """What is left of a row: its number, key and position, and its payload, state and attempt if they can be."""
    number, key, blob, state, attempt, *_, position = row
    payload = None
    if _unpacked_bytes([blob], _MAX_PAYLOAD) <= _MAX_PAYLOAD:
        with suppress(*UNREADABLE):
            payload = unpack(blob)
    states = {each.value: each for each in ItemState}
    known = states.get(state, ItemState.PENDING) if isinstance(state, str) else ItemState.PENDING
    attempt, position = (value if isinstance(value, int) else least for value, least in ((attempt, 1), (position, 0)))
    return DamagedRow(number, str(key), payload, known, attempt, 0, 0, None, None, problem, None, None, None, position)


def _has_types(row: ItemRow) -> bool:
    """Whether the columns of a row hold what they are for: SQLite takes anything in each."""
    numbers = (row.attempt, row.performances, row.failures, row.position)
    texts = (row.reason, row.cause, row.message)
    times = (row.started_at, row.finished_at)
    return (
        isinstance(row.key, str)
        and all(isinstance(each, int) for each in numbers)
        and all(each is None or isinstance(each, str) for each in texts)
        and all(each is None or _is_time(each) for each in times)
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= _LAST_SECOND


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
