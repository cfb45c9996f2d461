"""The files of an import, written from its journal at the end of each session.

``results.jsonl`` has a line for each conversation in the form of an evaluation's results, by which runs are compared;
``import_summary.json`` says what was imported, and how it scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypedDict

from manyhands.core.jsonio import compact_line, pretty
from manyhands.core.outcomes import GRADE, ItemState
from manyhands.engine.contract import ItemRow, RunReader
from manyhands.export.conversations import Conversation
from manyhands.io.files import bytes_written_aside, written_aside
from manyhands.workloads.imported.planning import ImportedItem

RESULTS = "results.jsonl"
SUMMARY = "import_summary.json"
TARGET = "imported"
"""Who answered, in all results: which model it was must not keep two imports from being compared."""
_VERDICTS = ("pass", "borderline", "fail")


class ImportResult(TypedDict):
    """A line of ``results.jsonl``: a conversation."""

    test_id: str
    """The item's key."""
    target: str
    score: float | None
    """Of the graders here, else the one that it came with; null if there is none."""
    verdict: str | None
    scores: list[Mapping[str, Any]]
    """Of each grader."""
    model: str | None
    """Who answered, as far as the file said."""
    error: str | None
    """Why it could not be graded."""
    place: str
    """Where it was read: file and line."""


class ScoreSummary(TypedDict):
    """The scores of conversations."""

    scored: int
    mean: float | None
    verdicts: dict[str, int]
    """Of those that have one."""


class ImportSummary(TypedDict):
    """What ``import_summary.json`` holds."""

    format: str
    files: list[str]
    conversations: int
    left_out: int
    """Rows that are none."""
    first_left_out: list[str]
    """The first of them, each with its place and what is wrong with it."""
    scores: ScoreSummary


def write_results(reader: RunReader, spec: Mapping[str, Any]) -> None:
    """Write both files. Raises StorageError if one can't be written; the old one is then still there."""
    verdicts: Counter[str] = Counter()
    conversations, scored, total = 0, 0, 0.0
    with reader.snapshot(), bytes_written_aside(reader.folder / RESULTS) as handle:
        for row in reader.items():
            conversations += 1
            if not row.state.final:
                continue
            result = result_of(row)
            handle.write(compact_line(result))
            if result["score"] is not None:
                scored += 1
                total += result["score"]
            if result["verdict"] in _VERDICTS:
                verdicts[result["verdict"]] += 1
    left_out = spec.get("left_out") or {"count": 0, "named": []}
    summary: ImportSummary = {
        "format": spec["options"]["from_"],
        "files": list(spec["options"]["input_files"]),
        "conversations": conversations,
        "left_out": left_out["count"],
        "first_left_out": left_out["named"],
        "scores": {
            "scored": scored,
            "mean": total / scored if scored else None,
            "verdicts": {verdict: verdicts[verdict] for verdict in _VERDICTS},
        },
    }
    with written_aside(reader.folder / SUMMARY) as text:
        text.write(pretty(summary) + "\n")


def result_of(row: ItemRow) -> ImportResult:
    """The line of an item that has ended."""
    item = ImportedItem.of(row.item)
    score, verdict = score_of(item.conversation, row.record)
    grade = (row.record or {}).get(GRADE)
    return {
        "test_id": row.key,
        "target": TARGET,
        "score": score,
        "verdict": verdict,
        "scores": list(item.conversation.scores if grade is None else grade["scores"]),
        "model": item.conversation.model,
        "error": None if row.state is ItemState.COMPLETED else row.message or row.reason or row.cause or str(row.state),
        "place": item.place,
    }


def score_of(conversation: Conversation, record: Mapping[str, Any] | None) -> tuple[float | None, str | None]:
    """The score and verdict of graders here; where there are none, those that a conversation came with."""
    grade = (record or {}).get(GRADE)
    if grade is not None:
        return grade["score"], grade["verdict"]
    return conversation.score, conversation.verdict
