"""The parts of a page about one trajectory: where it comes from, how it was graded, which tools it had and called, and its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from manyhands.core.errors import RunError, UserError
from manyhands.core.jsonio import loads
from manyhands.core.outcomes import ItemState
from manyhands.core.text import cut
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.registry import load_workload
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Fold, Note, Table, Value
from manyhands.runs.shown.cells import number_cell, size_cell, value_cell
from manyhands.runs.shown.collected import collected_blocks
from manyhands.runs.shown.grades import graded_blocks
from manyhands.workloads.trajectories.items import PromptItem, batch_file
from manyhands.workloads.trajectories.records import ADOPTED

MAX_LINE = 512 << 10
"""Bytes of a line that is shown."""
_MAX_TOOLS = 200
_TOOLS = (
    Column("tool", "Tool"),
    Column("calls", "Calls", is_number=True),
    Column("failures", "Failures", is_number=True),
    Column("success_rate", "Success rate", is_number=True),
)
_WIDTH = 300


def trajectory_blocks(row: ItemRow, steps: Sequence[RecordedStep], reader: JournalReader) -> Iterator[Block]:
    """All parts. ``steps``: of the item's latest attempt; without large ones there is no line."""
    payload, record = PromptItem.of(row.item), row.record or {}
    if row.message or row.reason:
        text = " - ".join(each for each in (row.reason, row.message) if each)
        yield Note(cut(text, 1000), "bad" if row.state is ItemState.FAILED else "warn")
    yield Facts([each for each in _facts(payload, record) if each.cell.text])
    yield from graded_blocks(record)
    yield from collected_blocks(record.get("collected"))
    yield from _tools(record)
    if payload.source:
        yield Fold("Other fields of the row", [Value(payload.source)])
    if row.state is ItemState.COMPLETED:
        yield _line(row, payload, steps, reader)


def tool_counts(record: Mapping[str, Any] | None) -> tuple[int, int]:
    """How many tools were called, and how many of these calls failed."""
    counts = ((record or {}).get("tools") or {}).values()
    return sum(calls for calls, _ in counts), sum(failures for _, failures in counts)


def _facts(payload: PromptItem, record: Mapping[str, Any]) -> Iterator[Fact]:
    yield Fact("Prompt", number_cell(payload.prompt_index), "Counts usable rows of the dataset from 0.")
    yield Fact("Id", value_cell(payload.id))
    yield Fact("Sample", number_cell(payload.sample), "Counts the trajectories of a prompt from 0.")
    yield Fact("Line", number_cell(payload.line or None), "Of the dataset.")
    yield Fact("Image", value_cell(payload.image))
    yield Fact("Folder", value_cell(payload.cwd))
    yield Fact("Model", value_cell(record.get("model")))
    yield Fact("Turns", number_cell(record.get("api_calls")), "Calls of the model.")
    turns, reasoned = record.get("reasoning") or (None, None)
    if turns:
        yield Fact("With reasoning", Cell(f"{reasoned:,} of {turns:,}", reasoned / turns), "Of its turns.")
    yield Fact("Stop reason", value_cell(record.get("stop_reason")))
    yield Fact("Seed", value_cell(record.get("seed")))
    times = record.get("times") or {}
    if "began" in times:
        yield Fact(
            "Seconds", number_cell(times["finished"] - times["began"], ",.2f"), "From its first step to its last."
        )
    if record.get("partial"):
        yield Fact("Partial", Cell("yes", tone="warn"), "It ended before an answer was given.")
    if record.get("own_system"):
        yield Fact("System prompt", Cell("the row's own"))
    if ADOPTED in record:
        yield Fact("Made by", Cell("the original program"), "Its line was taken over.")


def _tools(record: Mapping[str, Any]) -> Iterator[Block]:
    if "toolsets" in record:
        facts = [
            Fact("Sampled", _names(record["toolsets"]), "The toolsets that were drawn from the distribution."),
            Fact("With tools here", _names(record.get("offered") or ()), "Those of them that have tools in this run."),
        ]
        yield Facts(facts, title="Toolsets")
    if unknown := record.get("unknown_tools"):
        yield Note(cut(f"Called, but not available: {', '.join(map(str, unknown))}", 1000), "warn")
    tools = record.get("tools") or {}
    most = sorted(tools.items(), key=lambda each: (-each[1][0], each[0]))
    if most:
        yield Table(_TOOLS, [_tool(name, *counts) for name, counts in most[:_MAX_TOOLS]], title="Tools")
    if len(most) > _MAX_TOOLS:
        yield Note(f"Of {len(most):,} tools the first {_MAX_TOOLS} are shown.", "muted")


def _names(toolsets: Sequence[str]) -> Cell:
    return value_cell(", ".join(toolsets), width=_WIDTH) if toolsets else Cell("none", tone="muted")


def _tool(name: str, calls: int, failures: int) -> list[Cell]:
    return [
        value_cell(name),
        number_cell(calls),
        number_cell(failures, tone="bad" if failures else "muted"),
        number_cell((calls - failures) / calls if calls else None, ".1%"),
    ]


def _line(row: ItemRow, payload: PromptItem, steps: Sequence[RecordedStep], reader: JournalReader) -> Block:
    """Its line, written again from the journal."""
    options = reader.meta("spec")["options"]
    name = batch_file(payload.prompt_index, options["batch_size"]) if options.get("batch_files", True) else None
    where = name or "trajectories.jsonl"
    if not _are_all(row, steps):
        return Note(f"Its line is too large to be shown here; it is in {where}.", "muted")
    try:
        workload = load_workload(str(reader.meta("workload")))(reader.meta("spec"), reader.folder)
        rendered = workload.render(row.finished(), steps)
    except (RunError, UserError) as error:
        return Note(cut(f"Its line can't be written here ({error}); it is in {where}.", 1000), "muted")
    if rendered is None:
        return Note("It has no line.", "muted")
    text = rendered[1] if isinstance(rendered[1], bytes) else rendered[1].encode("utf-8", "replace")
    if len(text) > MAX_LINE:
        return Note(f"Its line is too large to be shown here ({size_cell(len(text)).text}); it is in {where}.", "muted")
    return Fold(f"Its line in {where}", [Value(loads(text))], cells=[size_cell(len(text))])


def _are_all(row: ItemRow, steps: Sequence[RecordedStep]) -> bool:
    """Whether no step of the conversation is missing: all are numbered in order, and there is one for each call of the model."""
    record = row.record or {}
    if ADOPTED in record:
        return True
    own = [step for step in steps if not step.scope]
    calls = sum(step.kind == "model" for step in own)
    return [step.seq for step in own] == list(range(len(own))) and calls >= record.get("api_calls", 0)
