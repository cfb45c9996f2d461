"""Tests that have begun: the steps of each in order, whether it has a script or is dynamic, and which of them wait, for what."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from manyhands.workloads.memory.conversation.definitions import (
    Dataset,
    Definition,
    Evaluation,
    Exchange,
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
    """A test with the dataset that knows its rules. ``memory_span``: in tokens; None for the session's. ``reset_message``: what takes back
    what the test told the agent, empty for nothing; None for what the session's wording has for the dataset."""

    definition: Definition
    dataset: Dataset
    memory_span: int | None = None
    reset_message: str | None = None

    @property
    def id(self) -> str:
        return self.definition.unique_id


class Course(Protocol):
    """Where a test stands."""

    def step(self, reply: str, now: float) -> Step | None:
        """The next step; None at the end. ``reply``: to the step before, empty at the first one and after waits; ``now``: virtual time."""
        ...


@dataclass(slots=True)
class Run:
    """A test that has begun. ``start_tokens``: the session's count when it began; ``first`` and ``first_question``: indices in the
    conversation, None before there are any; ``heard_from``: where its callback begins to read; ``last_reply``: tokens of the last reply
    to it."""

    test: ScheduledTest
    start_tokens: int
    course: Course = field(init=False)
    messages: list[Message] = field(default_factory=list)
    first: int | None = None
    first_question: int | None = None
    heard_from: int | None = None
    last_reply: int = 0
    reply: str = ""
    finished: bool = False
    evaluation: Evaluation | None = None
    known_answers: list[str] = field(default_factory=list)
    """Answers of the benchmark's model that the log of an interrupted session holds already."""

    def __post_init__(self) -> None:
        play = self.test.dataset.play(self.test.definition)
        self.course = _Script(self) if play is None else _Dynamic(self, play)

    @property
    def exchange(self) -> Exchange:
        return Exchange(self.test.definition, tuple(self.messages))

    def step(self, now: float) -> Step | None:
        """The next step; None, and ``finished``, at the end."""
        reply, self.reply = self.reply, ""
        step = None if self.finished else self.course.step(reply, now)
        self.finished = step is None
        return step


class _Script:
    """A test with a script: each line, and after it its wait if it has one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._steps = self._make()
        self._now = 0.0

    def step(self, reply: str, now: float) -> Step | None:
        self._now = now
        return next(self._steps, None)

    def _make(self) -> Generator[Step]:
        definition = self._run.test.definition
        for at, is_question in enumerate(definition.is_question):
            text = definition.script[at] if at < len(definition.script) else self._temporal_question()
            yield Say(text, is_question, register=definition.uses_callback and is_question)
            if at < len(definition.waits) and definition.waits[at]:
                yield definition.waits[at]
        while definition.uses_callback and not self._run.finished:
            yield CALLBACK_WAIT

    def _temporal_question(self) -> str:
        sent_at = [message.sent_at for message in self._run.messages]
        return self._run.test.dataset.temporal_question(self._run.test.definition, sent_at, self._now)


class _Dynamic:
    """A test that decides from the replies what it does next."""

    def __init__(self, run: Run, play: Play) -> None:
        self._run = run
        self._play = play
        self._begun = False

    def step(self, reply: str, now: float) -> Step | None:
        try:
            if self._begun:
                return self._play.send(reply)
            self._begun = True
            return next(self._play)
        except StopIteration as end:
            self._run.evaluation = end.value
            return None


@dataclass(frozen=True, slots=True)
class Target:
    """What a test waits for. ``tokens``: the session's count of tokens; ``time``: virtual, in seconds since the epoch."""

    tokens: int
    time: float

    def is_reached(self, tokens: int, now: float) -> bool:
        return self.tokens <= tokens and self.time <= now


class WaitList:
    """The waiting tests with their targets, in the order in which they began to wait."""

    def __init__(self) -> None:
        self._targets: dict[str, Target] = {}

    def __contains__(self, test_id: str) -> bool:
        return test_id in self._targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, test_id: str) -> Target:
        return self._targets[test_id]

    def put(self, test_id: str, target: Target) -> None:
        """The test begins to wait."""
        self._targets.pop(test_id, None)
        self._targets[test_id] = target

    def drop(self, test_id: str) -> None:
        """The test waits no longer, if it did."""
        self._targets.pop(test_id, None)

    def is_reached(self, test_id: str, tokens: int, now: float) -> bool:
        return self._targets[test_id].is_reached(tokens, now)

    def reached(self, tokens: int, now: float) -> str | None:
        """The test that may go on and has waited for the smallest count of tokens."""
        free = (test_id for test_id, target in self._targets.items() if target.is_reached(tokens, now))
        return min(free, key=self._tokens, default=None)

    def next_in_time(self, now: float) -> str | None:
        """Of the tests that wait for a time to come, the one with the earliest."""
        pending = (test_id for test_id, target in self._targets.items() if target.time > now)
        return min(pending, key=lambda test_id: self._targets[test_id].time, default=None)

    def next_in_tokens(self, tokens: int) -> str | None:
        """Of the tests that wait for tokens, the one that needs the fewest."""
        pending = (test_id for test_id, target in self._targets.items() if target.tokens > tokens)
        return min(pending, key=self._tokens, default=None)

    def _tokens(self, test_id: str) -> int:
        return self._targets[test_id].tokens


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Which datasets may be interleaved. ``sets``: the ids of datasets that exclude each other; a dataset always excludes itself."""

    sets: Sequence[frozenset[str]] = ()

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
