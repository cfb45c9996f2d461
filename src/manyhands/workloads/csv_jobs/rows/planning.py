"""A table's rows as items, each with an id: from a column, or by its number; equal ids are made different."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, as_text, without_surrogates
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Item, ItemRow, PlannedItem
from manyhands.io.digest_table import DigestTable
from manyhands.io.tables.base import RawRow, Table, at, known_columns, shown
from manyhands.runs.progress import ItemSandbox, item_sandbox
from manyhands.runs.summaries import ItemFacts, Summarizer
from manyhands.sandboxes.images.templates import RowImages

BAD_ROW = "bad_row"
"""The reason of rows that were skipped because they can't be used."""
SHOWN_BAD_ROWS = 20
_CACHE_KIB = 16 * 1024


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row as its item's payload holds it."""

    row_index: int
    """Counts from 0 over all rows that are not blank."""
    line: int
    """Where it begins in its file, from 1; of a Parquet table, its number."""
    source_id: str | None
    """The id column's value; None where there is none or it is blank."""
    cells: tuple[Json, ...]
    """In the order of the headers: text from CSV, JSON values from the other formats."""
    problem: str | None = None
    """Why it can't be used, if it can't."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "row_index": self.row_index,
            "line": self.line,
            "source_id": self.source_id,
            "row": list(self.cells),
        }
        return value if self.problem is None else {**value, "problem": self.problem}

    @classmethod
    def of(cls, item: Item) -> Self:
        return cls.of_payload(item.payload)

    @classmethod
    def of_payload(cls, payload: Any) -> Self:
        """The reverse of ``to_json``."""
        return cls(
            payload["row_index"], payload["line"], payload["source_id"], tuple(payload["row"]), payload.get("problem")
        )


def under_other_headers(row: JobRow, former: Sequence[str], headers: Sequence[str]) -> JobRow:
    """A row whose cells are in the order of the former headers, as one of a table with others: a column that this does not have is dropped,
    one that it has besides is empty."""
    cells = dict(zip(former, row.cells, strict=False))
    return replace(row, cells=tuple(cells.get(name) for name in headers))


def plan_rows(
    table: Table,
    id_column: str | None,
    on_bad_row: Literal["fail", "skip"],
    problem: Callable[[Mapping[str, Json]], str | None] | None = None,
) -> Iterator[PlannedItem]:
    """The rows of a table in order, streamed, each with its id as key and a ``JobRow`` as payload. ``problem``: says of rows that could be
    read why they are to be skipped all the same.

    ``skip``: a bad row comes as an item that ended as discarded. ``fail``: from the first bad row on no more items come, and at the end of
    the table UserError is raised, with a line for each of the first 20 bad rows.

    Raises UserError at once if there is no such id column, and while iterating if the rest of the table can't be read.
    """
    id_index = None if id_column is None else id_column_index(id_column, table.info.headers)
    rows = table.rows() if on_bad_row == "skip" else _good_rows(table)
    return _items(table, rows if problem is None else _judged(rows, table.info.headers, problem), id_index)


def _judged(
    rows: Iterator[RawRow], headers: Sequence[str], problem: Callable[[Mapping[str, Json]], str | None]
) -> Iterator[RawRow]:
    for row in rows:
        if row.problem is None:
            yield row._replace(problem=problem(dict(zip(headers, row.cells, strict=False))))
        else:
            yield row


def id_column_index(name: str, headers: Sequence[str]) -> int:
    """The number of the id column, from 0. Raises UserError if there is none of exactly that name."""
    check_column("id_column", name, headers)
    return headers.index(name)


def check_column(setting: str, name: str, headers: Sequence[str]) -> None:
    """Raises UserError if there is no column of exactly the name that a setting gives."""
    if name not in headers:
        raise UserError(f"{setting} {shown(name)} was not found in csv headers{known_columns(name, headers)}")


def _items(table: Table, rows: Iterator[RawRow], id_index: int | None) -> Iterator[PlannedItem]:
    width, unit = len(table.info.headers), table.unit
    with closing(ItemIds(from_column=id_index is not None)) as ids:
        for index, (line, cells, problem) in enumerate(rows):
            value = None if id_index is None or id_index >= len(cells) else cells[id_index]
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


def source_id_of(value: Json) -> str | None:
    """The id that a cell holds, as it is; None for a blank one. Of values that are no text, their JSON."""
    if value is None:
        return None
    text = as_text(value)
    return text if text.strip() else None


class ItemIds:
    """Gives every row an id that no row before it has: its source id, else ``row-<row_index + 1>``, and behind one that is
    taken the first of ``-2``, ``-3``, … that is free.

    What is taken is kept on disk, so that memory does not grow with the rows. The work for a row does not grow either,
    however many are equal.
    """

    def __init__(self, *, from_column: bool) -> None:
        """``from_column``: whether there are source ids at all; numbers alone are always different."""
        self._taken = DigestTable(cache_kib=_CACHE_KIB) if from_column else None

    def next(self, source_id: str | None, row_index: int) -> str:
        """The id of the next row. Raises StorageError if the folder for temporary files is full."""
        # The journal's keys can't hold lone surrogates, so two ids that differ in nothing else are equal.
        base = f"row-{row_index + 1}" if source_id is None else without_surrogates(source_id)
        if self._taken is None:
            return base
        # The number of an id counts how often a suffix was looked for behind it, so that none is tried twice.
        tried = self._taken.count(_mark(base))
        if not tried:
            return base
        while not self._taken.add(_mark(f"{base}-{tried + 1}")):
            tried = self._taken.count(_mark(base))
        return f"{base}-{tried + 1}"

    def take(self, key: str) -> None:
        """An id that is not free. (Of numbers alone nothing is kept, see ``from_column``.)"""
        if self._taken is not None:
            self._taken.add(_mark(key))

    def close(self) -> None:
        """Forget everything. Idempotent."""
        if self._taken is not None:
            self._taken.close()


def _mark(text: str) -> bytes:
    """What stands for an id: itself, because ascending ids are entered fastest so; for a long one a digest, which is longer than
    those that stand for themselves."""
    data = text.encode()
    return data if len(data) < hashlib.blake2b.MAX_DIGEST_SIZE else hashlib.blake2b(data).digest()


class JobSummarizer(Summarizer):
    """What stands in a row, and what a worker reported of it."""

    def facts(self, row: ItemRow) -> ItemFacts:
        found, record = JobRow.of(row.item), row.record or {}
        headers = self.spec["table"]["headers"]
        return ItemFacts(
            row.key if found.source_id is None else found.source_id,
            input=dict(zip(headers, found.cells, strict=False)),
            outcome=row.message or record.get("result"),
        )

    def sandbox(self, row: ItemRow) -> ItemSandbox | None:
        options, table = self.spec["options"], self.spec["table"]
        if options.get("worker_command") is not None:
            return None
        templates = options.get("image_field"), options.get("image_template")
        cells = dict(zip(table["headers"], JobRow.of(row.item).cells, strict=False))
        image = RowImages.of(*templates, fixed=()).image(cells) if any(templates) else None
        return item_sandbox(options, self.spec.get("pins"), image)
