"""Graders that look at the answer's text.

Each scores 1 or 0. ``contains`` and its relatives compare characters as they are; those whose names begin with i ignore case
(Unicode case folding). ``equals``, ``starts_with`` and ``ends_with`` leave out white space around the answer and around the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from manyhands.core.jsonio import loads
from manyhands.core.settings import shown
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, all_or_nothing, found
from manyhands.graders.registry import Setup
from manyhands.io.keys import Entry, ListOfWords, SomeWords, Words, key, read
from manyhands.io.locations import Location

MAX_SHOWN = 200


class OneValue(Entry):
    """Settings of a rule that looks for one text."""

    value: SomeWords = key(..., "The text that is looked for.")


class EqualValue(Entry):
    """Settings of ``equals``."""

    value: Words = key(..., "What the answer must be, white space around it left out.")


class SeveralValues(Entry):
    """Settings of a rule that looks for several texts."""

    spellings: ClassVar[Mapping[str, str]] = {"values": "value"}
    value: ListOfWords = key(..., "The texts that are looked for.")


class NoValue(Entry):
    """Settings of a rule that needs none."""


_ONE = ("contains", "icontains", "starts_with", "ends_with")
_SEVERAL = ("contains_any", "contains_all", "icontains_any", "icontains_all")
ENTRIES: dict[str, type[Entry]] = {
    **dict.fromkeys(_ONE, OneValue),
    **dict.fromkeys(_SEVERAL, SeveralValues),
    "equals": EqualValue,
    "is_json": NoValue,
}


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """A rule of one of the kinds of ``ENTRIES``."""
    name, kind = entry["name"], entry["type"]
    if kind in _ONE and isinstance(entry.get("value"), (list, tuple)):
        better = f"{kind}_any or {kind}_all" if kind.endswith("contains") else "one entry for each"
        raise location.at("value").error(f"must be one text; for several use {better}")
    settings = read(ENTRIES[kind], entry, location)
    if isinstance(settings, OneValue):
        return TextRule(name, kind, (settings.value,))
    if isinstance(settings, SeveralValues):
        return TextRule(name, kind, settings.value)
    if isinstance(settings, EqualValue):
        return EqualRule(name, kind, settings.value)
    return JsonRule(name, kind)


_Test = Callable[[str, str], bool]


def _contains(answer: str, value: str) -> bool:
    return value in answer


def _starts(answer: str, value: str) -> bool:
    return answer.strip().startswith(value.strip())


def _ends(answer: str, value: str) -> bool:
    return answer.strip().endswith(value.strip())


_TESTS: dict[str, tuple[_Test, str]] = {
    "starts_with": (_starts, "starts with"),
    "ends_with": (_ends, "ends with"),
}


@dataclass(frozen=True, slots=True)
class TextRule:
    """Looks for one or several texts."""

    answer_only: ClassVar[bool] = True
    name: str
    type: str
    values: Sequence[str]

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        test, verb, folded, one_will_do = _way(self.type)
        answer = candidate.answer.casefold() if folded else candidate.answer
        there = [value for value in self.values if test(answer, value.casefold() if folded else value)]
        if there if one_will_do else len(there) == len(self.values):
            hits = (_said(verb, tuple(there), folded),)
            return found(self, 1.0, hits, pass_limit=grading.pass_limit)
        absent = tuple(value for value in self.values if value not in there)
        return found(self, 0.0, misses=(_said(_without(verb), absent, folded),), pass_limit=grading.pass_limit)


@dataclass(frozen=True, slots=True)
class EqualRule:
    """Whether the answer is a text."""

    answer_only: ClassVar[bool] = True
    name: str
    type: str
    value: str

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        answer, value = candidate.answer.strip(), self.value.strip()
        short = shown(value, MAX_SHOWN)
        return all_or_nothing(
            self,
            answer == value,
            f"the answer is {short}",
            f"the answer is {shown(answer, MAX_SHOWN)}, not {short}",
            grading.pass_limit,
        )


@dataclass(frozen=True, slots=True)
class JsonRule:
    """Whether the whole answer is one JSON document (RFC 8259, so without NaN and Infinity)."""

    answer_only: ClassVar[bool] = True
    name: str
    type: str

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        problem = _json_problem(candidate.answer)
        return all_or_nothing(self, problem is None, "the answer is JSON", f"the answer is not JSON: {problem}")


def _json_problem(text: str) -> str | None:
    try:
        loads(text)
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return str(error)
    return None


@lru_cache(maxsize=64)
def _way(kind: str) -> tuple[_Test, str, bool, bool]:
    """How a kind looks for texts: the comparison, the verb, whether case is ignored, whether one of several texts will do."""
    return *_TESTS.get(kind, (_contains, "contains")), kind.startswith("i"), kind.endswith("_any")


@lru_cache(maxsize=64)
def _said(verb: str, values: tuple[str, ...], folded: bool) -> str:
    listed = ", ".join(shown(value, MAX_SHOWN) for value in values)
    return f"the answer {verb} {listed}" + " (case ignored)" * folded


def _without(verb: str) -> str:
    first, _, rest = verb.partition(" ")
    return f"does not {first.removesuffix('s')} {rest}".rstrip()
