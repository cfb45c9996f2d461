"""What is shown of an item that can't be shown as what it is: its row is damaged, or of a form that its workload does not know."""

from __future__ import annotations

from typing import cast

from manyhands.core.usage import ZERO, UsageFigures
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.browsing import DamagedRow
from manyhands.runs.shown.cells import DAMAGED
from manyhands.runs.summaries import ItemSummary, brief


def checked(row: ItemRow) -> ItemRow:
    """The row. Raises ValueError if it is damaged."""
    if isinstance(row, DamagedRow):
        raise ValueError(row.message)
    return row


def damaged_summary(row: ItemRow, error: Exception) -> ItemSummary:
    """The summary of an item whose own could not be made."""
    problem = str(error) if isinstance(row, DamagedRow) else f"this version can't show it as what it is ({error!r})"
    return {
        "item": row.number,
        "key": row.key,
        "position": None if row.left_input else row.position,
        "sample": 0,
        "label": brief(row.key) or str(row.number),
        "state": row.state.value,
        "attempt": row.attempt,
        "performances": row.performances,
        "reason": None,
        "cause": DAMAGED,
        "message": problem,
        "score": None,
        "verdict": None,
        "usage": cast(UsageFigures, ZERO.to_json()),
        "input": "",
        "outcome": brief(problem),
        "sandbox": None,
        "started_at": None,
        "finished_at": None,
    }
