"""Looking for what runs show by what people read: tables by their titles, cells by the labels of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.runs.shown.blocks import Block, Cell, Note, Section, Table
from manyhands.runs.shown.run_view import RunView
from tests.support.shown_blocks import parts


def rows_of(value: Any, title: str = "") -> list[dict[str, Cell]]:
    """The rows of the first table with that title, each by the labels of the columns. Raises StopIteration if there is none."""
    table = next(each for each in parts(value, Table) if each.title == title)
    return [dict(zip((column.label for column in table.columns), row, strict=True)) for row in table.rows]


def notes_of(value: Any) -> list[str]:
    """The texts of all notes."""
    return [note.text for note in parts(value, Note)]


def item_parts(view: RunView, key: str) -> list[Block]:
    """The parts of an item, by its key."""
    row = view.reader.item_by_key(key)
    assert row is not None
    return list(view.item_blocks(row, view.reader.steps(row.number, row.attempt)))


def page_parts(view: RunView, name: str, **query: str) -> list[Section]:
    """A page of the workload's own."""
    return list(view.page(name, query))


def texts(cells: Mapping[str, Cell]) -> dict[str, Any]:
    """The texts of cells."""
    return {name: cell.text for name, cell in cells.items()}
