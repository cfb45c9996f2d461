"""How items end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from manyhands.core.failures import Cause

GRADE = "grade"
"""In the record of an outcome: what graders found."""


class ItemState(StrEnum):
    """Where an item stands. The last four are final; an item is in exactly one state at any time."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    DISCARDED = "discarded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    final: bool
    """Whether nothing follows any more."""

    def __init__(self, value: str) -> None:
        self.final = value not in ("pending", "running")


OutputLine = tuple[str, str | bytes]
"""A file name (in the run folder) and one line of text without its newline, as text or already in UTF-8."""


@dataclass(slots=True)  # not frozen, which would make it slow to make, and one is made for each item
class Outcome:
    """How an item ended. Not to be changed."""

    state: ItemState
    record: dict[str, Any] = field(default_factory=dict)
    """A small JSON object that the workload keeps with the item: together with the item's steps it must be enough to write the item's
    output again."""
    line: OutputLine | None = None
    """What the item adds to the run's output now."""
    reason: str | None = None
    """Why it was discarded (a short identifier, as ``no_reasoning``)."""
    cause: Cause | None = None
    """Why it failed or was cancelled."""
    message: str | None = None
    """The failure in one line, for people."""

    def __post_init__(self) -> None:
        if not self.state.final:
            raise ValueError(f"{self.state} is not an end")


class StopReason(StrEnum):
    """Why an agent's conversation ended."""

    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    TRUNCATED = "truncated"
    EMPTY_ANSWER = "empty_answer"
    UNKNOWN_TOOLS = "unknown_tools"
    INVALID_ARGUMENTS = "invalid_arguments"
    UNCLOSED_REASONING = "unclosed_reasoning"
    CONTEXT_OVERFLOW = "context_overflow"
    CONTENT_FILTER = "content_filter"
    TIME_LIMIT = "time_limit"
    AGENT_ERROR = "agent_error"
    """A program that worked in place of the built-in agent ended with an error code."""
