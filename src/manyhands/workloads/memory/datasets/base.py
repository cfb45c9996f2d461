"""The base class of datasets: arguments, the making of tests, checks, scoring, and what an agent that remembers everything would say."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from manyhands.core.digests import Draws
from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import (
    Ask,
    Definition,
    Evaluation,
    Exchange,
    Json,
    Message,
    Play,
    Scoring,
    Verdict,
    default_waits,
)
from manyhands.workloads.memory.datasets.recorded import RecordedTest, Rescoring

T = TypeVar("T")
Rules = Literal["published", "mended"]
"""By which rules answers are scored: ``published`` as published results were, ``mended`` without the known defects of those rules."""

CountTokens = Callable[[str], int]
JudgeRule = Callable[[Json], Json]
"""From the data of a request to a model to the JSON that is replied. It understands nothing, so what follows from it is rough."""
AROUND_A_LINE = 4
"""Tokens that each message is counted with besides its text."""
ACKNOWLEDGED = "Understood."
DEFINITIONS_FOLDER = "DATA_DIR/tests/RUN_NAME/definitions"
"""What stands in errors for the folder of a run's tests, which datasets don't know; it is put in where the errors are reported."""
MAX_NAME_BYTES = 100
"""Bytes of a dataset's name, which is that of a folder."""


_DATA = files("manyhands.workloads.memory.datasets.builtin").joinpath("data")


@cache
def texts(name: str) -> Mapping[str, Any]:
    """The texts that a built-in dataset's tests are made of: ``builtin/data/NAME.json``, lists as tuples. Their order matters: another one
    gives other tests for the same seed."""
    content: Mapping[str, Any] = _as_tuples(json.loads(_DATA.joinpath(f"{name}.json").read_text(encoding="utf-8")))
    return content


@cache
def prompt(name: str) -> str:
    """The instructions for a model that judges, or that writes tests: ``builtin/data/prompts/NAME.txt``."""
    return _DATA.joinpath("prompts", f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_tuples(each) for key, each in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def estimated_tokens(text: str) -> int:
    """About as many tokens as a text has, where no tokenizer is given: one for four bytes."""
    return (len(text.encode("utf-8", "replace")) + 3) // 4


class DatasetArguments(BaseModel):
    """What every dataset's ``args`` may hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)

    name: str | None = None
    description: str | None = None
    question: str | None = None
    memory_span: int = Field(default=0, ge=0)
    """Tokens; like the next two usually set for all datasets at once."""
    seed: int = 0
    dataset_examples: int | None = Field(default=None, ge=0)
    """Number of tests."""
    uses_callback: bool | None = None
    reset_message: str | None = None
    """What is said after a test so that it does not spoil the next; None: as the benchmark's wording has it
    (``BaseDataset.default_reset``)."""
    max_message_size: int = Field(default=1024, gt=0)

    @field_validator("name")
    @classmethod
    def _is_folder_name(cls, value: str | None) -> str | None:
        if value is not None and (set("/\\\0") & set(value) or value.strip(" .") == "" or not value.isprintable()):
            raise ValueError("must be usable as the name of a folder")
        if value is not None and len(value.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"must be at most {MAX_NAME_BYTES} bytes long")
        return value


class BaseDataset:
    """A dataset whose tests have scripts. A subclass sets the class variables and writes ``example`` and ``score``, or, where scoring
    takes a model, ``evaluate``. The keys of its ``Arguments`` are those that a configuration may set.
    """

    id: ClassVar[str]
    """Its name in configurations."""
    default_name: ClassVar[str]
    """Its name in results, and that of its folders, unless a configuration gives another one."""
    about: ClassVar[str]
    """What its tests do, in a sentence."""
    default_reset: ClassVar[str] = ""
    """Takes back what a test told the agent, so that it does not spoil the next; empty for nothing. It is said where neither
    ``reset_message`` nor a wording's file says otherwise, and only for a dataset that keeps its ``default_name``."""
    default_question: ClassVar[str] = ""
    Arguments: ClassVar[type[DatasetArguments]] = DatasetArguments
    callback_based: ClassVar[bool] = False
    needs_judge: ClassVar[bool | None] = None
    """Whether a model is called for any of its answers; None: if the class has an ``evaluate`` or ``play`` of its own."""
    judge_rules: ClassVar[Mapping[str, JudgeRule]] = {}
    """What answers in place of a model (``--judge_model=simulated``), by the purpose of the request: see ``registry.rule_judge``."""

    def __init__(
        self,
        arguments: DatasetArguments | None = None,
        scoring: Rules = "mended",
        count_tokens: CountTokens = estimated_tokens,
    ) -> None:
        self.arguments: Any = self.Arguments() if arguments is None else arguments
        self.name = self.arguments.name or self.default_name
        self.description = self.arguments.description or self.about
        self.question = self.arguments.question or self.default_question
        self.reset_message: str | None = self.arguments.reset_message
        self.scoring: str = scoring
        self.count_tokens = count_tokens
        if self.arguments.uses_callback not in (None, self.callback_based):
            raise UserError(f"dataset {self.id!r}: uses_callback can't be changed: it is {self.callback_based}")

    @property
    def mended(self) -> bool:
        return self.scoring == "mended"

    @property
    def is_judged(self) -> bool:
        """Whether scoring takes a model that judges. Without one none of its tests has a score: those that a rule can decide are not like
        the others, and would say too much or too little of all."""
        return needs_a_judge(type(self))

    # --- Making tests

    def generate(self, examples: int, seed: int, memory_span: int) -> Generator[Ask, str, Sequence[Definition]]:
        """Tests, the same for the same arguments. Raises UserError if one can't be in the memory span, which is in tokens."""
        if memory_span <= 0:
            raise UserError(f"dataset {self.id!r}: memory_span must be more than 0, not {memory_span}")
        definitions = yield from self.make(examples, Draws("memory test", self.id, seed))
        for definition in definitions:
            check_definition(definition, memory_span, self.count_tokens)
        return definitions

    def make(self, examples: int, draws: Draws) -> Generator[Ask, str, list[Definition]]:
        """All tests, from one stream of choices."""
        yield from ()
        return [self.example(number, draws) for number in range(examples)]

    def example(self, number: int, draws: Draws) -> Definition:
        """One test. ``number`` counts from 0."""
        raise NotImplementedError

    def scripted(
        self, number: int | str, told: Iterable[str], questions: Iterable[str], expected: Json, **more: Any
    ) -> Definition:
        """A test that tells, then asks. Without ``waits``, these spread it over 90 % of the memory span."""
        told, questions = tuple(told), tuple(questions)
        asked = (*(False for _ in told), *(True for _ in questions))
        more.setdefault("waits", tuple(default_waits(len(asked))))
        return Definition(
            self.name,
            str(number),
            (*told, *questions),
            asked,
            expected_responses=expected,
            uses_callback=self.callback_based,
            **more,
        )

    # --- The other styles of tests

    def temporal_question(self, definition: Definition, sent_at: Sequence[float], now: float) -> str:
        raise NotImplementedError(f"{self.name} asks nothing that depends on the time")

    def callback(self, definition: Definition, conversation: Sequence[Message]) -> Verdict:
        raise NotImplementedError(f"{self.name} has no callback")

    def play(self, definition: Definition) -> Play | None:
        return None

    # --- Scoring

    def evaluate(self, exchange: Exchange) -> Scoring:
        """Score a test at its end, without a model."""
        yield from ()
        return self.score(exchange.definition, exchange.questions, exchange.answers)

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        """How well the questions were answered. There are fewer answers than questions where a test ended early."""
        raise NotImplementedError

    def rescore(self, recorded: RecordedTest) -> Rescoring:
        """Score a test that is over, from what its files hold. Raises NotOnRecord, WentOtherwise."""
        return (yield from self.evaluate(recorded.exchange)), False

    # --- An agent that remembers everything

    def ideal(self, definition: Definition, conversation: Sequence[Message], message: str) -> str:
        """What an agent with a perfect memory answers to a message of this test. ``conversation``: everything before it."""
        own = [each for each in conversation if each.test_id == definition.unique_id]
        if len(own) < len(definition.is_question) and definition.is_question[len(own)]:
            return self.right_answer(definition, sum(each.is_question for each in own))
        return ACKNOWLEDGED

    def right_answer(self, definition: Definition, number: int) -> str:
        """An answer for full marks to a question; they are counted from 0."""
        return str(definition.expected_responses[number])

    def ideal_addition(self, definition: Definition, conversation: Sequence[Message]) -> str:
        """What such an agent adds to its next reply, whatever it replies to, because a test that is not over demands it; else nothing.
        ``conversation``: everything before the message that is replied to."""
        return ""


def needs_a_judge(kind: type[BaseDataset]) -> bool:
    """As ``BaseDataset.is_judged``, of a class."""
    if kind.needs_judge is not None:
        return kind.needs_judge
    return kind.evaluate is not BaseDataset.evaluate or kind.play is not BaseDataset.play


def check_definition(definition: Definition, memory_span: int, count_tokens: CountTokens) -> None:
    """Raise UserError unless a test can be held within the memory span. Dynamic tests, which have no lines yet, can."""
    lines = len(definition.is_question)
    if lines == 0:
        return
    if not definition.number_of_questions:
        raise UserError(f"{definition.unique_id}: asks no question")
    if len(definition.waits) != lines or lines - len(definition.script) != definition.is_temporal:
        raise UserError(f"{definition.unique_id}: has not as many lines as questions and waits")
    tokens = sum(count_tokens(line) + AROUND_A_LINE for line in definition.script)
    if tokens >= memory_span:
        raise UserError(
            f"{definition.unique_id}: its script has {tokens} tokens; the memory_span of {memory_span} must be larger"
        )


def last_of(answers: Sequence[str]) -> str:
    """The last answer; empty if there is none."""
    return answers[-1] if answers else ""


def all_or_nothing(right: bool, reason: str) -> Evaluation:
    """One point or none."""
    return Evaluation(float(right), 1.0, (reason,))


# --- Choices


def between(draws: Draws, minimum: int, maximum: int) -> int:
    """A whole number, both bounds included."""
    return minimum + draws.below(maximum - minimum + 1)


def shuffled(draws: Draws, values: Iterable[T]) -> list[T]:
    """The values in another order."""
    left = list(values)
    return [left.pop(draws.below(len(left))) for _ in range(len(left))]


def some_of(draws: Draws, values: Sequence[T], number: int) -> list[T]:
    """So many different ones of the values (at most all), in the order in which they were drawn."""
    return shuffled(draws, values)[:number]
