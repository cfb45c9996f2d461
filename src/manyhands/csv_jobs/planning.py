"""A table's rows as items to be performed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.csv_jobs.item_ids import ItemIds, source_id_of
from manyhands.csv_jobs.rows import BAD_ROW, JobRow
from manyhands.csv_jobs.table import RawRow, Table, at, known_columns, shown
from manyhands.engine.workload import PlannedItem

SHOWN_BAD_ROWS = 20


def plan_rows(table: Table, id_column: str | None, on_bad_row: Literal["fail", "skip"]) -> Iterator[PlannedItem]:
    """The rows of a table in order, streamed, each with its id as key and a ``JobRow`` as payload.

    ``skip``: a bad row comes as an item that ended as discarded. ``fail``: from the first bad row on no more items come, and at the end of
    the table UserError is raised, with a line for each of the first 20 bad rows.

    Raises UserError at once if there is no such id column, and while iterating if the rest of the table can't be read.
    """
    place = None if id_column is None else id_place(id_column, table.info.headers)
    return _items(table, table.rows() if on_bad_row == "skip" else _good_rows(table), place)


def id_place(name: str, headers: Sequence[str]) -> int:
    """The number of the id column, from 0. Raises UserError if there is none of exactly that name."""
    if name not in headers:
        raise UserError(f"id_column {shown(name)} was not found in csv headers{known_columns(name, headers)}")
    return headers.index(name)


def _items(table: Table, rows: Iterator[RawRow], place: int | None) -> Iterator[PlannedItem]:
    width, unit = len(table.info.headers), table.unit
    with ItemIds(from_column=place is not None) as ids:
        for index, (line, cells, problem) in enumerate(rows):
            value = None if place is None or place >= len(cells) else cells[place]
            source_id = None if value is None else source_id_of(value)
            key = ids.next(source_id, index)
            if problem is None:
                yield PlannedItem(key, JobRow(index, line, source_id, tuple(cells)).to_json())
                continue
            whole = (*cells[:width], *[None] * (width - len(cells)))
            outcome = Outcome(ItemState.DISCARDED, reason=BAD_ROW, message=f"{unit} {line}: {problem}")
            yield PlannedItem(key, JobRow(index, line, source_id, whole, problem).to_json(), outcome)


def _good_rows(table: Table) -> Iterator[RawRow]:
    """The rows before the first bad one. Raises UserError, naming the bad ones, if there are any."""
    lines: list[str] = []
    count = 0
    try:
        for row in table.rows():
            if row.problem is not None:
                count += 1
                if count <= SHOWN_BAD_ROWS:
                    lines.append(at(table.path, row.line, row.problem, table.unit))
            elif not count:
                yield row
    except UserError as error:
        if not count:
            raise
        raise _bad_rows(lines, count, str(error)) from error
    if count:
        raise _bad_rows(lines, count, "(on_bad_row=skip leaves such rows out)")


def _bad_rows(lines: list[str], count: int, last: str) -> UserError:
    more = [f"… and {count - len(lines)} more"] if count > len(lines) else []
    return UserError("\n".join([*lines, *more, last]))
