"""What I am called and which colour I like best, after several changes: the present one, or all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation
from manyhands.workloads.memory.datasets.answers.matching import NotJson, mentions, tolerant_json
from manyhands.workloads.memory.datasets.answers.settling import settles_on
from manyhands.workloads.memory.datasets.base import (
    BaseDataset,
    DatasetArguments,
    all_or_nothing,
    last_of,
    some_of,
    texts,
)

FIRST_NAMES: tuple[str, ...] = texts("names")["first"]
_TEXTS = texts("personal")
_NAME_STATEMENTS: tuple[str, ...] = _TEXTS["name_statements"]


class NameArguments(DatasetArguments):
    name_changes: int = Field(default=3, ge=1, le=len(FIRST_NAMES))
    """How many names are told, one after the other."""


class Names(BaseDataset):
    """The last of several names is asked for. One point if the answer holds it.

    Mended: it must be a whole word ("Ann" is not in "Annette"), and the one that the answer settles on (``settling``): an earlier name
    may be in it as one that is no longer right.
    """

    id = "names"
    default_name = "Names"
    about = "Tells a new name now and then, and asks for the present one."
    default_question = _TEXTS["name_question"]
    Arguments: ClassVar[type[DatasetArguments]] = NameArguments

    def example(self, number: int, draws: Draws) -> Definition:
        names = some_of(draws, FIRST_NAMES, self.arguments.name_changes)
        told = [draws.pick(_NAME_STATEMENTS).format(name) for name in names]
        return self.scripted(number, told, (self.question,), self.expected(names))

    def expected(self, names: Sequence[str]) -> list[str]:
        return [names[-1]]

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        name, answer = definition.expected_responses[-1], last_of(answers)
        right = settles_on(answer, name, _told_before(definition)) if self.mended else name.lower() in answer.lower()
        return all_or_nothing(right, f"the answer {'names' if right else 'does not name'} {name}")


class NameList(Names):
    """All names are asked for, as a JSON list. Names that are right, in any order, each counted once, over the number of expected names or
    of given ones, whichever is larger. An answer that is no list of texts gets nothing."""

    id = "name_list"
    default_name = "NameList"
    default_reset = (
        "Please disregard every name that I have given you up to now. "
        "From this message on, you don't know what I am called."
    )
    about = "Tells a new name now and then, and asks for all of them."
    default_question = _TEXTS["name_list_question"]

    def expected(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        try:
            given = _texts(tolerant_json(last_of(answers)))
        except NotJson:
            return all_or_nothing(False, "the answer is no JSON list of names")
        missing = [name.lower() for name in definition.expected_responses]
        expected, reasons = len(missing), []
        for name in given:
            if name in missing:
                missing.remove(name)
            else:
                reasons.append(f"{name} was not expected")
        reasons.append(f"missing: {', '.join(missing)}" if missing else "all names are there")
        maximum = max(expected, len(given))
        return Evaluation((expected - len(missing)) / maximum if maximum else 1.0, 1.0, tuple(reasons))

    def right_answer(self, definition: Definition, number: int) -> str:
        return '["' + '", "'.join(definition.expected_responses) + '"]'


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise NotJson("not a list of texts")
    return [each.lower() for each in value]


def _told_before(definition: Definition) -> list[str]:
    """The names that a script tells and then takes back: those of our lists, and what is written like one."""
    told: set[str] = set()
    for line in definition.script[:-1]:
        words = [word.strip(".,;:!?\"'“”") for word in line.split()]
        told.update(word for word in words if word in FIRST_NAMES)
        told.update(word for word in words[1:] if word.istitle() and len(word) > 1)
    return sorted(told)


COLOURS: tuple[str, ...] = _TEXTS["colours"]
_COLOUR_STATEMENTS: tuple[str, ...] = _TEXTS["colour_statements"]


class ColourArguments(DatasetArguments):
    colour_changes: int = Field(default=3, ge=1)
    """How many colours are told, one after the other; one may come again."""


class Colours(BaseDataset):
    """The last of several favourite colours is asked for. One point if the answer holds it.

    Mended: it must be a whole word (as published, "shared" holds "red"), and the one that the answer settles on (``settling``; as
    published, an answer that lists them all gets full marks): another colour may be in it as one that is no longer right.
    """

    id = "colours"
    default_name = "Colours"
    about = "Tells a new favourite colour now and then, and asks for the present one."
    default_question = _TEXTS["colour_question"]
    Arguments: ClassVar[type[DatasetArguments]] = ColourArguments

    def example(self, number: int, draws: Draws) -> Definition:
        colours: list[str] = []
        told: list[str] = []
        for _ in range(self.arguments.colour_changes):
            colours.append(draws.pick(COLOURS))
            told.append(draws.pick(_COLOUR_STATEMENTS).format(colours[-1]))
        return self.scripted(number, told, (self.question,), [colours[-1]])

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        colour, answer = definition.expected_responses[-1], last_of(answers)
        right = settles_on(answer, colour, _told(definition)) if self.mended else colour.lower() in answer.lower()
        return all_or_nothing(right, f"the answer {'names' if right else 'does not name'} {colour}")


def _told(definition: Definition) -> list[str]:
    return [colour for colour in COLOURS if any(mentions(line, colour) for line in definition.script)]
