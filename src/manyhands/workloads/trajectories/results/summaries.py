"""The summaries of a batch of trajectories and of its items."""

from __future__ import annotations

from manyhands.engine.contract import ItemRow
from manyhands.runs.summaries import Figure, ItemSummary, Summarizer, brief, figure
from manyhands.workloads.trajectories.items import PromptItem
from manyhands.workloads.trajectories.records import GRADE
from manyhands.workloads.trajectories.results.exports import STATISTICS


class TrajectorySummarizer(Summarizer):
    """What an item's prompt was, how its conversation ended, and what graders found."""

    def item(self, row: ItemRow) -> ItemSummary:
        payload, record = PromptItem.of(row.item), row.record or {}
        grade = record.get(GRADE) or {}
        return {
            **super().item(row),
            "label": payload.id or f"prompt {payload.prompt_index}",
            "sample": payload.sample,
            "score": grade.get("score"),
            "verdict": grade.get("verdict"),
            "input": brief(payload.prompt),
            "outcome": brief(row.message or record.get("stop_reason")),
        }

    def figures(self) -> list[Figure]:
        scores = self.read_results(STATISTICS).get("scores")
        return [] if scores is None else [figure("mean_score", scores["mean"], ".3f")]
