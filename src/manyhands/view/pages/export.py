"""What the filters of a run's table of items find, as a file: CSV of the columns, JSON Lines of the items, or their keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, line_bytes
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.io.tables.csv import csv_lines
from manyhands.runs.listing import item_contents
from manyhands.runs.shown.blocks import Cell, Column
from manyhands.view.index.pool import Indexes
from manyhands.view.pages.item_table import (
    ShownItem,
    all_columns,
    applied_without_index,
    chosen_columns,
    columns_of,
    filters_of,
    pages_of_items,
    shown_items,
)
from manyhands.view.pages.page import Query, view_for
from manyhands.view.source import ShownRun, explained

FORMS = {"csv": "text/csv", "jsonl": "application/jsonl", "keys": "text/plain"}
"""What an export may be asked for as, and its media types."""
_WHY = Column("why", "why")
_MAX_NAME = 80


def export_name(run: str, form: str) -> str:
    """The name of the file, of characters that no system minds. ``run``: the name of the run's folder."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", run).strip("._-")[:_MAX_NAME] or "run"
    return f"{name}-keys.txt" if form == "keys" else f"{name}-items.{form}"


def export_parts(reader: JournalBrowser, run: ShownRun, indexes: Indexes, form: str, query: Query) -> Iterator[bytes]:
    """The file, a part for each page of items. ``form``: one of ``FORMS``; ``query``: filters and columns as of the table of items, by
    default all columns.

    Raises UserError, at its beginning, if the filters need an index that is not there (yet).
    """
    filters = filters_of(query)
    with explained(reader.folder), indexes.opened(run, reader) as (index, note):
        if index is None and filters != applied_without_index(filters):
            raise UserError(note or "these filters need an index of the run, and there is none")
        pages = pages_of_items(reader, index, filters)
        if form == "csv":
            yield from _csv(reader, columns_of(query), pages)
        elif form == "jsonl":
            yield from _jsonl(reader, pages)
        else:
            yield from _keys(pages)


def _keys(pages: Iterator[list[ItemRow]]) -> Iterator[bytes]:
    for rows in pages:
        yield b"".join(f"{_on_a_line(row.key)}\n".encode("utf-8", "replace") for row in rows)


def _csv(reader: JournalBrowser, wanted: str, pages: Iterator[list[ItemRow]]) -> Iterator[bytes]:
    view = view_for(reader)
    shown = (shown_items(reader, view, rows) for rows in pages)
    first = next(shown, [])
    columns = chosen_columns(all_columns(view), first, wanted) if wanted else all_columns(view)
    names = [each.name for column in columns for each in ((column, _WHY) if column.name == "state" else (column,))]
    every = chain([first], shown)
    yield b"".join(csv_lines(names, [_cells(item, columns) for item in next(every)], excel_safe=True))
    for items in every:
        lines = csv_lines(names, [_cells(item, columns) for item in items], excel_safe=True)
        next(lines)
        yield b"".join(lines)


def _cells(item: ShownItem, columns: Sequence[Column]) -> list[Json]:
    found: list[Json] = []
    for column in columns:
        cell = item.cells[column.name]
        found.append(_value(column, cell))
        if column.name == "state":
            found.append(cell.about)
    return found


def _value(column: Column, cell: Cell) -> Json:
    """The value of a cell: of a number, the number itself, as what is shown may be rounded."""
    if column.is_number and isinstance(cell.value, (int, float)):
        return cell.value
    return cell.text


def _jsonl(reader: JournalBrowser, pages: Iterator[list[ItemRow]]) -> Iterator[bytes]:
    view = view_for(reader)
    for rows in pages:
        found = zip(rows, shown_items(reader, view, rows), strict=True)
        yield b"".join(line_bytes({**item_contents(row, item.summary)}) + b"\n" for row, item in found)


def _on_a_line(key: str) -> str:
    """A key without line breaks, which would be taken for the end of it."""
    return " ".join(key.splitlines()) if len(key.splitlines()) > 1 else key
