"""Making the index of a run, and keeping it up while the run goes on. The journal is only read, in short reads."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from manyhands.core.jsonio import Json, canonical
from manyhands.engine.journal.lock import META
from manyhands.engine.journal.reader import ItemMark, JournalEnds, JournalReader
from manyhands.view.index.database import (
    BUILDING,
    VERSION,
    get_state,
    new_database,
    open_to_write,
    publish,
    run_script,
    set_state,
    synced,
    with_suffix,
)
from manyhands.view.index.gathering import Events, Gatherer
from manyhands.view.index.writing import Writer

PAGE = 1_000
"""Items that are read at once at most, and steps and failures behind which one looks for changed items."""
_FIRST_PAGE = 50
_PAGE_SECONDS = (0.03, 0.08)
"""Pages that take less than the first are made larger, those that take more than the second smaller."""
_COMMIT = 40_000
"""Items after which what was built is committed."""
WINDOW = 20_000
"""Items that are compared with the index at once."""
_RESCAN_SHARE = 30
"""Going through all items again and again takes no more than this part of the time."""
_RESCAN_SECONDS = 2.0

Totals: TypeAlias = dict[tuple[str, str], int]
"""Items by state and detail."""


class Outdated(Exception):
    """The index is not of this journal, or the journal is not what it was: it has to be made again."""


def identity_of(reader: JournalReader) -> dict[str, Json]:
    """What must be the same for an index to be kept: of which run it is, how items were planned, by which settings they are judged."""
    settings = canonical([reader.meta("spec"), reader.meta("planned"), reader.meta("generation")])
    return {
        "version": VERSION,
        "run_id": str(reader.meta("run_id")),
        "settings": blake2b(settings, digest_size=16).hexdigest(),
    }


def is_behind(connection: sqlite3.Connection, reader: JournalReader) -> bool:
    """Whether the journal has changed since its index was last brought to where it was, or is not that of the index."""
    facts = {**identity_of(reader), "commits": reader.meta(META, 0), "ends": list(reader.ends())}
    return (
        any(get_state(connection, name) != value for name, value in facts.items())
        or difference_of(connection, reader) > 0
    )


def difference_of(connection: sqlite3.Connection, reader: JournalReader) -> int:
    """How many items are in another state than in the index."""
    rows = connection.execute("SELECT state, detail, items FROM kind WHERE items > 0")
    ours: Totals = {(state, detail): items for state, detail, items in rows}
    theirs = reader.counts()
    return sum(abs(ours.get(kind, 0) - theirs.get(kind, 0)) for kind in ours.keys() | theirs.keys()) // 2


def build(reader: JournalReader, stem: Path, page_done: Callable[[], None]) -> None:
    """Make an index from nothing, and put it in place of the one that was there.

    ``page_done`` is called after each page of items and may wait, or raise to give up.

    Raises ``sqlite3.Error`` if the index can't be written, and what the reader raises.
    """
    connection = new_database(stem)
    try:
        _Building(reader, connection, with_suffix(stem, BUILDING), page_done).run()
        publish(connection, stem)
    finally:
        connection.close()


class _Building:
    """One building of an index."""

    def __init__(
        self, reader: JournalReader, connection: sqlite3.Connection, path: Path, page_done: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._connection = connection
        self._path = path
        self._page_done = page_done

    def run(self) -> None:
        """All of it, up to the indexes of the tables."""
        reader = self._reader
        facts = {**identity_of(reader), "commits": reader.meta(META, 0)}
        ends = reader.ends()
        total = sum(reader.counts().values())
        set_state(self._connection, **facts, started_at=time.time(), done=0, total=total)
        self._add_items(ends, total)
        run_script(self._connection, "finishing.sql")
        synced(self._path)
        set_state(self._connection, **_watermarks(reader, ends), difference=0, looked_at=time.time())

    def _add_items(self, ends: JournalEnds, total: int) -> None:
        gatherer, writer, events = Gatherer(self._reader), Writer(self._connection), Events()
        _add_failures(self._reader, 0, ends.failure, events)
        behind, size, done, committed = 0, _FIRST_PAGE, 0, 0
        while True:
            began = time.perf_counter()
            entries = gatherer.page(behind, ends.item, size, (0, ends.step), events)
            if not entries:
                break
            took = time.perf_counter() - began
            writer.add(entries)
            behind, done = entries[-1].number, done + len(entries)
            if done - committed >= _COMMIT:
                writer.commit(events, done=done, total=max(done, total))
                events, committed = Events(), done
                synced(self._path)
            size = _next_size(size, took)
            self._page_done()
        writer.commit(events, done=done, total=done)
        synced(self._path)


class Keeper:
    """Keeps a complete index up. ``look`` brings it to where the journal is."""

    def __init__(self, reader: JournalReader, stem: Path) -> None:
        """Raises Outdated if the index has to be made again, ``sqlite3.Error`` if it can't be used."""
        self._reader = reader
        self._connection = open_to_write(stem)
        try:
            self._identity = identity_of(reader)
            self._check()
            self._gatherer = Gatherer(reader)
            self._writer = Writer(self._connection)
        except BaseException:
            self.close()
            raise
        self._differed = False
        self._rescanned_at = float("-inf")
        self._rescan_took = 0.0

    @property
    def is_behind(self) -> bool:
        """Whether the journal has changed since the last look, in this process or an earlier one."""
        return is_behind(self._connection, self._reader)

    def close(self) -> None:
        """Idempotent."""
        with suppress(sqlite3.Error):
            self._connection.close()

    def look(self, *, thorough: bool = False) -> int:
        """Take in what changed. Returns how many items are still in another state than in the index, which is so for a moment while the run
        goes on. ``thorough``: go through all items.

        Raises Outdated, ``sqlite3.Error`` if the index can't be written, and what the reader raises.
        """
        try:
            return self._look(thorough)
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
                self._writer = Writer(self._connection)
            raise

    def _look(self, thorough: bool) -> int:
        self._check()
        ends = self._reader.ends()
        commits = self._reader.meta(META, 0)
        known = get_state(self._connection, "ends")
        before = JournalEnds(*known)
        self._take_in_new(ends)
        self._take_in_steps(before.step, ends.step)
        self._take_in_failures(before.failure, ends.failure)
        self._take_in_running()
        difference = difference_of(self._connection, self._reader)
        happened = (before.order, *before[4:]) != (ends.order, *ends[4:])  # an order, or a session that began or ended
        if thorough or happened or self._may_rescan(difference):
            self._rescan()
            difference = difference_of(self._connection, self._reader)
        self._differed = difference > 0
        facts = {
            "commits": commits,
            "difference": difference,
            "looked_at": time.time(),
            **_watermarks(self._reader, ends),
        }
        self._writer.commit(**facts)
        return difference

    def _check(self) -> None:
        """Raises Outdated if the index is not of this journal as it is now."""
        recorded = {name: get_state(self._connection, name) for name in self._identity}
        if recorded != identity_of(self._reader):
            raise Outdated
        stamp = get_state(self._connection, "stamp")
        found = self._reader.step_stamp(stamp[0]) if stamp else None
        if self._reader.meta(META, 0) < get_state(self._connection, "commits", 0) or (
            stamp and [*stamp[1:]] != [*(found or ())]
        ):
            raise Outdated

    def _take_in_new(self, ends: JournalEnds) -> None:
        (last,) = self._connection.execute("SELECT coalesce(max(number), 0) FROM item").fetchone()
        while last < ends.item:
            entries = self._gatherer.page(last, ends.item, PAGE, (0, 0), Events())
            if not entries:
                return
            self._writer.add(entries)
            self._writer.commit()
            last = entries[-1].number

    def _take_in_steps(self, behind: int, last: int) -> None:
        """What changed by steps. Each page is committed with how far it goes, so that no step is counted twice."""
        while behind < last and (rows := self._reader.steps_recorded(behind, PAGE)):
            upto, events = min(last, rows[-1][0]), Events()
            self._take_in({item for step, item in rows if step <= upto}, (behind, upto), events)
            ends = JournalEnds(*get_state(self._connection, "ends"))._replace(step=upto)
            self._writer.commit(events, **_watermarks(self._reader, ends))
            behind = upto

    def _take_in_failures(self, behind: int, last: int) -> None:
        events = Events()
        numbers = _add_failures(self._reader, behind, last, events)
        self._take_in(numbers, (0, 0), Events())
        ends = JournalEnds(*get_state(self._connection, "ends"))._replace(failure=last)
        self._writer.commit(events, ends=list(ends))

    def _take_in_running(self) -> None:
        """Items that are or were in progress, and have come to something else."""
        running = "SELECT number FROM item WHERE kind IN (SELECT id FROM kind WHERE state = 'running')"
        numbers = {number for (number,) in self._connection.execute(running)} | {*self._reader.running_items()}
        changed = []
        for number in sorted(numbers):
            marks = self._reader.item_marks(number - 1, 1)
            changed += _changed(marks, self._known(number, number))
        self._take_in(changed, (0, 0), Events())

    def _rescan(self) -> None:
        """Compare all items with the index."""
        began, behind = time.monotonic(), 0
        while marks := self._reader.item_marks(behind, WINDOW):
            self._take_in(_changed(marks, self._known(marks[0].number, marks[-1].number)), (0, 0), Events())
            self._writer.commit()
            behind = marks[-1].number
        self._rescanned_at = time.monotonic()
        self._rescan_took = self._rescanned_at - began

    def _may_rescan(self, difference: int) -> bool:
        pause = max(_RESCAN_SECONDS, _RESCAN_SHARE * self._rescan_took)
        return difference > 0 and self._differed and time.monotonic() - self._rescanned_at >= pause

    def _take_in(self, numbers: Iterable[int], steps: tuple[int, int], events: Events) -> None:
        entries = self._gatherer.entries(numbers, steps, events)
        while some := list(islice(entries, PAGE)):
            self._writer.replace(some)

    def _known(self, first: int, last: int) -> dict[int, ItemMark]:
        rows = self._connection.execute(
            "SELECT number, position, state, detail, coalesce(retries, 0) + 1, finished FROM item JOIN kind ON kind.id = item.kind "
            "WHERE number BETWEEN ? AND ?",
            (first, last),
        )
        return {row[0]: ItemMark._make(row) for row in rows}


def _changed(marks: Sequence[ItemMark], known: dict[int, ItemMark]) -> list[int]:
    """The numbers of items that are not as the index has them."""
    return [mark.number for mark in marks if known.get(mark.number) != mark]


def _add_failures(reader: JournalReader, behind: int, last: int, events: Events) -> set[int]:
    """Count failures behind an id, up to the last one. Returns the items that had them."""
    numbers: set[int] = set()
    while rows := reader.failures_recorded(behind, last, PAGE):
        for _, number, at in rows:
            events.at(at)[3] += 1
            numbers.add(number)
        behind = rows[-1][0]
    return numbers


def _watermarks(reader: JournalReader, ends: JournalEnds) -> dict[str, Json]:
    """How far the journal was read, and by what the last step is known again."""
    stamp = reader.step_stamp(ends.step)
    return {"ends": list(ends), "stamp": None if stamp is None else [ends.step, *stamp]}


def _next_size(size: int, took: float) -> int:
    """How many items are read next, after so many took so many seconds."""
    least, most = _PAGE_SECONDS
    if took > most:
        return max(1, size // 2)
    return min(PAGE, size * 2) if took < least else size
