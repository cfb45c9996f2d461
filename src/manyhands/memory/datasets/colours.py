"""My favourite colour, after several changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from manyhands.memory.datasets.base import BaseDataset, DatasetArguments, all_or_nothing, last_of
from manyhands.memory.datasets.mentions import mentions
from manyhands.memory.datasets.settling import settles_on
from manyhands.memory.model import Definition, Evaluation
from manyhands.models.draws import Draws

COLOURS = (
    *("Red", "White", "Blue", "Green", "Yellow", "Pink", "Magenta", "Cyan", "Purple", "Tan"),
    *("Khaki", "Beige", "Cream", "Brown", "Olive", "Orange", "Turquoise", "Crimson", "Violet", "Grey"),
)
_STATEMENTS = (
    "These days the colour that I like best is {}.",
    "If I could have only one colour, I would take {}.",
    "{} has become my favourite colour.",
    "No colour pleases me more than {}.",
)


class ColourArguments(DatasetArguments):
    """``colour_changes``: how many colours are told, one after the other; one may come again."""

    colour_changes: int = Field(default=3, ge=1)


class Colours(BaseDataset):
    """The last of several favourite colours is asked for. One point if the answer holds it.

    Mended: it must be a whole word (as published, "shared" holds "red"), and the one that the answer settles on (``settling``; as
    published, an answer that lists them all gets full marks): another colour may be in it as one that is no longer right.
    """

    id = "colours"
    default_name = "Colours"
    about = "Tells a new favourite colour now and then, and asks for the present one."
    default_question = "Which colour is my favourite now? Name just that one."
    Arguments: ClassVar[type[DatasetArguments]] = ColourArguments

    def example(self, number: int, draws: Draws) -> Definition:
        colours: list[str] = []
        told: list[str] = []
        for _ in range(self.arguments.colour_changes):
            colours.append(draws.pick(COLOURS))
            told.append(draws.pick(_STATEMENTS).format(colours[-1]))
        return self.scripted(number, told, (self.question,), [colours[-1]])

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        colour, answer = definition.expected_responses[-1], last_of(answers)
        right = settles_on(answer, colour, _told(definition)) if self.mended else colour.lower() in answer.lower()
        return all_or_nothing(right, f"the answer {'names' if right else 'does not name'} {colour}")


def _told(definition: Definition) -> list[str]:
    return [colour for colour in COLOURS if any(mentions(line, colour) for line in definition.script)]
