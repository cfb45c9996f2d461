"""What there is to see of imported conversations besides what all runs have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from manyhands.core.outcomes import GRADE, StopReason
from manyhands.core.text import cut
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.export.conversations import Conversation
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Fold, Note, Section, Table, Value
from manyhands.runs.shown.cells import (
    VERDICT_TONES,
    file_size,
    number_cell,
    score_cell,
    size_cell,
    time_cell,
    value_cell,
    verdict_cell,
)
from manyhands.runs.shown.grades import grade_blocks
from manyhands.runs.shown.pairs import Measure, Seen, side_by_side
from manyhands.runs.shown.run_view import RunView
from manyhands.runs.summaries import ItemSummary, Summarizer
from manyhands.workloads.imported.planning import ImportedItem
from manyhands.workloads.imported.results import RESULTS, SUMMARY, score_of

_MAX_LISTED = 20
_MAX_TOOLS = 200
_MAX_LABEL = 100
_COMPARED = 300
"""Items that are looked at for a page of a comparison: each holds its whole conversation."""
_MEASURES = (
    Measure("score", "Score", ".3f", ".3f"),
    Measure("turns", "Answers"),
    Measure("tool_calls", "Tool calls"),
    Measure("tokens", "Tokens"),
)


class ImportedView(RunView):
    """The columns and parts of an import."""

    item_tab: ClassVar[str] = "Import"
    columns: ClassVar[Sequence[Column]] = (
        Column("place", "From", about="The file and the line that it was read from."),
        Column("model", "Model", about="Who answered, as far as the file says."),
        Column("turns", "Answers", is_number=True, about="Messages of the assistant."),
        Column("tool_calls", "Tool calls", is_number=True),
        Column("stop", "Stop reason"),
        Column("score", "Score", is_number=True, about="Of the graders here, else the one that it came with."),
        Column("verdict", "Verdict"),
    )

    def cells(self, rows: Sequence[ItemRow], summaries: Sequence[ItemSummary]) -> list[Mapping[str, Cell]]:
        return [_cells(row) for row in rows]

    def labels(self, row: ItemRow) -> Mapping[str, str]:
        kept = row.payload["conversation"]  # as it is recorded: to read it all takes long
        grade = (row.record or {}).get(GRADE) or kept
        found = {
            "model": kept.get("model"),
            "agent": kept.get("agent"),
            "stop": kept.get("stop_reason"),
            "verdict": grade.get("verdict"),
        }
        return {name: cut(str(value), _MAX_LABEL) for name, value in found.items() if value}

    def head(self) -> Iterable[Section]:
        options = self.spec["options"]
        files: Sequence[str] = options.get("input_files") or ()
        left_out = self.spec.get("left_out") or {"count": 0, "named": []}
        facts = [
            Fact("Format", value_cell(options.get("from_"))),
            Fact("Files", number_cell(len(files))),
            Fact("Rows left out", number_cell(left_out["count"] or None), "Rows that are no conversations."),
            Fact("Graded here", Cell("yes" if options.get("grade_checks") is not None else "no")),
        ]
        blocks: list[Block] = [Facts([each for each in facts if each.cell.text])]
        blocks += [Note(cut(each, 300), "warn") for each in left_out["named"]]
        rows = [[Cell(Path(each).name, about=each)] for each in files[:_MAX_LISTED]]
        about = f"The first {_MAX_LISTED} of {len(files):,}." if len(files) > _MAX_LISTED else ""
        blocks.append(Table((Column("file", "Imported from"),), rows, about=about))
        yield Section("Import", blocks)
        yield from self._results()

    def item_blocks(self, row: ItemRow, steps: Sequence[RecordedStep]) -> Iterable[Block]:
        return _item_blocks(row)

    def compared(self, others: Sequence[JournalReader], query: Mapping[str, str]) -> Iterator[Section]:
        return side_by_side(self.reader, others, query, _MEASURES, _seen, limit=_COMPARED)

    def _results(self) -> Iterator[Section]:
        """The scores, and the files with them, as they were when a session last ended."""
        found = Summarizer(self.reader).read_results(SUMMARY)
        scores = found.get("scores")
        if not isinstance(scores, Mapping):
            return
        facts = [
            Fact("Conversations", number_cell(found.get("conversations"))),
            Fact("Scored", number_cell(scores.get("scored"))),
            Fact("Mean score", number_cell(scores.get("mean"), ".3f"), "From 0 to 1."),
        ]
        verdicts = scores.get("verdicts")
        for name, count in verdicts.items() if isinstance(verdicts, Mapping) else ():
            facts.append(
                Fact(cut(str(name), 40), number_cell(count, tone=VERDICT_TONES.get(name, "") if count else ""))
            )
        sizes = ((name, file_size(self.reader.folder / name)) for name in (RESULTS, SUMMARY))
        facts += [Fact(name, size_cell(size)) for name, size in sizes if size is not None]
        yield Section("Results", [Facts([each for each in facts if each.cell.text])])


def _counts(conversation: Conversation) -> tuple[int, int]:
    """How many answers a conversation has, and how many tools they call."""
    answers = [turn.message for turn in conversation.turns if turn.role == "assistant"]
    return len(answers), sum(len(message.get("tool_calls") or ()) for message in answers)


def _cells(row: ItemRow) -> Mapping[str, Cell]:
    item = ImportedItem.of(row.item)
    conversation = item.conversation
    answers, calls = _counts(conversation)
    score, verdict = score_of(conversation, row.record)
    stop = conversation.stop_reason
    return {
        "place": value_cell(Path(item.place).name, about=cut(item.place, 1000)),
        "model": value_cell(conversation.model),
        "turns": number_cell(answers),
        "tool_calls": number_cell(calls),
        "stop": value_cell(stop, tone="" if stop in (None, StopReason.ANSWERED.value) else "warn"),
        "score": score_cell(score, verdict),
        "verdict": verdict_cell(verdict),
    }


def _seen(row: ItemRow) -> Seen:
    conversation = ImportedItem.of(row.item).conversation
    answers, calls = _counts(conversation)
    score, verdict = score_of(conversation, row.record)
    tokens = conversation.usage.total_tokens or None
    figures = {"score": score, "turns": answers, "tool_calls": calls, "tokens": tokens}
    return Seen(conversation.label or row.key, verdict, figures)


def _item_blocks(row: ItemRow) -> Iterator[Block]:
    item = ImportedItem.of(row.item)
    conversation = item.conversation
    if row.message:
        yield Note(cut(row.message, 1000), "bad")
    yield Facts([each for each in _facts(item) if each.cell.text])
    grade: Mapping[str, Any] | None = (row.record or {}).get(GRADE)
    if grade is not None:
        yield from grade_blocks(
            grade.get("score"), grade.get("verdict"), grade.get("scores") or (), threshold=grade.get("threshold")
        )
    elif conversation.score is not None or conversation.scores:
        yield Note("It was graded where it took place.", "muted")
        yield from grade_blocks(conversation.score, conversation.verdict, conversation.scores)
    if conversation.result is not None:
        yield Fold("Result", [Value(conversation.result)])
    if conversation.source:
        yield Fold("Other fields of the row", [Value(dict(conversation.source))])
    if conversation.tools:
        yield Fold(
            f"Tools ({len(conversation.tools):,})", [Value([dict(each) for each in conversation.tools[:_MAX_TOOLS]])]
        )


def _facts(item: ImportedItem) -> Iterator[Fact]:
    conversation = item.conversation
    answers, calls = _counts(conversation)
    yield Fact("From", value_cell(item.place, width=300))
    yield Fact("Label", value_cell(conversation.label or None))
    yield Fact("Run", value_cell(conversation.run or None), "Where it took place.")
    yield Fact("Workload", value_cell(conversation.workload or None), "There.")
    yield Fact("Agent", value_cell(conversation.agent))
    yield Fact("Model", value_cell(conversation.model))
    yield Fact("Answers", number_cell(answers))
    yield Fact("Tool calls", number_cell(calls))
    yield Fact("Stop reason", value_cell(conversation.stop_reason))
    yield Fact("Tokens", number_cell(conversation.usage.total_tokens or None), "As the file says.")
    yield Fact("Started", time_cell(conversation.started_at))
    yield Fact("Ended", time_cell(conversation.finished_at))
    yield Fact("Seed", value_cell(conversation.seed))
