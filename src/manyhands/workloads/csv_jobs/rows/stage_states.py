"""How the stages of a row are recorded: with each its state, and its result or error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from manyhands.core.outcomes import ItemState
from manyhands.engine.contract import ItemResult

COMPLETED, SKIPPED, FAILED, PENDING = "completed", "skipped", "failed", "pending"
"""How a stage of a row stands."""
RESULT = "result"
"""The key of a stage's result; in the record of a completed row, that of all its stages."""
STAGES = "stages"
"""The key of the stages in the record of a row that failed."""


class StageCounts(TypedDict):
    """How the rows stand in one stage."""

    name: str
    completed: int
    skipped: int
    """Its condition does not hold for them."""
    failed: int
    pending: int
    """Their stages have not ended yet, or an earlier one failed."""


def entries_of(record: Mapping[str, Any] | None) -> Mapping[str, Mapping[str, Any]]:
    """The stages in the record of a row, by name; empty for a row that has not ended."""
    found = record or {}
    return found.get(STAGES) or found.get(RESULT) or {}


def count_stages(names: Sequence[str], rows: Iterable[ItemResult]) -> list[StageCounts]:
    """How all rows that can be executed stand in each stage."""
    counts = {name: dict.fromkeys((COMPLETED, SKIPPED, FAILED, PENDING), 0) for name in names}
    for row in rows:
        if row.state in (ItemState.DISCARDED, ItemState.CANCELLED):
            continue
        entries = entries_of(row.record)
        for name in names:
            counts[name][entries.get(name, {}).get("state", PENDING)] += 1
    return [
        StageCounts(
            name=name, completed=each[COMPLETED], skipped=each[SKIPPED], failed=each[FAILED], pending=each[PENDING]
        )
        for name, each in counts.items()
    ]
