"""What pages show, for tests: the parts of sections, and all text in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.runs.shown.blocks import Block, Cell, Facts, Link, Note, Section, Table, block_json
from manyhands.runs.shown.run_view import RunView, view_of

T = TypeVar("T")


@contextmanager
def viewed(folder: Path) -> Iterator[RunView]:
    """What there is to see of the run in a folder."""
    with closing(JournalReader(folder)) as reader:
        yield view_of(reader)


@contextmanager
def browsed(folder: Path) -> Iterator[RunView]:
    """The same as the pages of the web app are given it, which show what can be read of a damaged run."""
    with closing(JournalBrowser(folder)) as reader:
        yield view_of(reader)


def damage(folder: Path, number: int, column: str = "record") -> None:
    """Make what a column of an item holds unreadable: its ``payload`` or its ``record``."""
    with closing(sqlite3.connect(folder / JOURNAL)) as journal, journal:
        journal.execute(f"UPDATE items SET {column} = ? WHERE number = ?", (b"zdamaged", number))


def parts(value: Any, kind: type[T]) -> list[T]:
    """All parts of a kind in blocks or sections, in order, those within others too."""
    return [part for part in _walk(value) if isinstance(part, kind)]


def text_in(value: Any) -> str:
    """Every text and number in blocks or sections, a line each."""
    return "\n".join(str(part) for part in _walk(value) if isinstance(part, (str, int, float)))


def _walk(value: Any) -> Iterator[Any]:
    yield value
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _walk(getattr(value, each.name))
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield name
            yield from _walk(each)
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        for each in value:
            yield from _walk(each)


def named(sections: Sequence[Section], name: str) -> Section:
    """The section of that name."""
    return next(each for each in sections if each.name == name)


def facts(value: Any) -> dict[str, Cell]:
    """All facts in blocks or sections, by their labels."""
    return {fact.label: fact.cell for each in parts(value, Facts) for fact in each.facts}


def rows(table: Table) -> list[dict[str, Cell]]:
    """The rows of a table, by the names of columns."""
    return [dict(zip([column.name for column in table.columns], row, strict=True)) for row in table.rows]


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


def strings(value: Any) -> Iterator[str]:
    """All texts in JSON, each on one line."""
    if isinstance(value, dict):
        yield from (text for each in value.values() for text in strings(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in strings(each))
    elif isinstance(value, str):
        yield " ".join(value.split())


def text_of_blocks(value: Any) -> str:
    """All texts in blocks, one behind the other."""
    return " ".join(strings(block_json(value)))


def links_of(value: Any) -> Iterator[Link]:
    """All links in blocks."""
    if isinstance(value, dict):
        if value.get("block") == "link":
            yield Link(**{name: each for name, each in value.items() if name != "block"})
        else:
            yield from (link for each in value.values() for link in links_of(each))
    elif isinstance(value, list):
        yield from (link for each in value for link in links_of(each))
