"""Group commit: many writers on the event loop, one thread, one fsync for all that queued up meanwhile.

The thread commits a batch; whatever is submitted during its fsync forms the next batch. Each submitter awaits the commit
of its own batch. Rows of one kind go into multi-row statements, because a statement per row would hand the interpreter's
lock to and fro for each of them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.errors import StorageError
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.journal.database import expanded, queries, storage_error, transaction
from manyhands.engine.journal.lock import META, Commits
from manyhands.io.files import Patience

ORDER = (
    "set_meta",
    "add_outputs",
    "start_items",
    "end_attempts",
    "add_failures",
    "add_steps",
    "request_cancel",
    "settle_items",
    "put_back_items",
    "keep_outcomes",
    "give_up_reopened",
    "reopen_items",
    "add_orders",
    "mark_written",
    "set_output_sizes",
    "beat",
    "begin_pause",
    "end_pause",
)
"""The order of kinds within a batch. It never reorders two writes about one item that depend on each other: an item's writer awaits
its step before it settles, and its end before it is claimed again."""
LAZY_SECONDS = 0.05
"""How long rows that nobody waits for are held back, to share the commit of one that somebody waits for."""
_AGAIN = 0.1
"""Seconds until a commit that a full disk has stopped is tried again."""
CHUNKS = (256, 64, 16)
"""Rows written by one statement: so many, or whatever is left. The statements stay prepared, so there must be few kinds of them;
but each has to wait for the interpreter's lock when it is done, which is dear while the event loop is busy."""
Row = Sequence[Any]
OnCommit = Callable[[StorageError | None], None]
"""Called with why a commit failed, or None. Must not raise."""


@dataclass(slots=True)
class _Batch:
    rows: dict[str, list[Row]] = field(default_factory=dict)
    usage: Usage = ZERO
    accounts: dict[str, Usage] = field(default_factory=dict)
    waiters: list[OnCommit] = field(default_factory=list)


class GroupWriter:
    """Writes to one database from one thread. Made, used and closed on one event loop."""

    def __init__(self, connection: sqlite3.Connection, path: Path, noted: Commits) -> None:
        self._noted = noted
        self._connection = connection
        self._path = path
        self._patience = Patience(path.parent)
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._asleep = False
        self._dozing = False
        """What the thread waits for: any row, or somebody who waits for the rows that there are. (Telling one that works takes long.)"""
        self._batch = _Batch()
        self._closing = False
        self._failure: Exception | None = None
        self.commits = 0
        self._thread = threading.Thread(target=self._work, name="manyhands-journal", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> Exception | None:
        """Why nothing can be written any more, if so."""
        return self._failure

    def submit(
        self, kind: str, row: Row, usage: Usage = ZERO, on_commit: OnCommit | None = None, *, account: str = ""
    ) -> None:
        """Queue a row, and what was used with it, which is the run's, and an account's if one is named.

        It is durable when a ``committed`` taken afterwards is done, or when ``on_commit`` is called (see ``when_committed``).
        """
        if on_commit is not None and self._failure is not None:
            self.when_committed(on_commit)
            return
        with self._lock:
            self._rows(kind).append(row)
            if usage is not ZERO:
                self._batch.usage += usage
                if account:
                    self._batch.accounts[account] = self._batch.accounts.get(account, ZERO) + usage
            if on_commit is not None:
                self._batch.waiters.append(on_commit)
            if self._asleep or (on_commit is not None and self._dozing):
                self._condition.notify()

    def submit_all(self, *kinds: tuple[str, Sequence[Row]]) -> None:
        """Queue many rows of several kinds, which are written by the same commit."""
        with self._lock:
            for kind, rows in kinds:
                if rows:
                    self._rows(kind).extend(rows)
            if self._asleep:
                self._condition.notify()

    def _rows(self, kind: str) -> list[Row]:
        rows = self._batch.rows.get(kind)
        if rows is None:
            rows = self._batch.rows[kind] = []
        return rows

    def committed(self) -> asyncio.Future[None]:
        """A future that is done when everything submitted so far is on disk.

        It raises StorageError if that failed, as it then will for everything later.
        """
        future = self._loop.create_future()

        def done(failure: StorageError | None) -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        self.when_committed(done)
        return future

    def when_committed(self, on_commit: OnCommit) -> None:
        """``on_commit`` is called on the event loop when everything submitted so far is on disk, or can't be written. Spares thousands of
        waiters a future each."""
        if self._failure is not None:
            self._loop.call_soon(on_commit, StorageError(str(self._failure)))
            return
        with self._lock:
            self._batch.waiters.append(on_commit)
            if self._asleep or self._dozing:
                self._condition.notify()

    async def close(self) -> None:
        """Commit what is queued, then end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while True:
            with self._condition:
                self._wait_for_work()
                batch, self._batch = self._batch, _Batch()
                if not (batch.rows or batch.waiters):
                    return
            while not self._commit(batch):
                time.sleep(_AGAIN)

    def _wait_for_work(self) -> None:
        while not (self._batch.rows or self._batch.waiters or self._closing):
            self._asleep = True
            self._condition.wait()
            self._asleep = False
        if not (self._batch.waiters or self._closing):
            self._dozing = True
            self._condition.wait(LAZY_SECONDS)
            self._dozing = False

    def _commit(self, batch: _Batch) -> bool:
        """False if it is worth trying again."""
        try:
            if self._failure is None and batch.rows:
                fold_starts(batch.rows)
                with transaction(self._connection):
                    for kind in ORDER:
                        if kind in batch.rows:
                            self._write(kind, batch.rows[kind])
                    if batch.usage is not ZERO:
                        self._connection.execute(queries()["add_usage"], usage_row(batch.usage))
                    for account, usage in batch.accounts.items():
                        self._connection.execute(queries()["add_to_account"], (account, *usage_row(usage)))
                    self._connection.execute(expanded("set_meta", 2, 1), (META, str(self._noted.count + 1)))
                self._noted.note(self._noted.count + 1)
                self.commits += 1
                self._patience.over()
        except Exception as error:  # noqa: BLE001 - a thread that died of anything would leave everyone waiting for ever
            if self._undone() and self._patience.worth_waiting(error):
                return False
            self._failure = storage_error(self._path, error)
        if batch.waiters and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_resolve, batch.waiters, self._failure)
        return True

    def _undone(self) -> bool:
        """Whether nothing of a transaction that failed is left."""
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        return not self._connection.in_transaction

    def _write(self, kind: str, rows: list[Row]) -> None:
        columns, start = len(rows[0]), 0
        while left := len(rows) - start:
            size = next((size for size in CHUNKS if size <= left), left)
            chunk = rows[start : start + size]
            self._connection.execute(expanded(kind, columns, size), [value for row in chunk for value in row])
            start += size


def fold_starts(rows: dict[str, list[Row]]) -> None:
    """An item that was begun and has ended since the last commit is written once: a row less for each of many, and no index that holds
    it for an instant."""
    starts, ends = rows.get("start_items"), rows.get("settle_items")
    if starts is None or ends is None:
        return
    begun: dict[int, float] = {row[0]: row[1] for row in starts}
    rows["settle_items"] = [(*end[:-1], begun.pop(end[0], end[-1])) for end in ends]
    if begun:
        rows["start_items"] = list(begun.items())
    else:
        del rows["start_items"]


def usage_row(usage: Usage) -> tuple[Any, ...]:
    """A usage in the order of the ``usage`` table's columns."""
    return (
        usage.calls,
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        usage.cost,
        usage.unpriced_calls,
        usage.simulated_calls,
    )


def _resolve(waiters: list[OnCommit], failure: Exception | None) -> None:
    for on_commit in waiters:
        on_commit(None if failure is None else StorageError(str(failure)))
