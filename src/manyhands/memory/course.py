"""The course of one test: its steps in order, whether it has a script or is dynamic."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol

from manyhands.memory.model import (
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
