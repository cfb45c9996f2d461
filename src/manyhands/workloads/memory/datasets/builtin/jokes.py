"""Jokes told over some hours; one of them is asked for by how long ago it was told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition, Exchange, Scoring, Wait
from manyhands.workloads.memory.datasets.answers.judging import judged
from manyhands.workloads.memory.datasets.base import (
    BaseDataset,
    DatasetArguments,
    all_or_nothing,
    between,
    last_of,
    some_of,
    texts,
)

_TEXTS = texts("jokes")
JOKES: tuple[str, ...] = _TEXTS["jokes"]
LAST_WAIT = 90
"""Percent of the memory span at which the question is asked."""
_PREFIX: str = _TEXTS["prefix"]
_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"'})
_OTHER = re.compile(r"[\W_]+")


class JokeArguments(DatasetArguments):
    jokes_told: int = Field(default=3, ge=1, le=len(JOKES))
    """Number of jokes."""
    minutes_low: int = Field(default=30, ge=0)
    """Minimum minutes of virtual time after each joke."""
    minutes_high: int = Field(default=240, ge=0)
    """Maximum minutes of virtual time after each joke."""
    joke_prefix: bool = False
    """Whether jokes are announced as such."""

    @model_validator(mode="after")
    def _in_order(self) -> JokeArguments:
        if self.minutes_low > self.minutes_high:
            raise ValueError("minutes_low must not be more than minutes_high")
        return self


class Jokes(BaseDataset):
    """One point if the answer holds the joke word for word; else the general judge decides.

    Mended: quotation marks, capitals and punctuation don't matter; an answer that holds several of the jokes gets nothing (as
    published, listing all gets full marks); the question counts days, and says "less than a minute" (as published, days are lost,
    less than a minute is nothing, and the blanks are wrong)."""

    id = "jokes"
    default_name = "Jokes"
    about = "Tells jokes over some hours, and asks which one was told so long ago."
    Arguments: ClassVar[type[DatasetArguments]] = JokeArguments

    def example(self, number: int, draws: Draws) -> Definition:
        low, high = self.arguments.minutes_low, self.arguments.minutes_high
        told = [
            f"{_PREFIX if self.arguments.joke_prefix else ''}{joke}"
            for joke in some_of(draws, JOKES, self.arguments.jokes_told)
        ]
        waits = tuple(
            Wait(seconds=60.0 * between(draws, low, high), percentage=(position + 1) * LAST_WAIT / len(told))
            for position in range(len(told))
        )
        target = draws.pick(told)
        return Definition(
            self.name,
            str(number),
            tuple(told),
            (*(False for _ in told), True),
            (*waits, Wait()),
            [target.removeprefix(_PREFIX)],
            is_temporal=True,
        )

    def temporal_question(self, definition: Definition, sent_at: Sequence[float], now: float) -> str:
        target = definition.expected_responses[0]
        position = next(number for number, line in enumerate(definition.script) if line.endswith(target))
        seconds = max(0, int(now - sent_at[position]))
        if not self.mended:
            return str(_TEXTS["published_question"].format(ago=_published_ago(seconds)))
        return str(_TEXTS["question"].format(ago=ago(seconds)))

    def evaluate(self, exchange: Exchange) -> Scoring:
        definition, answer = exchange.definition, last_of(exchange.answers)
        target = definition.expected_responses[0]
        if not self.mended:
            if target in answer:
                return all_or_nothing(True, "the answer holds the joke")
        else:
            others = (line.removeprefix(_PREFIX) for line in definition.script)
            listed = [joke for joke in others if joke != target and _plain(joke) in _plain(answer)]
            if listed:
                return all_or_nothing(False, "the answer holds another joke")
            if _plain(target) in _plain(answer):
                return all_or_nothing(True, "the answer holds the joke and no other")
        if not answer.strip():
            return all_or_nothing(False, "there is no answer")
        return (yield from judged(exchange.questions[-1:], [target], [answer]))

    def right_answer(self, definition: Definition, number: int) -> str:
        return f"It was: {definition.expected_responses[0]}"


def ago(seconds: int) -> str:
    """A time span in days, hours and minutes, as people say it."""
    minutes = seconds // 60
    parts = ((minutes // 1440, "day"), (minutes // 60 % 24, "hour"), (minutes % 60, "minute"))
    said = [f"{count} {unit}{'s' if count != 1 else ''}" for count, unit in parts if count]
    return (
        " and ".join((", ".join(said[:-1]), said[-1])) if len(said) > 1 else said[0] if said else "less than a minute"
    )


def _published_ago(seconds: int) -> str:
    """As published questions have it: without days, each part with a blank after it, nothing for less than a minute."""
    minutes = seconds % 86400 // 60
    text = f"{minutes % 60} minutes " if minutes > 0 else ""
    return f"{minutes // 60} hours {text}" if minutes // 60 > 0 else text


def _plain(text: Any) -> str:
    return _OTHER.sub(" ", str(text).translate(_QUOTES).lower()).strip()
