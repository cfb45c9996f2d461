"""How a row ends without a result, in the words that the original's users know (behaviour specification, sections 2.4 and 4.3)."""

from __future__ import annotations

from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import StopReason

UNREPORTED = "worker finished without calling report_agent_job_result"
LONGEST_WORDS = 2000
"""Characters that are kept of a worker's last words."""


def overdue(seconds: float) -> ItemError:
    """The worker took longer than it may."""
    return ItemError(Cause.TIMEOUT, f"worker exceeded max runtime of {seconds:g}s")


def unreported(record: dict[str, Any], *, stopped: StopReason = StopReason.ANSWERED) -> ItemError:
    """The worker ended, but there is no result. ``stopped``: how an agent's conversation ended."""
    if stopped is StopReason.ANSWERED:
        return ItemError(Cause.INVALID_OUTPUT, UNREPORTED, record=record)
    cause = Cause.CONTEXT_OVERFLOW if stopped is StopReason.CONTEXT_OVERFLOW else Cause.INVALID_OUTPUT
    return ItemError(cause, f"{UNREPORTED} ({stopped.value})", record=record)


def last_words(text: str) -> str:
    """The end of what a worker said, within bounds."""
    text = text.strip()
    return text if len(text) <= LONGEST_WORDS else f"…{text[1 - LONGEST_WORDS :]}"
