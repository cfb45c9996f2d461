"""The data of the scheduler: what it is given, what it asks of whoever drives it, and what it has to tell. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from manyhands.workloads.memory.conversation.definitions import Ask, Definition, Evaluation, Exchange, Json
from manyhands.workloads.memory.conversation.running_tests import ScheduledTest


@dataclass(frozen=True, slots=True)
class Filler:
    """A filler message with the reply that lists its answers."""

    message: str
    expected_reply: str


class FillerWriter(Protocol):
    """Where a scheduler gets filler from."""

    def write(self, limit: int) -> Filler:
        """A message which, with its reply, takes about ``limit`` tokens."""
        ...

    @property
    def state(self) -> Json:
        """The generator's state, in the shape of ``random.Random.getstate`` after a passage through JSON."""
        ...

    def restore(self, state: Json) -> None:
        """Set the generator's state. Raises ValueError if it is none."""
        ...


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
    """What the GoodAI LTM Benchmark writes to disk at a point of a conversation."""

    PROGRESS = "progress"
    """Counters and the agent."""
    RESULT = "result"
    """A test's result and the counters."""
    AGENT = "agent"
    """The agent."""


@dataclass(frozen=True, slots=True)
class Save:
    """A point at which the GoodAI LTM Benchmark saves; a driver that keeps every step may pass over it."""

    what: Saved


@dataclass(frozen=True, slots=True)
class ResetAgent:
    """The agent forgets everything: in isolated mode, after each test."""


@dataclass(frozen=True, slots=True)
class Done:
    """All tests have ended. ``Scheduler.next`` must not be called again."""


Action = Send | AskModel | Evaluate | Travel | Save | ResetAgent | Done


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """``memory_span``: tokens, > 0. ``isolated``: one test after the other, without filler, the agent reset between them.
    ``max_message_size``: tokens of one filler message. ``reset_messages``: by the dataset's name."""

    memory_span: int
    introduction: str
    reset_messages: Mapping[str, str] = field(default_factory=dict)
    incompatibilities: Sequence[frozenset[str]] = ()
    isolated: bool = False
    max_message_size: int = 4096

    def reset_message(self, test: ScheduledTest) -> str:
        """What takes back what a test told the agent; empty for nothing."""
        if test.reset_message is not None:
            return test.reset_message
        return self.reset_messages.get(test.dataset.name, "")


@dataclass(frozen=True, slots=True)
class Counters:
    """What a session has spent. ``agent_tokens``: of replies only; ``duration``: seconds in which the agent replied; ``filler_state``: of
    the generator that draws filler, in the shape of ``random.Random.getstate``."""

    total_tokens: int = 0
    agent_tokens: int = 0
    duration: float = 0.0
    filler_state: Json = None


@dataclass(frozen=True, slots=True)
class EndedTest:
    """A test that has ended, with what there is to score and show it by.

    ``first`` and ``last``: its part of the conversation, from its first message to before ``last``, with all that came between;
    ``ended``: the index of its END among the events; ``tokens`` and ``characters``: of that part of the conversation.
    """

    test: ScheduledTest
    evaluation: Evaluation
    exchange: Exchange
    first: int
    last: int
    ended: int
    tokens: int
    characters: int
