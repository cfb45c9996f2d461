"""What the scheduler asks of whoever drives it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from manyhands.memory.model import Ask, Definition, Exchange


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the agent, then call ``Scheduler.replied``.

    ``test_id``: empty for filler and the introduction. ``expected_reply``: a reply that an agent may take as its own instead of making one;
    None where it must really answer.
    """

    test_id: str
    message: str
    is_question: bool = False
    is_filler: bool = False
    expected_reply: str | None = None


@dataclass(frozen=True, slots=True)
class AskModel:
    """Ask the benchmark's own model on behalf of a dynamic test, then call ``Scheduler.answered``."""

    test_id: str
    ask: Ask


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Score a test with its dataset's ``evaluate``, then call ``Scheduler.evaluated``. Tests with a callback and dynamic tests bring their
    evaluation with them and are not given out here."""

    test_id: str
    definition: Definition
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class Travel:
    """Set the virtual clock to this time, in seconds since the epoch; it is later than now."""

    to: float


class Saved(Enum):
    """What the original writes to disk at a point of a session (section 3.2)."""

    PROGRESS = "progress"
    """Counters and the agent."""
    RESULT = "result"
    """A test's result and the counters."""
    AGENT = "agent"
    """The agent."""


@dataclass(frozen=True, slots=True)
class Save:
    """A point at which the original saves; a driver that keeps every step may pass over it."""

    what: Saved


@dataclass(frozen=True, slots=True)
class ResetAgent:
    """The agent forgets everything: in isolated mode, after each test."""


@dataclass(frozen=True, slots=True)
class Done:
    """All tests have ended. ``Scheduler.next`` must not be called again."""


Action = Send | AskModel | Evaluate | Travel | Save | ResetAgent | Done
