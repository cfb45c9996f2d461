"""A job's table read again after it was edited: which rows are new, changed or removed, and which are as they were.

A row is what it was if its cells are, wherever it stands now; empty cells don't count, so that a new column changes only rows that have
something in it. A row with other cells is a changed one where the id column says so; without an id, where it follows the same row as
before. What is compared lies in a temporary database, so that memory does not grow with the rows.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, canonical, without_surrogates
from manyhands.core.redaction import KNOWN
from manyhands.engine.contract import BEHIND_INPUT, ItemRow, PlannedItem
from manyhands.workloads.csv_jobs.rows.planning import ItemIds, JobRow

EDITED = "the row was changed in the table"
"""Why a changed row gets a fresh attempt."""
_SETTINGS = ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "PRAGMA temp_store = FILE", "BEGIN")
_TABLES = (
    "CREATE TABLE old (item INTEGER PRIMARY KEY, key TEXT, source TEXT, content BLOB, position INTEGER)",
    "CREATE TABLE new (row INTEGER PRIMARY KEY, source TEXT, content BLOB)",
    "CREATE TABLE pairs (row INTEGER PRIMARY KEY, item INTEGER UNIQUE, changed INTEGER)",
)
_PAIR = """
WITH o AS (SELECT item, source, content, row_number() OVER (PARTITION BY {by} ORDER BY position) AS nth FROM old
           WHERE item NOT IN (SELECT item FROM pairs)),
     n AS (SELECT row, source, content, row_number() OVER (PARTITION BY {by} ORDER BY row) AS nth FROM new
           WHERE row NOT IN (SELECT row FROM pairs))
INSERT INTO pairs SELECT n.row, o.item, {changed} FROM n JOIN o ON {same} AND n.nth = o.nth
"""
_PAIR_EQUAL = _PAIR.format(by="source, content", same="n.content = o.content AND n.source IS o.source", changed=0)
_PAIR_BY_ID = _PAIR.format(by="source", same="n.source = o.source", changed=1)
_IN_ORDER = """
SELECT new.row, new.source, old.position FROM new LEFT JOIN pairs ON pairs.row = new.row LEFT JOIN old ON old.item = pairs.item
WHERE new.row > ? ORDER BY new.row LIMIT 1000
"""
_NEXT = "SELECT item, source, position FROM old WHERE position > ? AND position < ? ORDER BY position LIMIT 1"
_FOUND = """
SELECT new.content, old.key, pairs.changed FROM new LEFT JOIN pairs ON pairs.row = new.row LEFT JOIN old ON old.item = pairs.item
ORDER BY new.row
"""
_COUNTS = f"""
SELECT count(*) FILTER (WHERE pairs.item IS NULL OR (old.position >= {BEHIND_INPUT} AND NOT changed)),
       count(*) FILTER (WHERE changed),
       (SELECT count(*) FROM old WHERE position < {BEHIND_INPUT} AND item NOT IN (SELECT item FROM pairs)),
       count(*) FILTER (WHERE old.position < {BEHIND_INPUT} AND NOT changed)
FROM new LEFT JOIN pairs ON pairs.row = new.row LEFT JOIN old ON old.item = pairs.item
"""


@dataclass(frozen=True, slots=True)
class Changes:
    """How a table differs from what the job has of it, in rows."""

    new: int
    changed: int
    removed: int
    unchanged: int

    def __str__(self) -> str:
        return f"{self.new:,} new, {self.changed:,} changed, {self.removed:,} removed, {self.unchanged:,} unchanged"


class TableUpdate:
    """Compares a table with the items of a job. Made by ``of``; must be closed."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (*_SETTINGS, *_TABLES):
            self._database.execute(statement)
        self._ids = ItemIds(from_column=True)
        self._known = 0

    @classmethod
    def of(
        cls, items: Iterable[ItemRow], headers: Sequence[str], rows: Iterable[PlannedItem], new_headers: Sequence[str]
    ) -> Self:
        """``items``: all that the job has, their cells under ``headers``; ``rows``: the table as it is planned now, under ``new_headers``.
        Raises what they raise."""
        update = cls()
        try:
            update._read_items(items, headers)
            update._read_rows(rows, new_headers)
            update._pair()
        except BaseException:
            update.close()
            raise
        return update

    def changes(self) -> Changes:
        """The rows by what became of them."""
        return Changes(*self._database.execute(_COUNTS).fetchone())

    def plan(self, rows: Iterable[PlannedItem], new_headers: Sequence[str]) -> Iterator[PlannedItem]:
        """The items of the job from now on. ``rows``: the table, read once more.

        Raises UserError if it has changed since it was compared.
        """
        found = self._database.execute(_FOUND)
        for row in rows:
            content, key, changed = found.fetchone() or (None, None, None)
            if content != _content(JobRow.of_payload(row.payload), new_headers):
                raise UserError("the table was changed while it was read; update the job again")
            if key is None:
                yield replace(row, key=self._new_key(JobRow.of_payload(row.payload)))
            else:
                yield replace(row, key=key, afresh=EDITED if changed else None)
        if found.fetchone() is not None:
            raise UserError("the table was changed while it was read; update the job again")

    def close(self) -> None:
        """Forget everything. Idempotent."""
        self._database.close()
        self._ids.close()

    def _new_key(self, row: JobRow) -> str:
        if row.source_id is None:
            self._known += 1
        return self._ids.next(row.source_id, self._known - 1)

    def _read_items(self, items: Iterable[ItemRow], headers: Sequence[str]) -> None:
        for item in items:
            row = JobRow.of(item.item)
            self._known += 1
            self._ids.take(item.key)
            values = (item.number, item.key, _source(row), _content(row, headers), item.position)
            self._database.execute("INSERT INTO old VALUES (?, ?, ?, ?, ?)", values)
        self._database.execute("CREATE INDEX old_position ON old (position)")

    def _read_rows(self, rows: Iterable[PlannedItem], headers: Sequence[str]) -> None:
        for number, planned in enumerate(rows):
            row = JobRow.of_payload(planned.payload)
            values = (number, _source(row), _content(row, headers))
            self._database.execute("INSERT INTO new VALUES (?, ?, ?)", values)

    def _pair(self) -> None:
        self._database.execute(_PAIR_EQUAL)
        self._database.execute(_PAIR_BY_ID)
        behind = number = -1
        while rows := self._database.execute(
            _IN_ORDER, (number,)
        ).fetchall():  # pairing a row changes nothing about later ones
            for number, source, position in rows:
                if position is not None:
                    behind = position if position < BEHIND_INPUT else behind  # a row that is back follows none
                elif source is None:
                    behind = self._pair_with_next(number, behind)

    def _pair_with_next(self, number: int, behind: int) -> int:
        """Pair a row without an id with the item behind a position, if that has no row of its own; the position to go on from."""
        following = self._database.execute(_NEXT, (behind, BEHIND_INPUT)).fetchone()
        if following is None or following[1] is not None:
            return behind
        item, _, position = following
        paired = self._database.execute("INSERT OR IGNORE INTO pairs VALUES (?, ?, 1)", (number, item))
        return int(position) if paired.rowcount else behind


def _source(row: JobRow) -> str | None:
    return None if row.source_id is None else KNOWN.text(without_surrogates(row.source_id))


def _content(row: JobRow, headers: Sequence[str]) -> bytes:
    """What distinguishes a row from others: its cells by column, but for empty ones, and whether it can be used. Without secrets, which the
    job does not have."""
    cells = {name: cell for name, cell in zip(headers, row.cells, strict=False) if not _is_empty(cell)}
    return hashlib.blake2b(canonical(KNOWN.json([row.problem, cells])), digest_size=16).digest()


def _is_empty(cell: Json) -> bool:
    return cell is None or cell == ""
