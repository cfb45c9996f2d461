"""What there is to see of a batch besides what all runs have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import GRADE, ItemState, OutputLine, StopReason
from manyhands.core.text import cut
from manyhands.engine.contract import FinishedItem, ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.io.json_files import read_object
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Note, Section, Table
from manyhands.runs.shown.cells import file_size, number_cell, score_cell, size_cell, value_cell, verdict_cell
from manyhands.runs.shown.pairs import Measure, Seen, side_by_side
from manyhands.runs.shown.run_view import OF_FORMER_SESSION, PageInfo, RunView
from manyhands.runs.summaries import ItemSummary
from manyhands.workloads.trajectories.items import PromptItem
from manyhands.workloads.trajectories.prepared import Prepared
from manyhands.workloads.trajectories.records import ADOPTED
from manyhands.workloads.trajectories.results.exports import CHECKPOINT, EXPORTS, STATISTICS, statistics_of
from manyhands.workloads.trajectories.results.kept_samples import BatchResults
from manyhands.workloads.trajectories.results.statistics_page import checkpoint_section, statistics_sections
from manyhands.workloads.trajectories.results.trajectory_parts import tool_counts, trajectory_blocks

_STATISTICS = "statistics"
_CHEAP = 5000
"""Items of batches whose figures are added up for a page."""
_MAX_READ = 4 << 20
"""Bytes of a file that is read for a page."""
_MAX_FILES = 50
_MAX_LABEL = 100
_ANSWERED = StopReason.ANSWERED.value
_GRADED = (Column("score", "Score", is_number=True), Column("verdict", "Verdict"))
MEASURES = (
    Measure("score", "Score", ".3f", ".3f"),
    Measure("turns", "Turns"),
    Measure("tool_calls", "Tool calls"),
    Measure("tool_failures", "Tool failures"),
    Measure("tokens", "Tokens"),
)
"""What is compared of trajectories."""


class TrajectoryView(RunView):
    """The pages, columns and parts of a batch."""

    item_tab: ClassVar[str] = "Trajectory"
    columns: ClassVar[Sequence[Column]] = (
        Column("prompt", "Prompt", about="Its id, or else its number among the usable rows of the dataset, from 0."),
        Column("sample", "Sample", is_number=True, about="Counts the trajectories of a prompt from 0."),
        Column("model", "Model"),
        Column("turns", "Turns", is_number=True, about="Calls of the model."),
        Column("reasoned", "With reasoning", is_number=True, about="The share of its turns that have reasoning."),
        Column("tool_calls", "Tool calls", is_number=True),
        Column("tool_failures", "Tool failures", is_number=True, about="Calls of tools that failed."),
        Column("stop", "Stop reason"),
    )

    @property
    def is_graded(self) -> bool:
        """Whether graders score its trajectories."""
        return self.spec["options"].get("grade_checks") is not None or bool(self.spec.get("tasks"))

    def run_columns(self) -> Sequence[Column]:
        return (*self.columns, *_GRADED) if self.is_graded else self.columns

    def cells(self, rows: Sequence[ItemRow], summaries: Sequence[ItemSummary]) -> list[Mapping[str, Cell]]:
        return [_cells(row) for row in rows]

    def labels(self, row: ItemRow) -> Mapping[str, str]:
        record = row.record or {}
        found = {
            "toolsets": ", ".join(sorted(record.get("toolsets") or ())),
            "stop": record.get("stop_reason"),
            "discarded": row.reason if row.state is ItemState.DISCARDED else None,
            "verdict": (record.get(GRADE) or {}).get("verdict"),
            "made by": "original" if ADOPTED in record else None,
        }
        return {name: cut(str(value), _MAX_LABEL) for name, value in found.items() if value}

    def pages(self) -> Sequence[PageInfo]:
        return (PageInfo(_STATISTICS, "Statistics", "Tools, reasoning, ends and scores of all trajectories."),)

    def page(self, name: str, query: Mapping[str, str]) -> Iterator[Section]:
        return {_STATISTICS: self._statistics}[name]()

    def head(self) -> Iterable[Section]:
        options = self.spec["options"]
        facts = [
            Fact("Distribution", value_cell(self.spec["distribution"]["name"], about=_distribution(self.spec))),
            Fact("Samples", number_cell(options.get("samples", 1)), "Trajectories per prompt."),
            Fact("Batch size", number_cell(options.get("batch_size")), "Prompts whose lines are in one file."),
            Fact("Skipped rows", number_cell(self.spec["bad_count"] or None), "Rows that can't be used."),
            Fact("Minimum score", number_cell(options.get("min_score"), ".3g"), "Less is discarded."),
            Fact("Kept of a prompt", Cell("the best sample" if options.get("best_of") else "")),
        ]
        blocks: list[Block] = [Facts([each for each in facts if each.cell.text])]
        bad = [Note(cut(f"line {line} is left out: {why}", 300), "warn") for line, why in self.spec["bad_rows"][:5]]
        yield Section("Batch", [*blocks, *bad])

    def files(self) -> Iterable[Section]:
        return [Section("Files", list(_files(self.reader)))]

    def item_blocks(self, row: ItemRow, steps: Sequence[RecordedStep]) -> Iterable[Block]:
        return trajectory_blocks(row, steps, self.reader)

    def compared(self, others: Sequence[JournalReader], query: Mapping[str, str]) -> Iterator[Section]:
        return side_by_side(self.reader, others, query, MEASURES, _seen)

    def _statistics(self) -> Iterator[Section]:
        path = self.reader.folder / STATISTICS
        is_behind = self.has_open_session
        if (is_behind or not path.is_file()) and sum(self.reader.counts().values()) <= _CHEAP:
            yield from statistics_sections(self._added_up())
        elif (found := _content(path)) is not None:
            if is_behind:
                yield Section("Statistics", [OF_FORMER_SESSION])
            yield from statistics_sections(found)
        else:
            yield Section("Statistics", [Note(f"{STATISTICS} is written at the end of each session.", "muted")])
        if (checkpoint := _content(self.reader.folder / CHECKPOINT)) is not None:
            yield checkpoint_section(checkpoint)

    def _added_up(self) -> Mapping[str, Json]:
        """The figures of the items as they are now."""
        prepared = Prepared.from_json(self.spec, self.reader.folder.parent)
        results = BatchResults(self.reader, prepared, self.reader.folder.name, _no_line)
        for _ in results.ended():
            pass
        found: dict[str, Json] = {**statistics_of(results, with_tags=False)}
        del found["completed_at"]  # nothing has been
        return found


def _no_line(finished: FinishedItem, steps: Sequence[RecordedStep]) -> OutputLine | None:
    return None


def _cells(row: ItemRow) -> Mapping[str, Cell]:
    payload, record = PromptItem.of(row.item), row.record or {}
    calls, failures = tool_counts(record)
    turns, reasoned = record.get("reasoning") or (0, 0)
    grade = record.get(GRADE) or {}
    has_ended = bool(record)
    return {
        "prompt": value_cell(payload.id or payload.prompt_index),
        "sample": number_cell(payload.sample),
        "model": value_cell(record.get("model")),
        "turns": number_cell(record.get("api_calls")),
        "reasoned": number_cell(reasoned / turns if turns else None, ".0%", tone="" if reasoned else "warn"),
        "tool_calls": number_cell(calls if has_ended else None),
        "tool_failures": number_cell(failures if has_ended else None, tone="bad" if failures else "muted"),
        "stop": value_cell(
            record.get("stop_reason"), tone="" if record.get("stop_reason") in (None, _ANSWERED) else "warn"
        ),
        "score": score_cell(grade.get("score"), grade.get("verdict")),
        "verdict": verdict_cell(grade.get("verdict")),
    }


def _seen(row: ItemRow) -> Seen:
    payload, record = PromptItem.of(row.item), row.record or {}
    label = payload.id or f"prompt {payload.prompt_index}"
    if payload.sample:
        label = f"{label}, sample {payload.sample}"
    if not record:
        return Seen(label)
    grade, usage = record.get(GRADE) or {}, record.get("usage") or {}
    calls, failures = tool_counts(record)
    tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    figures = {
        "score": grade.get("score"),
        "turns": record.get("api_calls"),
        "tool_calls": calls,
        "tool_failures": failures,
        "tokens": tokens if usage else None,
    }
    return Seen(label, grade.get("verdict"), figures)


def _distribution(spec: Mapping[str, Json]) -> str:
    toolsets = spec["distribution"]["toolsets"]
    return cut(", ".join(f"{name} {percent:g} %" for name, percent in toolsets), 1000)


def _files(reader: JournalReader) -> Iterator[Block]:
    """The files of the run, with their sizes: those that exist once, and the batch files."""
    batches = {each.name for each in islice(reader.outputs(), 100_000)}
    names = [*EXPORTS, *sorted(batches.difference(EXPORTS), key=lambda name: (len(name), name))]
    sizes = ((name, file_size(reader.folder / name)) for name in names[:_MAX_FILES])
    found = [(name, size) for name, size in sizes if size is not None]
    if not found:
        yield Note("None is written yet.", "muted")
        return
    columns = (Column("file", "File"), Column("size", "Size", is_number=True))
    about = f"Of {len(names):,} files the first {_MAX_FILES}." if len(names) > _MAX_FILES else ""
    rows = [[Cell(name, about=str(reader.folder / name)), size_cell(size)] for name, size in found]
    yield Table(columns, rows, about=about)


def _content(path: Path) -> Mapping[str, Json] | None:
    """What a file of the run holds; None if it is not there, too large, or damaged."""
    try:
        return read_object(path, within=path.parent, max_bytes=_MAX_READ)
    except UserError:
        return None
