"""What tests of memory are made of: definitions, what a test does next, how it was answered. No I/O.

The names and rules are those of the GoodAI LTM Benchmark.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_LAST_WAIT = 90.0
"""Percentage of the memory span after which a test without waits of its own says its last line."""


def default_waits(lines: int) -> list[Wait]:
    """The waits of a script that has none: its lines spread over 90 % of the memory span."""
    return [Wait(percentage=at * _LAST_WAIT / (lines - 1)) for at in range(1, lines)] + [Wait()] * min(lines, 1)


Json = Any


@dataclass(frozen=True, slots=True)
class Wait:
    """A test pauses until all of this has passed."""

    tokens: int = 0
    """Tokens of conversation."""
    seconds: float = 0.0
    """Of virtual time."""
    percentage: float = 0.0
    """Of the test's memory span, counted from the test's beginning."""

    def __bool__(self) -> bool:
        return bool(self.tokens or self.seconds or self.percentage)


@dataclass(frozen=True, slots=True)
class Say:
    """A test sends a message."""

    message: str
    is_question: bool = False
    register: bool = False
    """Whether the dataset's callback is registered with it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A test, or whoever scores it, asks a model of the benchmark's own."""

    messages: tuple[Mapping[str, str], ...]
    """Each with ``role`` and ``content``."""
    purpose: str
    """Its purpose, as results name it."""
    temperature: float = 0.0
    max_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a test was answered."""

    score: float
    """Points, of ``maximum``."""
    maximum: float
    """Points, > 0."""
    reasons: tuple[str, ...] = ()
    """One for each point or question."""
    expected: tuple[str, ...] = ()
    """What a dynamic test expected of each answer, as its definition does not hold that."""

    @property
    def share(self) -> float:
        """The score from 0 to 1."""
        return self.score / self.maximum if self.maximum else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a callback finds after a message."""

    evaluation: Evaluation
    """How the test is answered so far."""
    finished: bool
    """Whether the callback need not be called again."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the conversation, with its reply."""

    test_id: str
    """Empty for filler and the introduction."""
    text: str
    reply: str
    is_question: bool
    sent_at: float
    """Virtual time, in seconds since 1970 UTC."""
    replied_at: float
    """Virtual time, in seconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One test of a dataset, as a definition file holds it. The script of a dynamic test is empty."""

    dataset: str
    """The dataset's name, which is its folder's."""
    example_id: str
    script: tuple[str, ...] = ()
    """The lines of the test, in order."""
    is_question: tuple[bool, ...] = ()
    """For each line of the script; one more in temporal tests, whose last question is made when it is asked."""
    waits: tuple[Wait, ...] = ()
    """After each line of the script."""
    expected_responses: Json = field(default_factory=list)
    can_be_interleaved: bool = True
    is_temporal: bool = False
    uses_callback: bool = False

    @property
    def unique_id(self) -> str:
        """What the log calls it."""
        return f"{self.dataset} - {self.example_id}"

    @property
    def number_of_questions(self) -> int:
        return sum(self.is_question)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What there is to score a test by."""

    definition: Definition
    messages: tuple[Message, ...]
    """The test's own, in order."""

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(message.text for message in self.messages if message.is_question)

    @property
    def answers(self) -> tuple[str, ...]:
        """The replies to its questions."""
        return tuple(message.reply for message in self.messages if message.is_question)


Step = Say | Wait | Ask
"""What a dynamic test does next. Of ``Say`` and ``Ask`` it gets the reply, of ``Wait`` nothing (an empty text)."""
Play = Generator[Step, str, Evaluation]
"""A dynamic test under way: a generator of its steps, which gets the replies and returns how it was answered."""
Scoring = Generator[Ask, str, Evaluation]
"""The scoring of a test: a generator that yields requests for a model, gets the model's reply, and returns the evaluation. One that
needs no model yields nothing."""


class Dataset(Protocol):
    """A kind of tests: it makes definitions and scores how they were answered. One object for a run; it keeps no state between calls."""

    @property
    def id(self) -> str:
        """Its name in configurations."""
        ...

    @property
    def name(self) -> str:
        """Its name in results and folders."""
        ...

    @property
    def description(self) -> str: ...

    @property
    def scoring(self) -> str:
        """``"published"`` for the rules by which published results were scored, ``"mended"`` for the same without their known defects."""
        ...

    def generate(self, examples: int, seed: int, memory_span: int) -> Generator[Ask, str, Sequence[Definition]]:
        """Make tests. The same arguments give the same tests. (As scorings do, it yields requests for a model.)"""
        ...

    def temporal_question(self, definition: Definition, sent_at: Sequence[float], now: float) -> str:
        """The last question of a temporal test. ``sent_at``: when its messages were sent."""
        ...

    def callback(self, definition: Definition, conversation: Sequence[Message]) -> Verdict:
        """How a test with a callback is answered so far. ``conversation``: all messages since its first question, that one first."""
        ...

    def play(self, definition: Definition) -> Play | None:
        """A dynamic test from its beginning; None for a dataset whose tests have scripts."""
        ...

    def evaluate(self, exchange: Exchange) -> Scoring:
        """Score a test whose script is at its end."""
        ...
