"""Pages, counts, facets, series and statistics of a run's items by its index. Every query has a time within which it ends."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from manyhands.core.errors import ManyhandsError, UserError
from manyhands.engine.journal.reader import JournalReader
from manyhands.view.index.building import difference_of, is_behind
from manyhands.view.index.conditions import TEXT_ROW, USUAL_EFFORT, Condition, Effort, conditions
from manyhands.view.index.database import (
    BUILDING,
    COMPLETE,
    NoIndex,
    discard,
    get_state,
    note_use,
    open_to_read,
    stem_of,
    with_suffix,
)
from manyhands.view.index.filters import Cursor, Filters, Number
from manyhands.view.index.gathering import SLOT_SECONDS, seconds_of
from manyhands.view.index.results import Count, Facets, IndexedItem, Page, Point, Progress, Series, ToolFigures
from manyhands.view.index.sorting import Order, Part, found_by
from manyhands.view.index.writing import BUCKETS, parsed_call, parts_of

PAGE_SECONDS = 1.0
"""For a page of items, a series, statistics."""
COUNT_SECONDS = 0.2
"""For a count, and for facets: what was counted until then is given as "more than"."""
MAX_POINTS = 300
_WIDTHS = [seconds // SLOT_SECONDS for seconds in (5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 24 * 3600)]
"""Of points, in slots."""
MAX_PAGE = 1_000
_STEPS_BETWEEN_LOOKS = 2_000
"""Of SQLite's virtual machine, between two looks at the clock."""
_CHUNK = 5_000
_BUSY_MILLISECONDS = 200


class TookTooLong(UserError):
    """A query did not end within its time."""

    def __init__(self) -> None:
        super().__init__("this took too long; narrow it down with another filter, or sort in another way")


class BadText(UserError):
    """A text can't be searched for."""


class RunIndex:
    """The complete index of a run, open to be read. Used by one thread at a time.

    All of it raises NoIndex if the file is damaged; it is then removed, to be made again.
    """

    def __init__(self, stem: Path, connection: sqlite3.Connection, effort: Effort) -> None:
        self._effort = effort
        self._stem = stem
        self._connection = connection
        self._until = float("inf")
        self._connection.set_progress_handler(self._is_over, _STEPS_BETWEEN_LOOKS)

    @classmethod
    def open(cls, run_folder: Path, run_id: str, index_dir: Path, effort: Effort = USUAL_EFFORT) -> RunIndex | None:
        """The index of a run; None if there is none that is complete."""
        stem = stem_of(run_folder, run_id, index_dir)
        path = with_suffix(stem, COMPLETE)
        if not path.is_file():
            return None
        try:
            connection = open_to_read(path)
            connection.execute("PRAGMA cache_size = -8000")
            index = cls(stem, connection, effort)
            index.progress  # noqa: B018 - a damaged file is noticed here
        except (ManyhandsError, sqlite3.Error):
            return None
        note_use(stem)
        return index

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def is_behind(self, reader: JournalReader) -> bool:
        """Whether the journal has changed since the index was last brought to where it was: then a process has to be at work."""
        with self._within(PAGE_SECONDS), self._errors():
            return is_behind(self._connection, reader)

    def difference(self, reader: JournalReader) -> int:
        """How many items are in another state than in the index."""
        with self._within(PAGE_SECONDS), self._errors():
            return difference_of(self._connection, reader)

    @property
    def progress(self) -> Progress:
        """How far it is."""
        with self._within(PAGE_SECONDS):
            return _progress(self._connection, is_complete=True)

    def page(self, filters: Filters, cursor: Cursor | None = None, limit: int = 100) -> Page:
        """A page of the items that pass filters. Where fewer than a page come before a cursor it is the first page.

        Raises TookTooLong, BadText.
        """
        limit = min(max(1, limit), MAX_PAGE)
        with self._within(PAGE_SECONDS):
            found = conditions(filters, self._all, self._effort)
            if found is None:
                return Page([], None, None)
            is_backward = cursor is not None and cursor.side == "before"
            rows = self._rows(Order(filters), found, cursor, limit + 1)
            if is_backward and len(rows) < limit:
                cursor, is_backward = None, False
                rows = self._rows(Order(filters), found, cursor, limit + 1)
        is_more, rows = len(rows) > limit, rows[:limit]
        if is_backward:
            rows.reverse()
        after = Cursor("after", rows[-1][1], rows[-1][0]) if rows and (is_more or is_backward) else None
        before = Cursor("before", rows[0][1], rows[0][0]) if rows and cursor and (is_more or not is_backward) else None
        return Page([number for number, _ in rows], after, before)

    def count(self, filters: Filters) -> Count:
        """How many items pass filters, or that there are more than were counted within the time. Raises BadText."""
        with self._within(PAGE_SECONDS):
            found = conditions(filters, self._all, self._effort)
            total = self._total()
        if found is None:
            return Count(0, True)
        if not found:
            return Count(total, True)
        if len(found) == 1 and found[0].is_exact:
            return Count(found[0].items, True)
        items = 0
        try:
            for rows in self._chunks("1", found, total):
                items += len(rows)
        except TookTooLong:
            return Count(items, False)
        return Count(items, True)

    def facets(self, filters: Filters) -> Facets:
        """How the items that pass filters are distributed. Raises BadText."""
        with self._within(PAGE_SECONDS):
            found = conditions(filters, self._all, self._effort)
            total = self._total()
            if found == []:
                return self._all_facets()
            names = self._names()
        tally, is_exact = _Tally(), True
        columns = f"i.kind, i.labels, i.calls, min({BUCKETS - 1}, max(0, CAST(i.score * {BUCKETS} AS INTEGER)))"
        try:
            for rows in self._chunks(columns, found, total) if found else ():
                tally.add(rows)
        except TookTooLong:
            is_exact = False
        return tally.facets(names, is_exact)

    def series(self, max_points: int = MAX_POINTS) -> Series:
        """What happened from beginning to end, in at most so many points, two at the least. Raises TookTooLong."""
        with self._within(PAGE_SECONDS):
            # The first slot is of what has no time.
            begin, end = self._all("SELECT min(slot), max(slot) FROM slot WHERE slot > 0", ())[0]
            if begin is None:
                return Series(SLOT_SECONDS, [])
            width = _width(begin, end, max(2, max_points))
            rows = self._all(
                "SELECT slot / ?3, sum(finished), sum(completed), sum(failed), sum(failures), sum(tokens_in), sum(tokens_out), "
                "sum(cost) FROM slot WHERE slot BETWEEN ?1 AND ?2 GROUP BY 1",
                (begin, end, width),
            )
        found, seconds = {row[0]: row[1:] for row in rows}, SLOT_SECONDS * width
        nothing = (0, 0, 0, 0, 0, 0, 0.0)
        places = range(begin // width, end // width + 1)
        return Series(seconds, [Point(seconds * place, *found.get(place, nothing)) for place in places])

    def tools(self) -> list[ToolFigures]:
        """How each tool was used, the most used first. Raises TookTooLong."""
        with self._within(PAGE_SECONDS):
            rows = self._all(
                "SELECT id, name, items, calls, failures, failed_items FROM tool WHERE calls > 0 ORDER BY calls DESC, id",
                (),
            )
            buckets = self._all("SELECT tool, bucket, calls FROM tool_seconds ORDER BY tool, bucket", ())
        seconds: dict[int, list[tuple[int, int]]] = {}
        for tool, bucket, calls in buckets:
            seconds.setdefault(tool, []).append((bucket, calls))
        return [
            ToolFigures(*row[1:], *(_quantile(seconds.get(row[0], []), share) for share in (0.5, 0.95))) for row in rows
        ]

    def items(self, numbers: Sequence[int]) -> dict[int, IndexedItem]:
        """What the index knows of items, by their numbers; at most 1,000 of them. Raises TookTooLong."""
        asked = list(numbers[:MAX_PAGE])
        with self._within(PAGE_SECONDS):
            names = dict(self._all("SELECT id, name FROM tool", ()))
            rows = self._all(
                "SELECT number, position, state, detail, score, cost, tokens, tokens_out, turns, tools, tool_failures, seconds, finished, "
                f"coalesce(retries, 0) + 1, calls FROM item JOIN kind ON kind.id = kind WHERE number IN ({','.join('?' * len(asked))})",
                asked,
            )
        found = {}
        for row in rows:
            calls = (parsed_call(each) for each in parts_of(row[-1]))
            found[row[0]] = IndexedItem({names[tool]: (count, failed) for tool, count, failed in calls}, *row[:-1])
        return found

    def _rows(
        self, order: Order, found: Sequence[Condition], cursor: Cursor | None, limit: int
    ) -> list[tuple[int, Number | None]]:
        """(number, what is sorted by) of up to ``limit`` items; from a cursor that is ``before`` some, in the opposite order."""
        rows: list[tuple[int, Number | None]] = []
        for part in order.parts(cursor):
            if len(rows) < limit:
                rows += self._part(part, found, limit - len(rows))
        return rows

    def _part(self, part: Part, found: Sequence[Condition], limit: int) -> list[tuple[int, Number | None]]:
        rarest = found[0] if found else None
        if rarest is None or (len(found) == 1 and part.is_range_of(rarest)):
            return self._all(*part.sorted(found, limit))
        words = next((each for each in found if each.is_text and each is not rarest), None)
        if rarest.items <= self._effort.many:
            if words is None or rarest.items <= self._effort.few:
                return self._all(*part.fetched(found, rarest, limit))
            return self._met(part, found, rarest, words)[:limit]
        try:
            with self._within(self._effort.seconds if words is None else self._effort.seconds_for_words):
                return self._all(*part.sorted(found, limit))
        except TookTooLong:
            source = next((each for each in found if each.is_text), None)
            return self._all(*part.fetched(found, source, limit))

    def _met(
        self, part: Part, found: Sequence[Condition], rarest: Condition, words: Condition
    ) -> list[tuple[int, Number | None]]:
        """Of the items that meet one condition, those that also have words which many have: both are gone through once."""
        others = [each for each in found if each is not words]
        rows = {row[2]: (row[0], row[1]) for row in self._all(*part.fetched(others, rarest, None, f", {TEXT_ROW}"))}
        with self._errors():
            matching = self._connection.execute("SELECT rowid FROM words WHERE words MATCH ?", words.values)
            met = rows.keys() & chain.from_iterable(matching)
        return [row for text_row, row in rows.items() if text_row in met]

    def _chunks(self, columns: str, found: Sequence[Condition], total: int) -> Iterator[list[tuple[Any, ...]]]:
        """The columns of all items that meet conditions, within the time for counting."""
        slow = next((each for each in found if each.is_text), None)
        source = found[0] if found[0].items <= min(self._effort.many, total // 3) else slow
        query, values = _selected(columns, found, source)
        with self._within(COUNT_SECONDS), self._errors():
            cursor = self._connection.execute(query, values)
            while rows := cursor.fetchmany(_CHUNK):
                yield rows

    def _total(self) -> int:
        return int(self._all("SELECT coalesce(sum(items), 0) FROM kind", ())[0][0])

    def _names(self) -> _Names:
        kinds = {
            number: (state, detail) for number, state, detail in self._all("SELECT id, state, detail FROM kind", ())
        }
        labels = {number: (name, value) for number, name, value in self._all("SELECT id, name, value FROM label", ())}
        return _Names(kinds, labels, dict(self._all("SELECT id, name FROM tool", ())))

    def _all_facets(self) -> Facets:
        names, tally = self._names(), _Tally()
        tally.kinds.update(dict(self._all("SELECT id, items FROM kind WHERE items > 0", ())))
        tally.labels.update(dict(self._all("SELECT id, items FROM label WHERE items > 0", ())))
        tally.tools.update(dict(self._all("SELECT id, items FROM tool WHERE items > 0", ())))
        tally.scores.update(dict(self._all("SELECT bucket, items FROM score_bucket", ())))
        return tally.facets(names, True)

    def _all(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """What is queried inside ends within so many seconds."""
        before = self._until
        self._until = min(before, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._until = before

    def _is_over(self) -> int:
        return time.monotonic() > self._until

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "interrupted" in text:
                raise TookTooLong from None
            if "fts5:" in text:
                raise BadText("this text can't be searched for") from error
            raise NoIndex(f"the index can't be read ({text})") from error
        except sqlite3.DatabaseError as error:
            discard(self._stem)
            raise NoIndex(f"the index is damaged ({error}) and will be made again") from error


@dataclass(frozen=True, slots=True)
class _Names:
    kinds: Mapping[int, tuple[str, str]]
    labels: Mapping[int, tuple[str, str]]
    tools: Mapping[int, str]


class _Tally:
    """Items counted by ids."""

    def __init__(self) -> None:
        self.kinds: Counter[int] = Counter()
        self.labels: Counter[int] = Counter()
        self.tools: Counter[int] = Counter()
        self.scores: Counter[int | None] = Counter()

    def add(self, rows: Iterable[tuple[int, str, str, int | None]]) -> None:
        """Count items: kind, labels, calls, range of the score."""
        kinds, labels, calls, scores = zip(*rows, strict=True)
        self.kinds.update(kinds)
        self.scores.update(scores)
        for text, items in Counter(labels).items():
            for label in parts_of(text):
                self.labels[int(label)] += items
        for text, items in Counter(calls).items():
            for call in parts_of(text):
                self.tools[int(call.partition(":")[0])] += items

    def facets(self, names: _Names, is_exact: bool) -> Facets:
        """With names."""
        labels: dict[str, dict[str, int]] = {}
        for label, items in self.labels.most_common():
            name, value = names.labels[label]
            labels.setdefault(name, {})[value] = items
        return Facets(
            {names.kinds[kind]: items for kind, items in self.kinds.most_common()},
            labels,
            {names.tools[tool]: items for tool, items in self.tools.most_common()},
            [self.scores[bucket] for bucket in range(BUCKETS)],
            is_exact,
        )


def progress_of(run_folder: Path, run_id: str, index_dir: Path) -> Progress | None:
    """How far the index of a run is, also while it is being made; None if nothing is known of it (yet)."""
    stem = stem_of(run_folder, run_id, index_dir)
    for suffix in (COMPLETE, BUILDING):
        path = with_suffix(stem, suffix)
        if path.is_file():
            try:
                connection = open_to_read(path)
                try:
                    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
                    return _progress(connection, is_complete=suffix == COMPLETE)
                finally:
                    connection.close()
            except (sqlite3.Error, ManyhandsError, TypeError):  # it is just being made, or written
                continue
    return None


def _progress(connection: sqlite3.Connection, *, is_complete: bool) -> Progress:
    at = get_state(connection, "looked_at") or get_state(connection, "started_at")
    (items,) = connection.execute("SELECT coalesce(sum(items), 0) FROM kind").fetchone()
    total = items if is_complete else get_state(connection, "total")
    return Progress(
        is_complete,
        items,
        total,
        float(at),
        get_state(connection, "difference", 0),
    )


def _selected(columns: str, found: Sequence[Condition], source: Condition | None) -> tuple[str, list[Any]]:
    begin, wheres, values = found_by(found, source)
    return f"SELECT {columns} FROM {begin} WHERE {' AND '.join(wheres)}", values


def _width(begin: int, end: int, most: int) -> int:
    """How many slots make one point, so that there are at most so many (at least two): if possible, a time that people count in."""
    usual = next((width for width in _WIDTHS if end // width - begin // width < most), None)
    return usual or -(-(end - begin) // (most - 1))


def _quantile(buckets: Sequence[tuple[int, int]], share: float) -> float | None:
    """The value in ascending buckets (bucket, calls) that so large a share of the calls does not exceed."""
    left = share * sum(calls for _, calls in buckets)
    for bucket, calls in buckets:
        left -= calls
        if left <= 0:
            return seconds_of(bucket)
    return None
