"""What the scheduler works with: tests that have begun, what they wait for, and the actions that it asks of its driver. No I/O."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from manyhands.workloads.memory.conversation.definitions import (
    Ask,
    Dataset,
    Definition,
    Evaluation,
    Exchange,
    Json,
    Message,
    Play,
    Say,
    Step,
    Wait,
)

CALLBACK_WAIT = Wait(tokens=1)
"""What a test with a callback does at its script's end, until the callback has finished it."""


@dataclass(frozen=True, slots=True)
class ScheduledTest:
    """A test with the dataset that knows its rules."""

    definition: Definition
    dataset: Dataset
    memory_span: int | None = None
    """In tokens; None for the conversation's."""
    reset_message: str | None = None
    """Takes back what the test told the agent; empty for nothing, None for what the conversation's wording has for the dataset."""

    @property
    def id(self) -> str:
        return self.definition.unique_id


class Steps(Protocol):
    """The steps of a test that has begun."""

    def step(self, reply: str, now: float) -> Step | None:
        """The next step; None at the end. ``reply``: to the step before, empty at the first one and after waits; ``now``: virtual time."""
        ...


@dataclass(slots=True)
class RunningTest:
    """A test that has begun."""

    test: ScheduledTest
    start_tokens: int
    """Tokens of the conversation when it began."""
    steps: Steps = field(init=False)
    messages: list[Message] = field(default_factory=list)
    first: int | None = None
    """The index of its first message in the conversation; None before there is one."""
    first_question: int | None = None
    """The index of its first question in the conversation; None before there is one."""
    heard_from: int | None = None
    """The index of the message with which its callback begins to read."""
    last_reply: int = 0
    """Tokens of the last reply to it."""
    reply: str = ""
    """The reply to its last step, until the next step takes it."""
    finished: bool = False
    evaluation: Evaluation | None = None

    def __post_init__(self) -> None:
        play = self.test.dataset.play(self.test.definition)
        self.steps = _Script(self) if play is None else _Dynamic(self, play)

    @property
    def exchange(self) -> Exchange:
        return Exchange(self.test.definition, tuple(self.messages))

    def step(self, now: float) -> Step | None:
        """The next step; None, and ``finished``, at the end."""
        reply, self.reply = self.reply, ""
        step = None if self.finished else self.steps.step(reply, now)
        self.finished = step is None
        return step


class _Script:
    """A test with a script: each line, and after it its wait if it has one."""

    def __init__(self, running: RunningTest) -> None:
        self._running = running
        self._steps = self._make()
        self._now = 0.0

    def step(self, reply: str, now: float) -> Step | None:
        self._now = now
        return next(self._steps, None)

    def _make(self) -> Generator[Step]:
        definition = self._running.test.definition
        for at, is_question in enumerate(definition.is_question):
            text = definition.script[at] if at < len(definition.script) else self._temporal_question()
            yield Say(text, is_question, register=definition.uses_callback and is_question)
            if at < len(definition.waits) and definition.waits[at]:
                yield definition.waits[at]
        while definition.uses_callback and not self._running.finished:
            yield CALLBACK_WAIT

    def _temporal_question(self) -> str:
        sent_at = [message.sent_at for message in self._running.messages]
        return self._running.test.dataset.temporal_question(self._running.test.definition, sent_at, self._now)


class _Dynamic:
    """A test that decides from the replies what it does next."""

    def __init__(self, running: RunningTest, play: Play) -> None:
        self._running = running
        self._play = play
        self._begun = False

    def step(self, reply: str, now: float) -> Step | None:
        try:
            if self._begun:
                return self._play.send(reply)
            self._begun = True
            return next(self._play)
        except StopIteration as end:
            self._running.evaluation = end.value
            return None


@dataclass(frozen=True, slots=True)
class Target:
    """What a test waits for."""

    tokens: int
    """Tokens of the conversation."""
    time: float
    """Virtual time, in seconds since 1970 UTC."""

    def is_reached(self, tokens: int, now: float) -> bool:
        return self.tokens <= tokens and self.time <= now


class WaitList(dict[str, Target]):
    """The waiting tests with their targets, by id, in the order in which they began to wait."""

    def put(self, test_id: str, target: Target) -> None:
        """The test begins to wait."""
        self.drop(test_id)
        self[test_id] = target

    def drop(self, test_id: str) -> None:
        """The test waits no longer, if it did."""
        self.pop(test_id, None)

    def reached(self, tokens: int, now: float) -> str | None:
        """The test that may go on and has waited for the smallest count of tokens."""
        free = (test_id for test_id, target in self.items() if target.is_reached(tokens, now))
        return min(free, key=self._tokens, default=None)

    def next_in_time(self, now: float) -> str | None:
        """Of the tests that wait for a time to come, the one with the earliest."""
        pending = (test_id for test_id, target in self.items() if target.time > now)
        return min(pending, key=lambda test_id: self[test_id].time, default=None)

    def next_in_tokens(self, tokens: int) -> str | None:
        """Of the tests that wait for tokens, the one that needs the fewest."""
        pending = (test_id for test_id, target in self.items() if target.tokens > tokens)
        return min(pending, key=self._tokens, default=None)

    def _tokens(self, test_id: str) -> int:
        return self[test_id].tokens


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Which datasets may be interleaved. A dataset always excludes itself."""

    sets: Sequence[frozenset[str]] = ()
    """The ids of datasets that exclude each other."""

    def allows(self, dataset: str, others: Iterable[str]) -> bool:
        """Whether a test of the dataset may run beside tests of the others."""
        return not any(self._exclude(dataset, other) for other in others)

    def _exclude(self, one: str, other: str) -> bool:
        return one == other or any(one in each and other in each for each in self.sets)


def tokens_to_wait(wait: Wait, memory_span: int, elapsed: int, last_reply: int) -> int:
    """How many tokens a test really waits for.

    ``elapsed``: tokens since the test began; ``last_reply``: tokens of the last reply to it, which count as waited for already.
    """
    tokens = wait.tokens
    if wait.percentage > 0:
        target = math.floor(memory_span / 100 * wait.percentage)
        tokens = max(0, target - elapsed, wait.tokens)
    return max(0, tokens - last_reply) if tokens > 1 else tokens


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


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the agent, then call ``Scheduler.replied``."""

    test_id: str
    """Empty for filler and the introduction."""
    message: str
    is_question: bool = False
    is_filler: bool = False
    expected_reply: str | None = None
    """A reply that an agent may take as its own instead of making one; None where it must really answer."""


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
    """Set the virtual clock forward."""

    to: float
    """In seconds since 1970 UTC; later than now."""


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
    """What decides how tests are interleaved, besides the tests."""

    memory_span: int
    """In tokens, > 0."""
    introduction: str
    reset_messages: Mapping[str, str] = field(default_factory=dict)
    """By the dataset's name."""
    incompatibilities: Sequence[frozenset[str]] = ()
    """As ``Compatibility.sets``."""
    isolated: bool = False
    """One test after the other, without filler, the agent reset between them."""
    max_message_size: int = 4096
    """Tokens of one filler message."""

    def reset_message(self, test: ScheduledTest) -> str:
        """What takes back what a test told the agent; empty for nothing."""
        if test.reset_message is not None:
            return test.reset_message
        return self.reset_messages.get(test.dataset.name, "")


@dataclass(frozen=True, slots=True)
class Counters:
    """What a conversation has spent."""

    total_tokens: int = 0
    agent_tokens: int = 0
    """Of replies only."""
    duration: float = 0.0
    """Seconds in which the agent replied."""
    filler_state: Json = None
    """Of the generator that draws filler, in the shape of ``random.Random.getstate``."""


@dataclass(frozen=True, slots=True)
class EndedTest:
    """A test that has ended, with what there is to score and show it by."""

    test: ScheduledTest
    evaluation: Evaluation
    exchange: Exchange
    first: int
    """The index of its first message in the conversation."""
    last: int
    """The index in the conversation before which its part ends; other messages may lie between."""
    ended: int
    """The index of its END among the events."""
    tokens: int
    """Of the conversation from ``first`` to before ``last``."""
    characters: int
    """Of the conversation from ``first`` to before ``last``."""
