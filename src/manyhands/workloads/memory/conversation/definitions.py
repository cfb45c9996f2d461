"""What tests of memory are made of: definitions, what a test does next, what comes of it. No I/O.

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
    """A test pauses until all of this has passed. ``tokens``: tokens of conversation; ``seconds``: of virtual time; ``percentage``: of the
    test's memory span, counted from the test's beginning."""

    tokens: int = 0
    seconds: float = 0.0
    percentage: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.tokens or self.seconds or self.percentage)


@dataclass(frozen=True, slots=True)
class Say:
    """A test sends a message. ``register``: the dataset's callback is registered with it."""

    message: str
    is_question: bool = False
    register: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A test, or whoever scores it, asks a model of the benchmark's own: ``messages`` with ``role`` and ``content``. ``purpose``: what for,
    as results name it."""

    messages: tuple[Mapping[str, str], ...]
    purpose: str
    temperature: float = 0.0
    max_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well a test was answered: ``score`` of ``maximum`` points (> 0), with a reason for each point or question. ``expected``: what a
    dynamic test expected of each answer, as its definition does not hold that."""

    score: float
    maximum: float
    reasons: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The score from 0 to 1."""
        return self.score / self.maximum if self.maximum else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a callback finds after a message: how the test stands, and whether the callback is done with."""

    evaluation: Evaluation
    finished: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the conversation, with its reply. ``test_id``: empty for filler and the introduction; times are virtual, in seconds
    since the epoch."""

    test_id: str
    text: str
    reply: str
    is_question: bool
    sent_at: float
    replied_at: float


@dataclass(frozen=True, slots=True)
class Definition:
    """One test of a dataset, as a definition file holds it. ``dataset``: the dataset's name, which is its folder's;
    ``is_question`` has an entry for each line of the script, and one more in temporal tests, whose last question is made when it is asked.
    Dynamic tests have empty lists."""

    dataset: str
    example_id: str
    script: tuple[str, ...] = ()
    is_question: tuple[bool, ...] = ()
    waits: tuple[Wait, ...] = ()
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
    """What there is to score a test by. ``messages``: the test's own, in order; ``answers``: the replies to its questions."""

    definition: Definition
    messages: tuple[Message, ...]

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(message.text for message in self.messages if message.is_question)

    @property
    def answers(self) -> tuple[str, ...]:
        return tuple(message.reply for message in self.messages if message.is_question)


Step = Say | Wait | Ask
"""What a dynamic test does next. Of ``Say`` and ``Ask`` it gets the reply, of ``Wait`` nothing (an empty text)."""
Play = Generator[Step, str, Evaluation]
"""A dynamic test as it is played; it returns how it was answered."""
Scoring = Generator[Ask, str, Evaluation]
"""The scoring of a test: a generator that yields what a model has to be asked, gets the model's reply, and returns the evaluation. One that
needs no model yields nothing."""


class Dataset(Protocol):
    """A kind of tests: it makes definitions and scores what comes of them. One object for a run; it keeps no state between calls.

    ``id``: its name in configurations; ``name``: its name in results and folders; ``scoring``: ``"published"`` for the rules by which
    published results were scored, ``"mended"`` for the same without their known defects.
    """

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def scoring(self) -> str: ...

    def generate(self, examples: int, seed: int, memory_span: int) -> Generator[Ask, str, Sequence[Definition]]:
        """Make tests. The same arguments give the same tests. (As scorings do, it yields what a model has to be asked.)"""
        ...

    def temporal_question(self, definition: Definition, sent_at: Sequence[float], now: float) -> str:
        """The last question of a temporal test. ``sent_at``: when its messages were sent."""
        ...

    def callback(self, definition: Definition, conversation: Sequence[Message]) -> Verdict:
        """How a test with a callback stands. ``conversation``: all messages since its first question, that one first."""
        ...

    def play(self, definition: Definition) -> Play | None:
        """A dynamic test from its beginning; None for a dataset whose tests have scripts."""
        ...

    def evaluate(self, exchange: Exchange) -> Scoring:
        """Score a test whose script is at its end."""
        ...
