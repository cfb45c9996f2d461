"""The best of several samples of a row.

Which one that is depends on all of them, whenever and in whatever order they end. So it is no outcome of an item: all that ended well
stay completed in the journal and in the batch files, and each time that ``trajectories.jsonl`` is written, it is chosen anew from
the recorded scores of those that have ended. That gives the same however often a run was broken off.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import groupby

from manyhands.core.outcomes import ItemState
from manyhands.engine.workload import ItemRow
from manyhands.trajectories.grading import score_of
from manyhands.trajectories.items import PromptItem

NOT_BEST = "not_best"
"""Not in trajectories.jsonl because another sample of its row scored higher, or as high before it."""
_NONE = -1


class BestSamples:
    """For each row the number of its best sample. ``wanted``: False takes all samples. It holds one number a row."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._best = array("q")
        self.others = 0
        """Trajectories that are not the best of their row."""

    def judged(self, rows: Iterable[ItemRow]) -> Iterator[tuple[ItemRow, bool]]:
        """Each item, with False if it has a trajectory that is not the best of its row. ``rows``: in order of the input."""
        if not self._wanted:
            yield from ((row, True) for row in rows)
            return
        for prompt, samples in groupby(rows, key=_prompt):
            if prompt is None:
                yield from ((row, True) for row in samples)
            else:
                yield from self._judged(prompt, list(samples))

    def has(self, prompt_index: int, sample: int) -> bool:
        """Whether a trajectory is to be in the file. Only once all of ``judged`` was taken."""
        return not self._wanted or (prompt_index < len(self._best) and self._best[prompt_index] == sample)

    def _judged(self, prompt: int, rows: list[ItemRow]) -> Iterator[tuple[ItemRow, bool]]:
        completed = [row for row in rows if row.state is ItemState.COMPLETED]
        best = max(completed, key=_score, default=None)  # of equals, the first
        self._best.extend([_NONE] * (prompt + 1 - len(self._best)))
        if best is not None:
            self._best[prompt] = PromptItem.of(best.item).sample
            self.others += len(completed) - 1
        for row in rows:
            yield row, row is best or row.state is not ItemState.COMPLETED


def _score(row: ItemRow) -> float:
    score = score_of(row.record)
    return -1.0 if score is None else score


def _prompt(row: ItemRow) -> int | None:
    return None if row.left_input else PromptItem.of(row.item).prompt_index
