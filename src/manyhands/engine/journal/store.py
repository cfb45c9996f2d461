"""The owner's journal: the only writer, and what it writes."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import FAILURES, Cause
from manyhands.core.jsonio import Json, dumps, without_surrogates
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.redaction import KNOWN
from manyhands.engine.contract import PlannedItem
from manyhands.engine.journal.database import connect, expanded, migrate, prepare, queries, storage_errors, transaction
from manyhands.engine.journal.lock import LOCK, META, Commits, RunLock, check_pages
from manyhands.engine.journal.reader import JOURNAL, JournalReader, OutputFile
from manyhands.engine.journal.records import StepRow, pack, unpack
from manyhands.engine.journal.writer import GroupWriter, OnCommit

REWRITE = "rewrite_outputs"
"""The fact that output has to be written again, recorded until that is done: true for all of it, or the names of the files."""
PLAN_CHUNK = 256
PLAN_BYTES = 1 << 18
"""Payloads that are planned by one statement, about; one is always."""
MAX_MESSAGE = 4000
NAMED_OUTPUTS = 4096
"""Output files remembered as known to the journal already."""
_Element = TypeVar("_Element")
_Rows = tuple[str, list[tuple[Any, ...]]]
"""The name of a query, and what it writes."""
CHUNKS_IN_TRANSACTION = 20
_FRESH_CAUSES = dumps([cause for cause, rule in FAILURES.items() if rule.fresh_attempt]).decode()
"""The failures after which an item starts from nothing, as JSON."""


class Store:
    """A run's journal, opened by its owner. Planning is done before ``begin``; after it, all writing goes through group commits."""

    def __init__(self, folder: Path, clock: Clock, notice: Callable[[str], None]) -> None:
        """Opens (or makes) the journal, brings its schema up to date.

        Raises RunError if another process owns the run, StorageError if the folder can't be written.
        """
        self.folder = folder
        self._clock = clock
        self._path = folder / JOURNAL
        self._lock = RunLock(folder)
        with ExitStack() as undo:
            undo.callback(self._lock.release)
            self._commits = Commits(self._path, folder / LOCK, self._lock.descriptor)
            self._connection = connect(self._path, any_thread=True)
            undo.callback(self._connection.close)
            prepare(self._connection, self._path, notice)
            if not self._commits.sound:
                check_pages(self._connection, self._path)
            migrate(self._connection, self._path)
            self.reader = JournalReader(folder, connect(self._path, read_only=True))
            undo.callback(self.reader.close)
            self.missing = self._commits.compare(self.reader.meta(META, 0))
            """Commits that are missing: those that the run's owner made while its folder was being copied."""
            undo.pop_all()
        self._writer: GroupWriter | None = None
        self._session = 0
        self._named_outputs: set[str] = set()

    # Before a session begins

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is written within this is written as a whole, or not at all."""
        with storage_errors(self._path), transaction(self._connection):
            yield

    def set_meta(self, **values: Json) -> None:
        """Record facts about the run."""
        with storage_errors(self._path), transaction(self._connection):
            for name, value in values.items():
                self._set_meta(name, value)

    def plan(self, items: Iterable[PlannedItem], generation: int) -> None:
        """Enter all items of the input, in order. ``generation``: a number that no earlier planning had, finished or not.

        Where an item that had ended gets another position or payload, it is recorded that the output must be written again.
        Raises UserError for two items with the same key.
        """
        position = 0
        chunks = _chunks_by_size(items)
        while group := list(islice(chunks, CHUNKS_IN_TRANSACTION)):
            with storage_errors(self._path), transaction(self._connection):
                for chunk in group:
                    self._plan_chunk(chunk, position, generation)
                    position += len(chunk)

    def replan(
        self,
        items: Iterable[PlannedItem],
        identity: str,
        *,
        removed: Callable[[Json], Json] | None = None,
        **facts: Json,
    ) -> None:
        """Enter all items of an input that was edited, in one transaction with facts about the run: where ``items`` raises, or the process
        dies, all is as it was before. Items that the input does not name any more are cancelled, also discarded ones.

        ``identity``: of the input that is planned now. ``removed``: gives the payload of an item that left the input, now or earlier, from
        the one that it has. Raises as ``plan`` does.
        """
        generation = self.reader.meta("generation", 0) + 1
        position = 0
        with storage_errors(self._path), transaction(self._connection):
            for chunk in _chunks(items, PLAN_CHUNK):
                self._plan_chunk(chunk, position, generation)
                position += len(chunk)
            self._run("cancel_removed", generation, True)
            self._run("park_removed", generation)
            if removed is not None:
                self._rewrite_removed(generation, removed)
            planned = {"identity": identity, "generation": generation}
            for name, value in {**facts, "generation": generation, "planned": planned}.items():
                self._set_meta(name, value)

    def _rewrite_removed(self, generation: int, rewritten: Callable[[Json], Json]) -> None:
        behind = 0
        while rows := self._run("removed_payloads", generation, behind, PLAN_CHUNK).fetchall():
            self._execute("set_payloads", [(number, pack(rewritten(unpack(payload)))) for number, payload in rows])
            behind = rows[-1][0]

    def _plan_chunk(self, chunk: list[PlannedItem], position: int, generation: int) -> None:
        rows = [
            (without_surrogates(item.key), position + index, generation, pack(KNOWN.json(item.payload)))
            for index, item in enumerate(chunk)
        ]
        self._refuse_duplicates([row[0] for row in rows], generation)
        if generation > 1:
            afresh = [item.afresh is not None for item in chunk]  # its line leaves the output, as if it were moved
            positions = [(row[0], -1 if new else row[1], row[3]) for row, new in zip(rows, afresh, strict=True)]
            if self._execute("moved_items", positions).fetchone()[0]:
                self._set_meta(REWRITE, True)
        self._reopen_edited(chunk)
        self._execute("plan_items", rows)
        ended = [(row[0], item.outcome) for row, item in zip(rows, chunk, strict=True) if item.outcome is not None]
        if ended:
            files = sorted({outcome.line[0] for _, outcome in ended if outcome.line})
            if files:
                self._execute("add_outputs", [(file,) for file in files])
            now = self._clock.now()
            clean = [(key, replace(outcome, record=KNOWN.json(outcome.record))) for key, outcome in ended]
            self._execute("enter_outcome", [(key, *outcome_row(outcome, now)) for key, outcome in clean])

    def _reopen_edited(self, chunk: list[PlannedItem]) -> None:
        keys: dict[str, list[str]] = {}
        for item in chunk:
            if item.afresh is not None:
                keys.setdefault(item.afresh, []).append(without_surrogates(item.key))
        for reason, named in keys.items():
            numbers = [row[0] for row in self._run("numbers_of_keys", dumps(named).decode())]
            for query, rows in self._reopening(numbers, reason, fresh=True):
                self._execute(query, rows)

    def _refuse_duplicates(self, keys: list[str], generation: int) -> None:
        seen = self._execute("planned_twice", [(key, generation) for key in keys]).fetchone()
        twice = seen[0] if seen else next((key for key, count in Counter(keys).items() if count > 1), None)
        if twice is not None:
            raise UserError(f"two items of the input have the same key: {twice}")

    def removed(self, generation: int) -> list[tuple[int, str, str]]:
        """Items (number, key, state) that the latest planning did not name; those without an end are cancelled."""
        rows = self.reader.removed_items(generation)
        if rows:
            with storage_errors(self._path), transaction(self._connection):
                self._run("cancel_removed", generation, False)
                self._run("park_removed", generation)
        return rows

    def release_items(self, *, failed: bool) -> None:
        """Make items claimable again: those that a dead owner left running and, if requested, those that failed."""
        with storage_errors(self._path), transaction(self._connection):
            self._release_running()
            self._run("release_waiting")
        if failed:
            self.release_failed()

    def release_failed(self, keys: Sequence[str] | None = None) -> int:
        """Make failed items (those of these keys) claimable again; how many there were. Where the failure table says so, they start from
        nothing in a new attempt (only before ``begin``)."""
        chosen = None if keys is None else dumps(list(keys)).decode()
        with storage_errors(self._path), transaction(self._connection):
            self._run("give_up_attempts", self._clock.now(), _FRESH_CAUSES, chosen)
            return self._run("release_failed", _FRESH_CAUSES, chosen).rowcount

    def reopen_items(self, numbers: Sequence[int], why: str, *, fresh: bool = False) -> list[int]:
        """Make ended items claimable again; what they had come to is kept, and their lines leave the output files when these are next
        repaired (only before ``begin``).

        Completed and discarded items start from nothing in a new attempt; failed and cancelled ones go on from their recorded steps,
        unless the failure table says otherwise, or with ``fresh``. Items that left the input, or have not ended, stay as they are.
        Returns the numbers of the others.
        """
        found = self.reader.reopenable(numbers)
        with storage_errors(self._path), transaction(self._connection):
            for query, rows in (*self._rewriting(found), *self._reopening(found, why, fresh=fresh)):
                self._execute(query, rows)
        return found

    def cancel_items(self, numbers: Sequence[int], why: str) -> int:
        """End items as cancelled that have not ended; how many there were (only before ``begin``)."""
        now, text = self._clock.now(), _text(why)
        with storage_errors(self._path), transaction(self._connection):
            chunks = _chunks(numbers, PLAN_CHUNK)
            return sum(self._execute("cancel_items", [(n, now, text) for n in chunk]).rowcount for chunk in chunks)

    def _rewriting(self, numbers: Sequence[int]) -> Iterator[_Rows]:
        """What has the output files written again that hold lines of these items."""
        rewritten = self.reader.meta(REWRITE) or []
        files = self.reader.outputs_of(numbers)
        if files and rewritten is not True:
            yield "set_meta", [(REWRITE, dumps(sorted({*rewritten, *files})).decode())]

    def _reopening(self, numbers: Sequence[int], why: str, *, fresh: bool) -> Iterator[_Rows]:
        """The queries that reopen items, each with its rows."""
        now, text = self._clock.now(), _text(why)
        for chunk in _chunks(numbers, PLAN_CHUNK):
            yield "keep_outcomes", [(number, now) for number in chunk]
            yield "give_up_reopened", [(number, now, text, fresh, _FRESH_CAUSES) for number in chunk]
            yield "reopen_items", [(number, fresh, _FRESH_CAUSES) for number in chunk]

    def release_discarded(self, reason: str) -> None:
        """Make items claimable again that were discarded for that reason, to be judged again: what is recorded of them is replayed
        (only before ``begin``)."""
        with storage_errors(self._path):
            self._run("release_discarded", reason)

    def release_running(self) -> None:
        """Say of all items that nobody executes them any more (only after ``end``)."""
        with storage_errors(self._path), transaction(self._connection):
            self._release_running()

    def add_order(self, given_by: str, command: str, details: Json) -> None:
        """Record what a person has changed (only before ``begin``)."""
        with storage_errors(self._path):
            self._execute("add_orders", [(self._clock.now(), given_by, command, dumps(KNOWN.json(details)).decode())])

    def forget_outputs(self) -> None:
        """No line of any output file counts as written any more (only before ``begin``)."""
        with storage_errors(self._path):
            self._run("forget_all_outputs")
            self._run("reset_all_output_sizes")

    def forget_output(self, output: OutputFile) -> None:
        """No line of an output file counts as written any more (only before ``begin``)."""
        with storage_errors(self._path):
            self._run("forget_output", output.number)
            self._run("reset_output_size", output.number)

    def assign_outputs(self, rows: list[tuple[str, int]]) -> None:
        """Say which output file each item's line goes to: (file, item number)."""
        with storage_errors(self._path), transaction(self._connection):
            self._execute("add_outputs", [(file,) for file in sorted({file for file, _ in rows})])
            self._connection.executemany(queries()["assign_output"], rows)

    def note_written(self, numbers: list[int], sizes: dict[str, int]) -> None:
        """As ``mark_written``, at once (only before ``begin``)."""
        with storage_errors(self._path), transaction(self._connection):
            for chunk in _chunks(numbers, PLAN_CHUNK):
                self._execute("mark_written", [(number,) for number in chunk])
            for file, size in sizes.items():
                self._execute("set_output_sizes", [(file, size)])

    # While items are executed

    def begin(self) -> None:
        """Start a session: from here on, writes are grouped."""
        now = self._clock.now()
        with storage_errors(self._path):
            row = self._run("open_session", os.getpid(), socket.gethostname(), now, now).fetchone()
        self._session = row[0]
        self._writer = GroupWriter(self._connection, self._path, self._commits)

    @property
    def writer(self) -> GroupWriter:
        if self._writer is None:
            raise RuntimeError("the store has not begun a session")
        return self._writer

    def note_meta(self, name: str, value: Json) -> None:
        """Record a fact about the run (durable with the next commit)."""
        self.writer.submit("set_meta", (name, dumps(KNOWN.json(value)).decode()))

    def record(self, row: StepRow) -> Awaitable[None]:
        """Done when the step is on disk."""
        self.writer.submit("add_steps", row.columns(), row.usage, account=row.account)
        return self.writer.committed()

    def start(self, number: int) -> None:
        """An item is being executed (durable with the next commit)."""
        self.writer.submit("start_items", (number, self._clock.now()))

    def settle(self, number: int, outcome: Outcome, on_commit: OnCommit) -> None:
        """An item has ended; ``on_commit`` is called once that is on disk. Raises TypeError or ValueError, with nothing written, if its
        record is no JSON."""
        row = (number, *outcome_row(outcome, self._clock.now()), None)
        if outcome.line is not None:
            self._name_output(outcome.line[0])
        self.writer.submit("settle_items", row, on_commit=on_commit)

    def put_back(self, number: int, *, attempt: int, failures: int, not_before: float = 0.0) -> Awaitable[None]:
        """An item is to be executed (again), not before a time of day."""
        self.writer.submit("put_back_items", (number, not_before, attempt, failures))
        return self.writer.committed()

    async def reopen(self, numbers: Sequence[int], why: str, *, fresh: bool = False) -> list[int]:
        """As ``reopen_items``, while items are executed. Not to be called again before it is done."""
        found = self.reader.reopenable(numbers)
        self.writer.submit_all(*self._rewriting(found), *self._reopening(found, why, fresh=fresh))
        await self.writer.committed()
        return found

    def request_cancel(self, numbers: Iterable[int], why: str) -> None:
        """Items that are executed end as cancelled, also if this process ends first, unless they come to their end before (durable with
        the next commit)."""
        text = _text(why)
        self.writer.submit_all(("request_cancel", [(number, text) for number in numbers]))

    def add_failure(self, number: int, attempt: int, failure: ItemError) -> None:
        self.writer.submit("add_failures", (number, attempt, self._clock.now(), failure.cause, _text(failure.message)))

    def end_attempt(self, number: int, attempt: int, reason: str) -> None:
        self.writer.submit("end_attempts", (number, attempt, self._clock.now(), _text(reason)))

    def mark_written(self, numbers: list[int], sizes: dict[str, int]) -> Awaitable[None]:
        """Lines are on disk: their items, and the sizes of their files in bytes."""
        self.writer.submit_all(
            ("mark_written", [(number,) for number in numbers]), ("set_output_sizes", [*sizes.items()])
        )
        return self.writer.committed()

    def beat(self) -> None:
        self.writer.submit("beat", (self._session, self._clock.now()))

    def note_order(self, given_by: str, command: str, details: Json) -> None:
        """As ``add_order`` (durable with the next commit)."""
        row = (self._clock.now(), given_by, command, dumps(KNOWN.json(details)).decode())
        self.writer.submit("add_orders", row)

    def pause(self) -> None:
        """The session is paused from now on, which is no work on the run."""
        self.writer.submit("begin_pause", (self._session, self._clock.now()))

    def go_on(self) -> None:
        """The session is not paused any more."""
        self.writer.submit("end_pause", (self._session, self._clock.now()))

    def _name_output(self, file: str) -> None:
        if file not in self._named_outputs:
            if len(self._named_outputs) >= NAMED_OUTPUTS:
                self._named_outputs.clear()
            self._named_outputs.add(file)
            self.writer.submit("add_outputs", (file,))

    async def end(self, ending: str) -> None:
        """End the session."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await writer.close()
            if writer.failure is None:
                now = self._clock.now()
                with storage_errors(self._path):
                    self._run("close_session", now, _text(ending), self._session)

    def close(self) -> None:
        """Give the run up to whoever wants it next."""
        self.reader.close()
        self._connection.close()
        self._commits.seal()
        self._lock.release()

    def _set_meta(self, name: str, value: Json) -> None:
        self._execute("set_meta", [(name, dumps(KNOWN.json(value)).decode())])

    def _release_running(self) -> None:
        if any(detail == Cause.CANCELLED and not ItemState(state).final for state, detail in self.reader.counts()):
            self._run("cancel_requested", self._clock.now())
        self._run("release_running")

    def _run(self, query: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(queries()[query], values)

    def _execute(self, query: str, rows: list[tuple[Any, ...]]) -> sqlite3.Cursor:
        values = [value for row in rows for value in row]
        return self._connection.execute(expanded(query, len(rows[0]), len(rows)), values)


def outcome_row(outcome: Outcome, time: float) -> tuple[Any, ...]:
    """An outcome in the order of the ``settle_items`` query, without the item's number."""
    return (
        outcome.state,
        outcome.reason,
        outcome.cause,
        None if outcome.message is None else _text(outcome.message),
        pack(outcome.record) if outcome.record else None,
        time,
        outcome.line[0] if outcome.line else None,
    )


def _text(message: str) -> str:
    """A message as the journal can hold it: without secrets, valid Unicode, of bounded length."""
    return without_surrogates(KNOWN.text(message)[:MAX_MESSAGE])


def _chunks_by_size(items: Iterable[PlannedItem]) -> Iterator[list[PlannedItem]]:
    """Chunks of items to be planned: so many at most, and of large ones fewer."""
    chunk: list[PlannedItem] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += item.size
        if len(chunk) == PLAN_CHUNK or size > PLAN_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _chunks(items: Iterable[_Element], size: int) -> Iterator[list[_Element]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
