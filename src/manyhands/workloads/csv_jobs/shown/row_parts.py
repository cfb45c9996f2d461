"""The parts of a page about one row of a job: its cells, what was reported, what did not fit, what its workers printed, how often it was
tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from manyhands.core.jsonio import Json, as_text
from manyhands.core.text import cut, shell_joined
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Fold, Note, Table, Text, Tone, Value
from manyhands.runs.shown.cells import number_cell, time_cell, value_cell
from manyhands.runs.shown.collected import collected_blocks
from manyhands.workloads.csv_jobs.rows.planning import JobRow
from manyhands.workloads.csv_jobs.rows.stage_states import COMPLETED, FAILED, RESULT, entries_of
from manyhands.workloads.csv_jobs.shown.job_table import JobTable, last_report_of, violations_of
from manyhands.workloads.csv_jobs.workers.reports import WORKER_STEP

_MAX_INPUTS = 200
"""Cells of a row that are shown."""
_MAX_LONG = 40
"""Cells of a row that are shown in full in a fold of their own."""
_LONG = 200
"""Characters from which on a cell has one."""
_MAX_LAUNCHES = 30
_MAX_TRIES = 50
_STAGE_TONES: Mapping[str, Tone] = {"completed": "good", "failed": "bad", "skipped": "muted", "pending": "muted"}
_PROBLEMS = (Column("place", "Where", about="In the report, from its top ($)."), Column("problem", "What does not fit"))
_STAGES = (Column("stage", "Stage"), Column("state", "State"), Column("reported", "Reported"))
_TRIES = (
    Column("attempt", "Attempt", is_number=True),
    Column("at", "At"),
    Column("cause", "Cause"),
    Column("message", "What happened"),
)


def row_blocks(table: JobTable, row: ItemRow, steps: Sequence[RecordedStep], reader: JournalReader) -> Iterator[Block]:
    """All parts. ``steps``: of the row's latest attempt."""
    if problem := JobRow.of(row.item).problem:
        yield Note(f"The row can't be used: {problem}", "warn")
    elif row.message:
        yield Note(row.message, "bad" if row.state == FAILED else "muted")
    yield from _inputs(table, row)
    yield from _reports(table, row)
    yield from collected_blocks((row.record or {}).get("collected"))
    yield from _problems(row)
    if table.stages:
        yield from _stages(table, row)
    launches = [step for step in steps if step.kind == WORKER_STEP]
    for step in launches[:_MAX_LAUNCHES]:
        yield _launch(step, is_open=step is launches[-1])
    if len(launches) > _MAX_LAUNCHES:
        yield Note(f"Of {len(launches):,} launches the first {_MAX_LAUNCHES} are shown.", "muted")
    yield from _tries(row, reader)


def _inputs(table: JobTable, row: ItemRow) -> Iterator[Block]:
    values = list(table.inputs(row))
    facts = [Fact(cut(name, 80), value_cell(value, width=_LONG)) for name, value in values[:_MAX_INPUTS]]
    yield Facts(facts, title="Row of the table")
    if len(values) > _MAX_INPUTS:
        yield Note(f"{len(values) - _MAX_INPUTS:,} more columns are not shown.", "muted")
    long = [(name, value) for name, value in values if isinstance(value, (list, dict)) or len(as_text(value)) > _LONG]
    for name, value in long[:_MAX_LONG]:
        yield Fold(cut(name, 80), [_whole(value)])
    if len(long) > _MAX_LONG:
        yield Note(f"{len(long) - _MAX_LONG:,} more long cells are not shown in full.", "muted")


def _whole(value: Json) -> Block:
    return Value(value) if isinstance(value, (list, dict)) else Text(as_text(value))


def _reports(table: JobTable, row: ItemRow) -> Iterator[Block]:
    record = row.record or {}
    if RESULT in record:
        facts = [
            Fact("Reported", time_cell(record.get("reported_at"))),
            Fact("By", Cell(str(record.get("via", ""))), "How the report came: tool, mcp, stdout or function."),
            Fact("Corrections", number_cell(record.get("corrections", 0)), "Reports before it that were refused."),
        ]
        if record.get("stop"):
            facts.append(Fact("Ended the job", Cell("yes", tone="warn"), "The worker requested to end the job."))
        yield Facts(facts, title="Report")
        if not table.stages:
            yield Value(record[RESULT], title="What was reported")
        return
    if (report := last_report_of(record)) is not None:
        yield Value(report, title="The last report, which was refused")
    if answer := record.get("last_answer"):
        yield Text(str(answer), title="The agent's last answer")


def _problems(row: ItemRow) -> Iterator[Block]:
    if problems := violations_of(row.record):
        rows = [[Cell(place), Cell(problem, tone="bad")] for place, problem in problems]
        yield Table(_PROBLEMS, rows, title="What does not fit")


def _stages(table: JobTable, row: ItemRow) -> Iterator[Block]:
    entries = entries_of(row.record)
    if not entries:
        yield Note("How its stages stand is recorded when the row has ended.", "muted")
        return
    rows, folds = [], []
    for stage in table.stages:
        name = str(stage["name"])
        entry = entries.get(name, {})
        state = str(entry.get("state", "pending"))
        said = value_cell(entry.get("error"), tone="bad", width=_LONG)
        if state == COMPLETED:
            said = value_cell(entry.get(RESULT), width=_LONG)
            folds.append(Fold(f"Stage {name}", [Value(entry.get(RESULT))]))
        rows.append([Cell(name), Cell(state, tone=_STAGE_TONES.get(state, "")), said])
    yield Table(_STAGES, rows, title="Stages")
    yield from folds


def _launch(step: RecordedStep, *, is_open: bool) -> Block:
    """What a command or a function was given, and what it said. ``is_open``: if it failed."""
    request, output = step.request, step.output
    of_stage = f", stage {step.scope}" if step.scope else ""
    seconds = number_cell(output.get("seconds"), ".3f")
    if "function" in request:
        facts = [Fact("Function", Cell(str(request["function"]))), Fact("Seconds", seconds)]
        return Fold(f"Worker function{of_stage}", [Facts(facts)], cells=[seconds])
    ended = str(output.get("ended", ""))
    ending = Cell(ended, tone="good" if ended in ("reported", "printed") else "bad")
    code = output.get("exit_code")
    facts = [
        Fact("Ended", ending),
        Fact("Exit code", number_cell(code, tone="bad" if code else "")),
        Fact("Seconds", seconds),
        Fact("Refused reports", number_cell(output.get("refused"))),
        Fact("Command", value_cell(_command(request), width=_LONG)),
    ]
    blocks: list[Block] = [Facts(facts)]
    blocks += [
        Text(str(output[name]), title=title)
        for name, title in (("error", "Error"), ("stderr", "Standard error, its end"), ("stdout", "Output, its end"))
        if output.get(name)
    ]
    blocks += [Note(str(each), "bad") for each in output.get("violations") or ()]
    if request.get("prompt"):
        blocks.append(Fold("Prompt", [Text(str(request["prompt"]))]))
    title = f"Log of launch {request.get('launch', step.seq + 1)}{of_stage}"
    return Fold(title, blocks, cells=[ending, seconds], is_open=is_open and ending.tone == "bad")


def _command(request: Mapping[str, Any]) -> str:
    words = request.get("command")
    return shell_joined(map(str, words)) if isinstance(words, list) else ""


def _tries(row: ItemRow, reader: JournalReader) -> Iterator[Block]:
    """What failed, and why fresh attempts were begun, in order of time. Of a row that was done at once, nothing."""
    tries = [
        (each.at, each.attempt, Cell(each.cause, tone="bad"), each.message) for each in reader.failures(row.number)
    ]
    tries += [
        (each.ended_at, each.attempt, Cell("fresh attempt", tone="muted"), each.reason)
        for each in reader.attempts(row.number)
    ]
    tries += [
        (each.reopened_at, each.attempt, Cell("executed again", tone="muted"), f"it was {each.state}")
        for each in reader.earlier_outcomes(row.number)
    ]
    tries.sort(key=lambda each: each[0])
    if tries:
        rows = [
            [number_cell(attempt), time_cell(at), what, value_cell(message, width=_LONG)]
            for at, attempt, what, message in tries[-_MAX_TRIES:]
        ]
        yield Table(_TRIES, rows, title="Attempts")
