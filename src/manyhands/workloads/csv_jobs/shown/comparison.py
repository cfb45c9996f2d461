"""Two jobs over one table: the rows of which they say something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

from manyhands.core.jsonio import Json, canonical
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import Block, Cell, Column, Facts, Note, Section, Table
from manyhands.runs.shown.cells import position_in, state_cell, value_cell
from manyhands.runs.shown.pairs import (
    MAX_OTHERS,
    Pair,
    Pairs,
    beyond_the_most,
    compare_pager,
    ids_of,
    item_link,
    left_out,
    pairs_of,
)
from manyhands.workloads.csv_jobs.shown.job_table import JobTable

_LOOKED_AT = 1000
"""Rows that are looked at for a page."""
_MAX_LINES = 300
"""Differing values that are shown of a page."""
_STATE = "state"


def compared_jobs(
    reader: JournalReader, others: Sequence[JournalReader], query: Mapping[str, str]
) -> Iterator[Section]:
    """A section for each other job over a table with the same columns, and one for jobs that are left out."""
    table, tables = JobTable(reader.meta("spec")), {other: JobTable(other.meta("spec")) for other in others}
    same = [other for other in others if tables[other].headers == table.headers]
    compared = same[:MAX_OTHERS]
    found = pairs_of(reader, compared, position_in(query), _LOOKED_AT)
    ids = dict(zip(others, ids_of(reader, others, query)[1:], strict=True))
    sections = (
        _compared(reader, table, other, tables[other], ids[other], pairs, compare_pager(reader, others, query, pairs))
        for other, pairs in zip(compared, found, strict=True)
    )
    different = [other for other in others if other not in same]
    unlike = left_out(different, "Jobs over tables with other columns can't be compared with this one")
    return chain(sections, beyond_the_most(same), unlike)


def _compared(
    reader: JournalReader,
    table: JobTable,
    other: JournalReader,
    other_table: JobTable,
    run: str,
    pairs: Pairs,
    where: Facts,
) -> Section:
    blocks: list[Block] = [where, *pairs.notes()]
    equal = [pair for pair in pairs.found if dict(table.inputs(pair[0])) == dict(other_table.inputs(pair[1]))]
    if changed := len(pairs.found) - len(equal):
        blocks.append(Note(f"{changed:,} of them have other cells in the two tables, and are left out.", "warn"))
    lines = list(islice(_lines(table, run, other_table, equal), _MAX_LINES + 1))
    if lines:
        columns = (
            Column("row", "Row"),
            Column("value", "Value"),
            Column("here", reader.folder.name),
            Column("there", other.folder.name),
        )
        blocks.append(Table(columns, lines[:_MAX_LINES], title="What differs"))
    elif equal:
        blocks.append(Note("Nothing differs in these rows.", "good"))
    if len(lines) > _MAX_LINES:
        blocks.append(Note(f"More than {_MAX_LINES:,} values differ: the first ones are shown.", "muted"))
    title = f"{reader.folder.name} and {other.folder.name}"
    return Section(title, blocks, about="The states and reported values of rows with the same key and the same cells.")


def _lines(table: JobTable, run: str, other_table: JobTable, pairs: Sequence[Pair]) -> Iterator[Sequence[Cell]]:
    for here, there in pairs:
        name = Cell(here.key, link=item_link(here, there, run))
        if here.state != there.state:
            yield (name, Cell(_STATE, tone="muted"), state_cell(here), state_cell(there))
        one, two = dict(table.values(here)), dict(other_table.values(there))
        for label in dict.fromkeys((*one, *two)):
            left, right = one.get(label), two.get(label)
            if not _is_same(left, right):
                yield (name, value_cell(label), value_cell(left), value_cell(right))


def _is_same(one: Json, two: Json) -> bool:
    return one is two or canonical(one) == canonical(two)
