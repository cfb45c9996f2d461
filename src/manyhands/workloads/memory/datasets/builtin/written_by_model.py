"""Texts with questions about them: facts, instructions, a principle, changing information.

A model writes them, or they are made of our own patterns, whose gaps are filled from the seed.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from manyhands.core.digests import Draws
from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import Ask, Definition, Exchange, Json, Scoring
from manyhands.workloads.memory.datasets.answers.judging import ask_with_data, judged
from manyhands.workloads.memory.datasets.answers.matching import NotJson, tolerant_json
from manyhands.workloads.memory.datasets.base import (
    BaseDataset,
    DatasetArguments,
    JudgeRule,
    between,
    prompt,
    shuffled,
    some_of,
    texts,
)

CONTENT = "write a test"
"""The purpose of asking a model for the text and questions of a test."""
_TEXTS = texts("generated")
FIRST_NAMES: tuple[str, ...] = texts("names")["first"]
LAST_NAMES: tuple[str, ...] = texts("names")["last"]
_WORLDS: tuple[str, ...] = _TEXTS["worlds"]
_DEVICES: tuple[str, ...] = _TEXTS["devices"]
_PRINCIPLES: tuple[tuple[str, str, tuple[str, ...]], ...] = _TEXTS["principles"]
_CONSTANT: tuple[str, ...] = _TEXTS["constant"]


@dataclass(frozen=True, slots=True)
class Text:
    """What is told, and questions about it with their answers."""

    content: tuple[str, ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence with gaps, a question about it and its answer; ``{name}`` is the same everywhere."""

    told: str
    asked: str
    answer: str
    gap: tuple[str, ...]
    """What may be in the gap ``{0}``."""


_FACTS = tuple(Fact(**each) for each in _TEXTS["facts"])
_STEPS = tuple(Fact(**each) for each in _TEXTS["steps"])
_CHANGES = tuple(Fact(**each) for each in _TEXTS["changes"])
Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Written(BaseModel):
    """What a model has to write."""

    model_config = ConfigDict(extra="ignore")

    content: list[Said] = Field(min_length=1)
    question: list[Said] = Field(min_length=1)
    answer: list[Said] = Field(min_length=1)


class GeneratedArguments(DatasetArguments):
    generation: Literal["auto", "builtin", "model"] = "auto"
    """``builtin`` for texts of our own, ``model`` for those that a model writes; ``auto``: the model if ``generation_model`` names one."""
    generation_model: str | None = None
    generation_file: Path | None = None
    """A JSON object with other instructions for ``content``, ``question`` and ``answer``."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    max_attempts: int = Field(default=10, ge=1, le=100)
    """How often a model may try."""


def _content_by_rule(data: Json) -> Json:
    numbers = range(1, 11)
    return {
        "content": [f"Box {number} of the shelf holds item {number * 7}." for number in numbers],
        "question": [f"What does box {number} of the shelf hold?" for number in numbers],
        "answer": [f"Item {number * 7}" for number in numbers],
    }


class GeneratedDataset(BaseDataset):
    """The base of these."""

    Arguments: ClassVar[type[DatasetArguments]] = GeneratedArguments
    judge_rules: ClassVar[Mapping[str, JudgeRule]] = {CONTENT: _content_by_rule}
    items: ClassVar[int]
    """How many texts a test has at most."""
    asked: ClassVar[int]
    """How many questions it has."""

    def builtin(self, draws: Draws) -> Text:
        """A text of our own."""
        raise NotImplementedError

    def make(self, examples: int, draws: Draws) -> Generator[Ask, str, list[Definition]]:
        made: list[Definition] = []
        for number in range(examples):
            text = (yield from self._written()) if self._by_model() else self.builtin(draws)
            made.append(self.test(number, text, draws))
        return made

    def test(self, number: int, text: Text, draws: Draws) -> Definition:
        return self.scripted(number, ("\n".join(text.content),), text.questions, list(text.answers))

    def evaluate(self, exchange: Exchange) -> Scoring:
        return (yield from judged(exchange.questions, exchange.definition.expected_responses, exchange.answers))

    def _by_model(self) -> bool:
        kind = self.arguments.generation
        return kind == "model" or (kind == "auto" and self.arguments.generation_model is not None)

    def _written(self) -> Generator[Ask, str, Text]:
        wanted, problem = self._instructions(), ""
        for attempt in range(1, self.arguments.max_attempts + 1):
            data = {**wanted, "attempt": attempt}
            reply = yield ask_with_data(
                CONTENT, prompt("generated"), data, temperature=self.arguments.temperature, max_tokens=2048
            )
            try:
                return self._checked(tolerant_json(reply))
            except (NotJson, ValidationError, ValueError) as error:
                problem = " ".join(str(error).split())[:200]
        attempts = self.arguments.max_attempts
        raise UserError(
            f"dataset {self.id!r}: the model wrote nothing usable in {attempts} attempts; the last time: {problem}"
        )

    def _checked(self, value: Any) -> Text:
        written = Written.model_validate(value)
        questions, answers = written.question[: self.asked], written.answer[: self.asked]
        if len(questions) != len(answers) or len(questions) < self.asked:
            raise ValueError(
                f"{len(written.question)} questions and {len(written.answer)} answers, not {self.asked} of both"
            )
        return Text(tuple(written.content[: self.items]), tuple(questions), tuple(answers))

    def _instructions(self) -> dict[str, str]:
        path = self.arguments.generation_file
        if path is None:
            return dict(_TEXTS["wanted"][self.id])
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            return {key: str(told[key]) for key in ("content", "question", "answer")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"dataset {self.id!r}: generation_file {path} must be a JSON object with content, question and answer: {error!r}"
            ) from None


class DelayedRecall(GeneratedDataset):
    """Ten facts about a made-up world, ten questions; a point for each answer by the general judge."""

    id = "delayed_recall"
    default_name = "Delayed Recall"
    default_reset = "That invented world is closed. Please disregard every fact that I told you about it."
    about = "Tells facts about a made-up world, and asks for them much later."
    items, asked = 10, 10

    def builtin(self, draws: Draws) -> Text:
        name = draws.pick(_WORLDS)
        filled = [_filled(fact, draws.pick(fact.gap), name) for fact in shuffled(draws, _FACTS)]
        return _text(filled, shuffled(draws, range(len(filled))))

    def test(self, number: int, text: Text, draws: Draws) -> Definition:
        told = _TEXTS["facts_follow"] + "\n".join(text.content)
        questions = [draws.pick(_TEXTS["lead_ins"]) + question for question in text.questions]
        return self.scripted(number, (told,), questions, list(text.answers))


class InstructionRecall(GeneratedDataset):
    """Ten steps of an instruction, five questions; a point for each answer by the general judge."""

    id = "instruction_recall"
    default_name = "Instruction Recall"
    default_reset = "The device has been returned. Please disregard the instructions for it that I gave you."
    about = "Gives instructions for a device in steps, and asks about single steps."
    items, asked = 10, 5

    def builtin(self, draws: Draws) -> Text:
        name = draws.pick(_DEVICES)
        filled = [_filled(fact, draws.pick(fact.gap), name) for fact in (*shuffled(draws, _STEPS[:-1]), _STEPS[-1])]
        text = _text(filled, some_of(draws, range(len(filled)), 5))
        steps = tuple(f"Step {number}: {line}" for number, line in enumerate(text.content, start=1))
        title = f"How to use the {name}:"
        return Text(
            (title, *steps), tuple(f"Using the {name}: {question}" for question in text.questions), text.answers
        )


class HowToThink(GeneratedDataset):
    """A principle to decide by, five dilemmas; a point for each decision that the principle demands, by the general judge."""

    id = "how_to_think"
    default_name = "How to Think"
    about = "Gives a principle, and asks for decisions that follow from it."
    items, asked = 3, 5

    def builtin(self, draws: Draws) -> Text:
        prefer, over, things = draws.pick(_PRINCIPLES)
        who = draws.pick(FIRST_NAMES)
        content = tuple(line.format(who=who, prefer=prefer, over=over) for line in _TEXTS["principle"])
        questions, answers = [], []
        for thing in some_of(draws, things, 5):
            first, second = shuffled(draws, (prefer, over))
            one, other = some_of(draws, LAST_NAMES, 2)
            fits, unfits = (one, other) if first == prefer else (other, one)
            named = {"one": one, "other": other, "who": who, "unfits": unfits, "first": first, "second": second}
            questions.append(_TEXTS["dilemma"].format(thing=_a(thing), **named))
            answers.append(fits)
        return Text(content, tuple(questions), tuple(answers))


class ConflictingPersonalInformation(GeneratedDataset):
    """Things that somebody says about themselves, of which later ones take back earlier ones; questions for what holds now. A point
    for each answer by the general judge."""

    id = "conflicting_personal_info"
    default_name = "Conflicting Personal Information"
    default_reset = "Nothing that I have told you about myself so far holds any longer. Please disregard it."
    about = "Tells things about a person and takes some back later, and asks what holds now."
    items, asked = 10, 3

    def builtin(self, draws: Draws) -> Text:
        before, after, questions, answers = [], [], [], []
        for fact in some_of(draws, _CHANGES, 3):
            old, new = some_of(draws, fact.gap, 2)
            before.append(fact.told.format(old))
            after.append(_TEXTS["change"].format(fact.told.format(new)))
            questions.append(fact.asked)
            answers.append(fact.answer.format(new))
        constant = some_of(draws, _CONSTANT, 4)
        cut = between(draws, 1, 3)
        first = shuffled(draws, (*before, *constant[:cut]))
        then = shuffled(draws, (*after, *constant[cut:]))
        return Text((*first, *then), tuple(questions), tuple(answers))


def _filled(fact: Fact, gap: str, name: str) -> tuple[str, str, str]:
    return fact.told.format(gap, name=name), fact.asked.format(name=name), _capital(fact.answer.format(gap))


def _text(filled: Sequence[tuple[str, str, str]], asked: Sequence[int]) -> Text:
    told = tuple(line for line, _, _ in filled)
    return Text(
        told, tuple(filled[position][1] for position in asked), tuple(filled[position][2] for position in asked)
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
