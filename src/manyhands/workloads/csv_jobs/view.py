"""What there is to see of a job besides what all runs have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from manyhands.core.outcomes import ItemState
from manyhands.core.text import counted, shell_joined
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.browsing import UNREADABLE, DamagedRow
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.records import DamagedBlob
from manyhands.runs.shown.blocks import (
    Block,
    Cell,
    Column,
    Fact,
    Facts,
    Fold,
    Link,
    Note,
    Section,
    Table,
    Text,
    Tone,
    Value,
)
from manyhands.runs.shown.cells import (
    STATE_TONES,
    damaged_cell,
    number_cell,
    pager,
    position_in,
    state_cell,
    time_cell,
    value_cell,
)
from manyhands.runs.shown.run_view import PageInfo, RunView
from manyhands.runs.summaries import ItemSummary
from manyhands.workloads.csv_jobs.rows.stage_states import COMPLETED, FAILED, PENDING, SKIPPED, count_stages
from manyhands.workloads.csv_jobs.service.status import JobStatus, status_of
from manyhands.workloads.csv_jobs.shown.comparison import compared_jobs
from manyhands.workloads.csv_jobs.shown.job_table import MAX_INPUTS, JobTable
from manyhands.workloads.csv_jobs.shown.row_parts import row_blocks

_TABLE, _SCHEMA = "table", "schema"
_ROWS = 100
_STATE = "state"
"""In the query of the table: the state whose rows are shown."""
_COUNTED = 10_000
"""Rows of jobs whose stages are counted for a page."""
_TONES: Mapping[str, Tone] = {"completed": "good", "running": "active", "failed": "bad", "pending": "muted"}
"""How the states of jobs are coloured; all others warn."""
_LATE = frozenset({"failed", "cancelled", "interrupted"})


class JobView(RunView):
    """The pages, columns and parts of a job."""

    item_tab: ClassVar[str] = "Row"

    @cached_property
    def _table(self) -> JobTable:
        return JobTable(self.spec)

    def run_columns(self) -> Sequence[Column]:
        return self._table.columns

    def cells(self, rows: Sequence[ItemRow], summaries: Sequence[ItemSummary]) -> list[Mapping[str, Cell]]:
        return [self._table.cells(row) for row in rows]

    def labels(self, row: ItemRow) -> Mapping[str, str]:
        found = {}
        if stage := self._table.failed_stage(row):
            found["stage"] = stage
        if row.state == ItemState.COMPLETED and (row.record or {}).get("corrections"):
            found["corrected"] = "yes"
        return found

    def pages(self) -> Sequence[PageInfo]:
        return (
            PageInfo(_TABLE, "Table", "The rows of the table with what was reported of each."),
            PageInfo(
                _SCHEMA, "Instruction and schema", "What workers were given to do, and what a result must look like."
            ),
        )

    def page(self, name: str, query: Mapping[str, str]) -> Iterator[Section]:
        pages = {_TABLE: self._table_page, _SCHEMA: self._schema_page}
        return pages[name](query)

    def head(self) -> Iterable[Section]:
        status = status_of(self.reader, is_owned(self.reader.folder))
        yield Section("Job", list(_head(status, self.spec, self.reader.folder)))

    def item_blocks(self, row: ItemRow, steps: Sequence[RecordedStep]) -> Iterable[Block]:
        return row_blocks(self._table, row, steps, self.reader)

    def compared(self, others: Sequence[JournalReader], query: Mapping[str, str]) -> Iterator[Section]:
        return compared_jobs(self.reader, others, query)

    def _table_page(self, query: Mapping[str, str]) -> Iterator[Section]:
        state = query.get(_STATE) if query.get(_STATE) in tuple(ItemState) else None
        rows = self.reader.items_page(position_in(query), _ROWS + 1, state=state)
        following = rows[_ROWS - 1].position if len(rows) > _ROWS else None
        rows = rows[:_ROWS]
        shown = f"rows {rows[0].position + 1:,} to {rows[-1].position + 1:,}" if rows else "no rows"
        if rows and rows[-1].left_input:
            shown = f"{counted(len(rows), 'row')}, also such as the table has no more"
        if state is not None:
            shown = f"{shown}, {state} ones only"
        kept = {} if state is None else {_STATE: state}
        blocks: list[Block] = [_states(self.reader, state), pager(_TABLE, {**query, **kept}, shown, following)]
        left_out = self._table.left_out
        about = f"The first {MAX_INPUTS} columns; {counted(left_out, 'more column')} on the page of each row." * (
            left_out > 0
        )
        columns = (Column("row", "Row"), Column("state", "State"), *self._table.columns)
        blocks.append(Table(columns, [self._line(row, columns) for row in rows], about=about))
        yield Section("Table", blocks)

    def _line(self, row: ItemRow, columns: Sequence[Column]) -> list[Cell]:
        """The cells of a row; of one that is damaged, or of a form that is not known, no more than that it is."""
        state, cells = state_cell(row), dict[str, Cell]()
        if not isinstance(row, DamagedRow):
            try:
                cells.update(self._table.cells(row))
            except UNREADABLE as error:
                state = damaged_cell(f"this version can't show it as what it is ({error!r})")
        first = value_cell(row.key, link=Link(item=row.number))
        return [first, state, *(cells.get(column.name, Cell("")) for column in columns[2:])]

    def _schema_page(self, query: Mapping[str, str]) -> Iterator[Section]:
        table = self._table
        if table.stages:
            yield Section("Stages", list(self._stage_blocks()), about="Each row goes through them in this order.")
            return
        yield Section("Instruction", [Text(table.instruction)], about="Names in braces stand for the cells of a row.")
        if table.schema is None:
            yield Section("Schema", [Note("There is none: any JSON object will do as a result.", "muted")])
        else:
            yield Section("Schema", [Value(table.schema)], about="What a result must look like; others are refused.")

    def _stage_blocks(self) -> Iterator[Block]:
        stages = self._table.stages
        if sum(self.reader.counts().values()) <= _COUNTED:
            try:
                yield _stage_table([str(stage["name"]) for stage in stages], self.reader)
            except DamagedBlob as error:
                yield Note(f"How the rows stand in each stage can't be told: {error}", "bad")
        else:
            command = shell_joined(["manyhands", "jobs", "status", str(self.reader.folder.absolute())])
            yield Note(f"To count how the rows stand in each stage: {command}", "muted")
        for number, stage in enumerate(stages, 1):
            blocks: list[Block] = [Text(str(stage["instruction"]), title="Instruction")]
            if "when" in stage:
                blocks.append(Facts([Fact("Only when", Cell(str(stage["when"])))]))
            blocks.append(Value(stage["output_schema"], title="Schema"))
            yield Fold(f"{number}. {stage['name']}", blocks, name=f"stage-{number}", is_open=True)


def _states(reader: JournalReader, chosen: str | None) -> Facts:
    """The states that rows are in, each a way to these rows alone."""
    found = dict.fromkeys(ItemState, 0)
    for (state, _), rows in reader.counts().items():
        found[ItemState(state)] += rows
    facts = [Fact("all", Cell(f"{sum(found.values()):,}", tone="" if chosen else "active", link=Link(page=_TABLE)))]
    for each, rows in found.items():
        if rows or each == chosen:
            link = Link(page=_TABLE, query={_STATE: each.value})
            facts.append(Fact(each.value, Cell(f"{rows:,}", rows, STATE_TONES.get(each.value, ""), link=link)))
    return Facts(facts)


def _stage_table(names: Sequence[str], reader: JournalReader) -> Table:
    states = (COMPLETED, SKIPPED, FAILED, PENDING)
    columns = [Column("stage", "Stage"), *(Column(state, state, is_number=True) for state in states)]
    rows = []
    for each in count_stages(names, reader.results()):
        counts = (each["completed"], each["skipped"], each["failed"], each["pending"])
        cells = zip(states, counts, strict=True)
        rows.append(
            [
                Cell(each["name"]),
                *(number_cell(count, tone=STATE_TONES[state] if count else "muted") for state, count in cells),
            ]
        )
    return Table(columns, rows, title="Rows in each stage")


def _head(status: JobStatus, spec: Mapping[str, Any], folder: Path) -> Iterator[Block]:
    if status.last_error:
        yield Note(status.last_error, "bad" if status.state in _LATE else "warn")
    if status.waiting:
        yield Note(status.waiting, "warn")
    yield from (Note(note, "muted") for note in status.notes)
    options, table = spec["options"], spec["table"]
    tone = _TONES.get(status.state, "warn")
    facts = [
        Fact("Job", Cell(status.name)),
        Fact("State", Cell(status.state.replace("_", " "), tone=tone)),
        Fact("Table", Cell(Path(table["path"]).name, about=table["path"])),
        Fact("Columns", number_cell(len(table["headers"]))),
        Fact("Worker", _worker(options)),
    ]
    if status.limit is not None:
        about = "How many rows, from the beginning of the table, are executed."
        facts.append(Fact("Limit", number_cell(status.limit), about))
        facts.append(Fact("Rows beyond it", number_cell(status.beyond_limit_items)))
    if status.removed_items:
        facts.append(Fact("Removed rows", number_cell(status.removed_items), "Rows that the table has no more."))
    if status.eta_seconds is not None:
        facts.append(Fact("Seconds left", number_cell(status.eta_seconds), "Estimated from the rows so far."))
    facts += [Fact("Started", time_cell(status.started_at)), Fact("Ended", time_cell(status.completed_at))]
    yield Facts([each for each in facts if each.cell.text])
    yield from _output(status, folder)


def _output(status: JobStatus, folder: Path) -> Iterator[Block]:
    path = Path(status.output_csv_path)
    there = path.is_file()
    about = str(path)
    cell = Cell(path.name, about=about) if there else Cell("not written yet", tone="muted", about=about)
    yield Facts([Fact("Results", cell), Fact("Path", Cell(about))])
    command = shell_joined(["manyhands", "jobs", "export", str(folder.absolute())])
    yield Note(f"To write the table with the results so far: {command}")


def _worker(options: Mapping[str, Any]) -> Cell:
    for name in ("worker_command", "worker_function"):
        if options.get(name):
            return value_cell(options[name], about=name.removeprefix("worker_"))
    return Cell(str(options.get("model") or ""), about="an agent with this model")
