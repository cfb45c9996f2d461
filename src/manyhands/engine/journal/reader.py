"""Reading a run: for exports, reports and everyone who is not its owner."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.core.errors import RunError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, line, loads, without_surrogates
from manyhands.core.outcomes import ItemState
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import FinishedItem, Item, ItemResult, ItemRow, RecordedStep, ReplacedOutcome
from manyhands.engine.journal.database import check_tables, connect, is_current, migrate, queries, storage_errors
from manyhands.engine.journal.records import Claimed, DamagedBlob, RecordedOutput, unpack, unpack_within

JOURNAL = "run.db"
PAGE = 500
_STEPS = 1000
"""Steps that are read at once where all that items have are gone through."""
_PAYLOAD, _RECORD = 2, 10
"""Where they are in a row of items."""
_STATES = {state.value: state for state in ItemState}


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that was given up for a fresh one."""

    attempt: int
    ended_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """One failure of an item, whatever followed from it."""

    attempt: int
    at: float
    cause: str
    message: str


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One opening of the run by a process that executed it."""

    number: int
    process: int
    host: str
    started_at: float
    heartbeat_at: float
    ended_at: float | None
    ending: str | None
    paused_at: float | None
    """Since when it is paused, or was when it was killed."""


@dataclass(frozen=True, slots=True)
class RecordedOrder:
    """What a person had changed in a run."""

    at: float
    given_by: str
    """``user@host``."""
    command: str
    """``set``, ``retry`` or ``cancel``."""
    details: Json


@dataclass(frozen=True, slots=True)
class EarlierOutcome:
    """What an item had come to before it was executed again on request. Times are seconds since 1970 UTC."""

    attempt: int
    state: str
    why: str | None
    """The reason or cause."""
    message: str | None
    record: Json
    finished_at: float | None
    reopened_at: float


@dataclass(frozen=True, slots=True)
class ItemOutline:
    """An item without what it holds."""

    number: int
    key: str
    state: str
    reason: str | None
    cause: str | None
    position: int


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that grows line by line, and how many bytes of it the journal vouches for."""

    number: int
    name: str
    size: int


class ItemMark(NamedTuple):
    """By what a change of an item is known."""

    number: int
    position: int
    state: str
    detail: str
    """The reason or cause; empty without one."""
    attempt: int
    finished_at: float | None


class JournalEnds(NamedTuple):
    """How far a journal has got: the largest numbers that it has given, 0 for none."""

    step: int
    failure: int
    order: int
    item: int
    session: int
    session_ended_at: float | None
    """None while it goes on, and after it was killed."""


class StepMark(NamedTuple):
    """What is counted of a step. Blobs are packed; times are seconds since 1970 UTC."""

    id: int
    item: int
    attempt: int
    scope: str
    seq: int
    kind: str
    started_at: float
    finished_at: float
    usage: bytes | None
    """None for a step that cost nothing."""
    request: bytes | None
    """Of tool calls, unless it is too large."""
    output: bytes | None
    """Of tool calls and of model calls in the item's own scope, unless it is too large."""


class JournalReader:
    """What one journal holds. Not shared between threads."""

    def __init__(self, folder: Path, connection: sqlite3.Connection | None = None) -> None:
        """Raises RunError if it is no journal, StorageError if it can't be read."""
        self._folder = folder
        self._path = folder / JOURNAL
        try:
            if connection is None and not has_journal(folder):
                raise RunError(f"{folder}: not a run folder (it has no {JOURNAL})")
        except OSError as error:
            raise RunError(f"{folder}: can't be looked into ({error.strerror})") from error
        self._connection = connection or connect(self._path, read_only=True)
        try:
            check_tables(self._connection, self._path)
        except BaseException:
            self._connection.close()
            raise

    @property
    def folder(self) -> Path:
        return self._folder

    def close(self) -> None:
        self._connection.close()

    def is_current(self) -> bool:
        """Whether the journal has this version's schema. Raises RunError if a newer version wrote it, or if it is no journal."""
        return is_current(self._connection, self._path)

    def hinders_nobody(self) -> bool:
        """Whether the owner can write while others read: the journal has a write-ahead log."""
        with storage_errors(self._path):
            mode: str = self._connection.execute("PRAGMA journal_mode").fetchone()[0]
        return mode == "wal"

    def meta(self, name: str, default: Json = None) -> Json:
        """A fact about the run."""
        row = self._one("get_meta", name)
        return default if row is None else self._fact(name, row[0])

    def facts(self, *names: str) -> dict[str, Json]:
        """Several facts about the run, by their names: None for those that are not recorded."""
        found = self._all("several_meta", line(list(names)))
        return {**dict.fromkeys(names), **{name: self._fact(name, value) for name, value in found}}

    def _fact(self, name: str, value: Any) -> Json:
        try:
            return loads(value)
        except (ValueError, TypeError) as error:
            raise RunError(f"{self._path}: damaged: the fact {name!r} can't be read") from error

    def item(self, which: str) -> ItemRow | None:
        """An item by its number, or else by its key."""
        row = self._one("item_by_number", int(which)) if which.isdecimal() and len(which) < 19 else None
        return self.item_by_key(which) if row is None else self._row(row)

    def item_by_key(self, key: str) -> ItemRow | None:
        """An item by its key."""
        row = self._one("item_by_key", without_surrogates(key))
        return None if row is None else self._row(row)

    def items(self, behind: int = -1) -> Iterator[ItemRow]:
        """All items (behind a position) in order of the input, streamed."""
        return map(self._row, self._items_after(behind))

    def shown_items(self, behind: int = -1) -> Iterator[ItemRow]:
        """The same for whoever shows items one by one, and adds up nothing: where ``items`` raises DamagedBlob, a JournalBrowser gives a
        DamagedRow here."""
        return (shown for row in self._items_after(behind) for shown in self._rows([row]))

    def items_numbered(self, behind: int, last: int, limit: int, max_bytes: int) -> list[ItemRow]:
        """Up to ``limit`` items behind a number, up to ``last``, in order of planning: fewer where they hold more than so many bytes of
        JSON together, but one at least. One that is damaged, or holds more alone, is there without payload and record."""
        found: list[ItemRow] = []
        budget = _Budget(max_bytes)
        for row in self._numbered_rows(behind, last, limit, max_bytes):
            try:
                found.append(_item_row(row, budget.unpack))
            except DamagedBlob:
                if found:
                    break  # there may be room for it among the next ones
                found.append(_item_row(row, _left_out))
        return found

    def _numbered_rows(self, behind: int, last: int, limit: int, max_bytes: int) -> list[tuple[Any, ...]]:
        """Rows of items, up to the first one with which they are stored in more than so many bytes."""
        found, stored = [], 0
        with storage_errors(self._path):
            for row in self._connection.execute(queries()["items_numbered"], (behind, last, limit, max_bytes)):
                found.append(row)
                stored += sum(len(each) for each in (row[_PAYLOAD], row[_RECORD]) if isinstance(each, bytes))
                if stored > max_bytes:
                    break
        return found

    def item_marks(self, behind: int, limit: int) -> list[ItemMark]:
        """Up to ``limit`` items behind a number, in order of planning, without what they hold."""
        return list(map(ItemMark._make, self._all("item_marks", behind, limit)))

    def running_items(self) -> list[int]:
        """The numbers of the items that are being executed."""
        return [number for (number,) in self._all("running_items")]

    def step_marks(self, first: int, last: int, max_bytes: int) -> Iterator[StepMark]:
        """What is counted of the steps of the items from number ``first`` to ``last``, all attempts, in order of their addresses. Streamed
        in short reads. ``max_bytes``: of a request or an output as it is recorded; larger ones are left out."""
        address: tuple[int, int, str, int] = (first, -1, "", -1)
        count = _STEPS
        while count == _STEPS:
            count = 0
            with storage_errors(self._path):
                rows = self._connection.execute(queries()["step_marks"], (first, last, *address, max_bytes, _STEPS))
                for row in rows:
                    count += 1
                    yield StepMark._make(row)
            if count:
                address = row[1:5]

    def steps_recorded(self, behind: int, limit: int) -> list[tuple[int, int]]:
        """(id, item number) of up to ``limit`` steps behind an id, in order of recording."""
        return self._all("steps_recorded", behind, limit)

    def step_stamp(self, step: int) -> tuple[int, float] | None:
        """(item number, time of its end) of a step by its id; None if there is none."""
        row = self._one("step_stamp", step)
        return None if row is None else (row[0], row[1])

    def failures_recorded(self, behind: int, last: int, limit: int) -> list[tuple[int, int, float]]:
        """(id, item number, time) of up to ``limit`` failures behind an id, up to ``last``, in order of recording."""
        return self._all("failures_recorded", behind, last, limit)

    def ends(self) -> JournalEnds:
        """How far the journal has got, at one moment."""
        row = self._one("journal_ends")
        assert row is not None
        *numbers, ended_at = row
        return JournalEnds._make([*(number or 0 for number in numbers), ended_at])

    def data_version(self) -> int:
        """A number that changes when another process has written to the journal. Takes some microseconds."""
        with storage_errors(self._path):
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def failed_items(self, limit: int) -> list[ItemRow]:
        """The first failed items in order of the input, found without looking at all items."""
        return [self._row(row) for row in self._all("first_failed_items", limit)]

    def items_page(
        self, behind: int, limit: int, *, state: str | None = None, detail: str | None = None
    ) -> list[ItemRow]:
        """Items (in a state; with a reason or cause) behind a position, in order of the input."""
        name = "failed_items_after" if state == "failed" else "items_in_state_after"
        return self._rows(self._all(name, behind, state, detail, limit))

    def results(self) -> Iterator[ItemResult]:
        """Every item that is still in the input, in its order, streamed."""
        for key, payload, state, performances, message, record, finished, _ in self._streamed("exported_items"):
            found = self._unpack(record) if record else None
            yield ItemResult(key, self._unpack(payload), _STATES[state], performances, message, found, finished)

    def completed_records(self) -> Iterator[Json]:
        """The records of completed items that are still in the input, in its order, streamed."""
        return (self._unpack(record) for record, _ in self._streamed("completed_records"))

    def payloads(self) -> Iterator[Json]:
        """Of all items that are still in the input, in its order, streamed."""
        return (self._unpack(payload) for payload, _ in self._streamed("payloads"))

    def unwritten(self) -> Iterator[ItemRow]:
        """Ended items whose output line is not known to be on disk."""
        return map(self._row, self._paged("unwritten_items"))

    def finished(self, state: str | None = None) -> Iterator[FinishedItem]:
        """Ended items (in that state), in order of the input, streamed."""
        for row in self.items():
            if row.state.final and (state is None or row.state == state):
                yield row.finished()

    def steps(self, item_number: int, attempt: int) -> Sequence[RecordedStep]:
        """An attempt's steps in order of recording."""
        rows = self._all("steps_of_attempt", item_number, attempt)
        try:
            return [_step(*row) for row in rows]
        except DamagedBlob as error:
            raise DamagedBlob(f"{self._path}: a step of item {item_number}: {error}") from error

    def steps_of_items(self, item_numbers: Sequence[int]) -> dict[int, list[RecordedStep]]:
        """The steps of the latest attempt of each of these items, in order of recording: found by one query."""
        found: dict[int, list[RecordedStep]] = {number: [] for number in item_numbers}
        for number, *row in self._all("steps_of_items", line(list(item_numbers))):
            try:
                found[number].append(_step(*row))
            except DamagedBlob as error:
                raise DamagedBlob(f"{self._path}: a step of item {number}: {error}") from error
        return found

    def recorded_outputs(self, item_number: int, attempt: int) -> tuple[RecordedOutput, ...]:
        """What a replay needs of an attempt's steps."""
        return tuple(self._all("recorded_steps", item_number, attempt))

    def attempts(self, item_number: int) -> list[EndedAttempt]:
        """The attempts of an item that were given up, in order."""
        return [EndedAttempt(*row) for row in self._all("attempts_of_item", item_number)]

    def earlier_outcomes(self, item_number: int) -> list[EarlierOutcome]:
        """What an item had come to each time before it was executed again on request, in order."""
        return [
            EarlierOutcome(attempt, state, why, message, unpack(record) if record else None, finished, reopened)
            for attempt, state, why, message, record, finished, reopened in self._earlier_rows(item_number)
        ]

    def _earlier_rows(self, item_number: int) -> list[tuple[Any, ...]]:
        return self._all("earlier_outcomes", item_number)

    def replaced_outcomes(self) -> list[ReplacedOutcome]:
        """The same of all items, those of each in order."""
        return [
            ReplacedOutcome(
                item, attempt, ItemState(state), reason, cause, message, unpack(record) if record else None, *rest
            )
            for item, attempt, state, reason, cause, message, record, *rest in self._replaced_rows()
        ]

    def _replaced_rows(self) -> list[tuple[Any, ...]]:
        return self._all("all_earlier_outcomes")

    def orders(self, limit: int) -> list[RecordedOrder]:
        """What people had changed in the run, the latest first."""
        rows = self._all("list_orders", limit)
        return [RecordedOrder(at, given_by, command, loads(details)) for at, given_by, command, details in rows]

    def outlines(self, behind: int = -1) -> Iterator[list[ItemOutline]]:
        """All items (behind a position) without what they hold, in order of the input, a page at a time."""
        position = behind
        while rows := self._all("outlines", position, PAGE):
            yield [ItemOutline(*row) for row in rows]
            position = rows[-1][-1]

    def failures(self, item_number: int) -> list[RecordedFailure]:
        """The failures of an item, in order."""
        return [RecordedFailure(*row) for row in self._all("failures_of_item", item_number)]

    def interruptions(self) -> tuple[int, int]:
        """How many executions ended because their worker was lost, and how many of these a fresh attempt followed, as their world was lost
        with it. The others go on from their last recorded steps."""
        found = self._one("interruptions")
        return (0, 0) if found is None else (int(found[0]), int(found[1]))

    def last_cause(self, item_number: int) -> Cause | None:
        """Why an item failed last; None if it never did."""
        row = self._one("last_failure", item_number)
        return None if row is None else Cause(row[0])

    def fresh_items(self, behind: int, limit: int) -> list[Claimed]:
        """The next items behind a position of the input that are to be executed and do not wait for a time."""
        return [_claimed(row) for row in self._all("claim_fresh", behind, limit)]

    def refused_items(self, behind: int, limit: int) -> list[Claimed]:
        """The next items behind a position of the input that were refused up to the end of an earlier session."""
        return [_claimed(row) for row in self._all("claim_refused", behind, limit)]

    def due_items(self, now: float, limit: int) -> list[Claimed]:
        """Items that waited for a time which has come, the longest due first."""
        return [_claimed(row) for row in self._all("claim_due", now, limit)]

    def next_due(self) -> float | None:
        """The time of day when the next item becomes due; None if none waits."""
        row = self._one("next_due")
        return None if row is None else row[0]

    def removed_items(self, generation: int) -> list[tuple[int, str, str]]:
        """Items (number, key, state) that the planning of that number is the first not to name."""
        return [(number, key, state) for number, key, state in self._all("removed_items", generation)]

    def last_session(self) -> RecordedSession | None:
        """The session that was begun last; None if nobody has executed the run."""
        row = self._one("last_session")
        return None if row is None else RecordedSession(*row)

    def outputs(self) -> list[OutputFile]:
        """The output files that the journal knows."""
        return [OutputFile(*row) for row in self._all("list_outputs")]

    def outputs_of(self, item_numbers: Sequence[int]) -> list[str]:
        """The output files that hold lines of these items."""
        return [name for (name,) in self._all("outputs_of_items", line(list(item_numbers)))]

    def reopenable(self, item_numbers: Sequence[int]) -> list[int]:
        """Those of these items that have ended and are still in the input."""
        return [number for (number,) in self._all("reopenable", line(list(item_numbers)))]

    def unwritten_lines(self, output: OutputFile) -> int:
        """How many items have a line in a file that is not known to be on disk."""
        row = self._one("count_unwritten", output.number)
        return 0 if row is None else int(row[0])

    def states(self, position: int, limit: int) -> list[tuple[int, str, str | None]]:
        """(position, state, reason) of items behind a position, in order, without those that left the input."""
        return [(position, state, reason) for position, state, reason in self._all("states_after", position, limit)]

    def counts(self) -> dict[tuple[str, str], int]:
        """How many items are in each state, by reason or cause."""
        counts = {(state, detail): items for state, detail, items in self._all("count_by_state")}
        if unknown := {state for state, _ in counts} - _STATES.keys():
            raise RunError(f"{self._path}: damaged: there is no state {unknown.pop()!r}")
        return counts

    def commonest_failure(self) -> tuple[str, int] | None:
        """The message that most failed items have, and how many; None if none failed."""
        row = self._one("commonest_failure")
        return None if row is None else (str(row[0] or ""), int(row[1]))

    def left(self, limit: int) -> int:
        """How many of the first ``limit`` items of the input have not ended."""
        row = self._one("count_left", limit)
        return 0 if row is None else int(row[0])

    def begun(self) -> int:
        """How many items have not ended, and were executed."""
        row = self._one("count_begun")
        return 0 if row is None else int(row[0])

    def left_input(self, state: str) -> int:
        """How many items in a state the input does not name any more."""
        row = self._one("count_left_input", state)
        return 0 if row is None else int(row[0])

    def usage(self) -> Usage:
        """What the run has used since it began, interrupted and abandoned attempts included."""
        row = self._one("get_usage")
        return _finite(Usage(*row)) if row else Usage()

    def accounts(self) -> dict[str, Usage]:
        """What of that was used for accounts (see ``Effect.account``), by their names: for the 100 dearest ones."""
        return {name: _finite(Usage(*values)) for name, *values in self._all("list_accounts")}

    def accounts_of_item(self, item_number: int) -> dict[str, Usage]:
        """The same of the recorded steps of an item, those of abandoned attempts included."""
        found: dict[str, Usage] = {}
        for name, usage in self._all("accounts_of_item", item_number):
            found[name] = found.get(name, ZERO) + self._read_usage(usage)
        return dict(sorted(found.items()))

    def usage_of_items(self, item_numbers: Sequence[int]) -> dict[int, Usage]:
        """What the recorded steps of items used, those of abandoned attempts included, by their numbers: found by one query."""
        found = dict.fromkeys(item_numbers, ZERO)
        for number, usage in self._all("usage_of_items", line(list(item_numbers))):
            found[number] += self._read_usage(usage)
        return found

    def _unpack(self, blob: bytes) -> Json:
        return unpack(blob)

    def _read_usage(self, blob: bytes) -> Usage:
        return Usage.from_json(unpack(blob))

    def working_seconds(self) -> float:
        """How long anyone worked on the run, all sessions together."""
        row = self._one("working_seconds")
        return float(row[0]) if row else 0.0

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything that is read inside is of one moment, whatever the owner writes meanwhile.

        Only where the journal has a write-ahead log: elsewhere a reader that stays would keep the owner from writing.
        """
        holds = self.hinders_nobody()
        with storage_errors(self._path):
            if holds:
                self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if holds:
                self._connection.rollback()

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows of a named query."""
        with storage_errors(self._path):
            return self._connection.execute(queries()[query], values).fetchall()

    def _one(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        """The first row of a named query, or None."""
        with storage_errors(self._path):
            row: tuple[Any, ...] | None = self._connection.execute(queries()[query], values).fetchone()
        return row

    def _streamed(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a named query, one at a time. The query takes (position, limit) and gives the position as its last column."""
        position, row = -1, None
        while True:
            with storage_errors(self._path):
                for row in self._connection.execute(queries()[query], (position, PAGE)):
                    yield row
            if row is None or row[-1] == position:
                return
            position = row[-1]

    def _rows(self, rows: Iterable[tuple[Any, ...]]) -> list[ItemRow]:
        return [self._row(row) for row in rows]

    def _row(self, row: tuple[Any, ...]) -> ItemRow:
        try:
            return _item_row(row)
        except DamagedBlob as error:
            raise DamagedBlob(f"{self._path}: {error}") from error

    def _items_after(self, position: int) -> Iterator[tuple[Any, ...]]:
        return self._paged("items_after", position)

    def _paged(self, query: str, position: int = -1) -> Iterator[tuple[Any, ...]]:
        while rows := self._all(query, position, PAGE):
            yield from rows
            position = rows[-1][-1]


def _finite(usage: Usage) -> Usage:
    """A sum, with its cost unknown if somebody had it grow beyond all bounds."""
    return usage if isfinite(usage.cost) else replace(usage, cost=0.0, unpriced_calls=usage.calls)


def has_journal(folder: Path) -> bool:
    """Whether there is a journal in a folder. Found out by one look, as it may just be made. Raises RunError if something that is no file
    is in its place (a folder, a pipe, a link to nowhere), OSError for a folder that can't be looked into."""
    journal = folder / JOURNAL
    try:
        if stat.S_ISREG(os.stat(journal).st_mode):
            return True
    except (FileNotFoundError, NotADirectoryError):
        if not journal.is_symlink():
            return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        if error.errno != errno.ELOOP:
            raise
    raise RunError(f"{journal}: not a plain file")


def run_id_of(folder: Path) -> str:
    """The identity of the run in a folder. Raises RunError if there is none."""
    reader = JournalReader(folder)
    try:
        return str(reader.meta("run_id"))
    finally:
        reader.close()


def copy_journal(source: Path, target: Path, *, items: bool) -> None:
    """Make a journal that holds another one's facts, and its items if these are wanted, but no step. Raises RunError, StorageError."""
    target.unlink(missing_ok=True)
    with storage_errors(target), closing(connect(target)) as connection:
        migrate(connection, target)
        connection.execute("ATTACH ? AS source", (f"{source.absolute().as_uri()}?mode=ro",))
        for table in ("meta", *(["items"] if items else [])):
            columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"INSERT OR REPLACE INTO main.{table} ({columns}) SELECT {columns} FROM source.{table}")
        connection.execute("DETACH source")


def read_step(row: Sequence[Any]) -> RecordedStep:
    """A row of the queries of steps, decoded. Raises DamagedBlob."""
    return _step(*row)


def _step(
    attempt: int,
    scope: str,
    seq: int,
    kind: str,
    request: bytes,
    output: bytes,
    started: float,
    ended: float,
    usage: bytes | None,
) -> RecordedStep:
    found = unpack(usage) if usage else {}
    return RecordedStep(attempt, scope, seq, kind, unpack(request), unpack(output), started, ended, found)


def _claimed(row: tuple[int, str, bytes, int, int, int, int]) -> Claimed:
    number, key, payload, attempt, performances, failures, position = row
    return Claimed(Item(number, key, unpack(payload)), attempt, performances, failures, position)


class _Budget:
    """Reads values as long as they hold no more than so many bytes of JSON together."""

    def __init__(self, left: int) -> None:
        self._left = left

    def unpack(self, blob: bytes) -> Json:
        """A value. Raises DamagedBlob, also for one that is too large."""
        value, size = unpack_within(blob, self._left)
        self._left -= size
        return value


def _left_out(blob: bytes) -> Json:
    return None


def _item_row(row: tuple[Any, ...], read: Callable[[bytes], Json] = unpack) -> ItemRow:
    """A row of the ``items`` queries, decoded. ``read``: what makes values of blobs."""
    number, key, payload, state, attempt, performances, failures, reason, cause, message, record, *rest = row
    try:
        found = read(record) if record else None
        values = (attempt, performances, failures, reason, cause, message, found)
        return ItemRow(number, key, read(payload), _STATES[state], *values, *rest)
    except DamagedBlob as error:
        raise DamagedBlob(f"item {number}: {error}") from error
    except (KeyError, TypeError) as error:
        raise DamagedBlob(f"item {number}: its row in {JOURNAL} is damaged; restore the file from a copy") from error
