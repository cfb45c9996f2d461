"""A sentence to be said whenever something happens."""

from __future__ import annotations

import string
from collections.abc import Generator
from typing import ClassVar

from pydantic import Field

from manyhands.memory.datasets.base import BaseDataset, DatasetArguments, shuffled
from manyhands.memory.datasets.judge import BY_MODEL, ask_with_data, object_in, yes
from manyhands.memory.model import Ask, Definition, Evaluation, Exchange, Scoring
from manyhands.memory.rouge import rouge_l
from manyhands.models.draws import Draws

RULES = (
    ("mention that it is raining", "Take the green umbrella by the stairs", "It has started to rain again."),
    (
        "tell you that I am going to bed",
        "The night shift begins at the lighthouse",
        "That's it for today, I am off to bed.",
    ),
    (
        "say that I have burned my food",
        "Charcoal is a vegetable in this house",
        "Oh no, the pancakes are black on both sides.",
    ),
    (
        "complain about being stuck in traffic",
        "Every road ends at the sea",
        "The cars in front of me have not moved for an hour.",
    ),
    ("say that I can't find my keys", "Look under the sleeping cat", "Where on earth have I put my keys this time?"),
    (
        "tell you that I have won something",
        "Fortune has a short memory",
        "My ticket won the second prize in the lottery!",
    ),
    ("mention that the phone is ringing", "Nobody of that name lives here", "There goes the telephone."),
    ("say that I am getting cold", "Put another log on the fire", "I am shivering, even with a pullover on."),
)
"""What happens, what is to be said then, and a message by which it happens."""

_ASCII = str.maketrans("", "", string.punctuation)

SENTENCE = "find a sentence"
"""The purpose of asking a model whether a reply holds a sentence."""
_TASK = """The user message is a JSON object with a text and a sentence. Does the text contain that sentence, word for word or
nearly so? Reply with a JSON object and nothing else: {"present": true or false, "sentence": <that part of the text, copied exactly,
or null>}"""


class TriggerArguments(DatasetArguments):
    """``trigger_activations``: how often it happens. ``rouge_score_threshold``: how alike a sentence must be (ROUGE-L, 0 to 1)."""

    trigger_activations: int = Field(default=3, ge=1)
    rouge_score_threshold: float = Field(default=0.75, ge=0, le=1)


class TriggerResponse(BaseDataset):
    """A point for each time when the reply holds the sentence, or is nearly nothing else (ROUGE-L above the threshold). Of other replies, a
    model says whether and where they hold it; what it finds must be as alike.

    Mended: apostrophes are apostrophes (as published, some are HTML).
    """

    id = "trigger_response"
    default_name = "Trigger Response"
    about = "Demands that a certain sentence be said whenever something happens, which then happens several times."
    Arguments: ClassVar[type[DatasetArguments]] = TriggerArguments

    def make(self, examples: int, draws: Draws) -> Generator[Ask, str, list[Definition]]:
        yield from ()
        order = shuffled(draws, RULES)
        times = self.arguments.trigger_activations
        made: list[Definition] = []
        for number in range(examples):
            request, sentence, trigger = order[number % len(order)]
            rule = f"From now on, every time that I {request}, say this sentence: '{sentence}'"
            made.append(self.scripted(number, (rule,), (trigger,) * times, [sentence] * times))
        return made

    def evaluate(self, exchange: Exchange) -> Scoring:
        expected = exchange.definition.expected_responses
        points, reasons = 0, list[str]()
        for sentence, answer in zip(expected, exchange.answers, strict=False):
            right, how = yield from self._holds(sentence, answer)
            points += right
            reasons.append(f"{sentence!r} is {'' if right else 'not '}in the reply{how}")
        return Evaluation(float(points), float(len(expected)), tuple(reasons))

    def _holds(self, sentence: str, answer: str) -> Generator[Ask, str, tuple[bool, str]]:
        if holds(answer, sentence) or rouge_l(sentence, answer) > self.arguments.rouge_score_threshold:
            return True, ""
        if not answer.strip():
            return False, ""
        found = object_in((yield ask_with_data(SENTENCE, _TASK, {"text": answer, "sentence": sentence})))
        if found is None or not yes(found.get("present")):
            return False, f" {BY_MODEL}"
        alike = rouge_l(sentence, str(found.get("sentence") or ""))
        return alike > self.arguments.rouge_score_threshold, f" {BY_MODEL}"


def holds(text: str, sentence: str) -> bool:
    """Whether a text holds a sentence, whatever the capitals, blanks and punctuation."""
    return _plain(sentence) in _plain(text)


def _plain(text: str) -> str:
    return " ".join(text.lower().translate(_ASCII).split())
