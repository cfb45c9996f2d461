"""The summaries of runs of the memory benchmark: of conversations, of tests that a model writes, and of scores given afterwards."""

from __future__ import annotations

from statistics import fmean

from manyhands.engine.contract import ItemRow
from manyhands.runs.summaries import Figure, ItemFacts, Summarizer, figure


class MemorySummarizer(Summarizer):
    """Which agent a conversation was with, and what its tests came to."""

    def facts(self, row: ItemRow) -> ItemFacts:
        record = row.record or {}
        max_score = record.get("max_score")
        tests = f", {len(record['tests'])} tests" if "tests" in record else ""  # of the first version not
        text = f"{record['score']:.2f} of {max_score}{tests}" if max_score else None
        payload = row.payload
        return ItemFacts(payload["name"], score=_share(row), input=payload["agent"], outcome=row.message or text)

    def figures(self) -> list[Figure]:
        rows = (row for row in self.reader.items() if not row.left_input)
        scores = [score for row in rows if (score := _share(row)) is not None]
        return [figure("mean_score", fmean(scores) if scores else None, ".3f")]


def _share(row: ItemRow) -> float | None:
    """The score of a conversation as a share of the highest; None if it has none."""
    record = row.record or {}
    return record["score"] / record["max_score"] if record.get("max_score") else None


class DefinitionsSummarizer(Summarizer):
    """How many tests a model wrote for a dataset."""

    def facts(self, row: ItemRow) -> ItemFacts:
        made = (row.record or {}).get("definitions")
        text = None if made is None else f"{len(made)} tests"
        return ItemFacts(row.key.partition(" ")[2], outcome=row.message or text)


class ScoresSummarizer(Summarizer):
    """What a judge gave for a test's result."""

    def facts(self, row: ItemRow) -> ItemFacts:
        payload, record = row.payload, row.record or {}
        verdict = record.get("verdict")
        return ItemFacts(
            f"{payload['agent']}/{payload['dataset']}",
            0,
            record.get("score"),
            verdict,
            payload["file"],
            row.message or record.get("why") or verdict,
        )
