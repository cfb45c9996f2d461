"""``field_accuracy``: how many fields of a structured answer are as expected.

::

    score = Σ(field's score · weight) ÷ Σ(weight) over the fields that count

A field counts unless expected_output does not have it (there is nothing to compare, so it is neither hit nor miss, and a note says so), or
the answer does not have it and it is not required. A field that is null is there. With ``all_or_nothing`` the score is 1 if every field
that counts is right, else 0.

Dates are calendar days without time zones: a date is the day that is written, wherever the reader is. Their formats are made of
``YYYY YY MMMM MMM MM M DD D HH H hh h mm m ss s A a``, or of the percent signs of ``strftime`` (``%d/%m/%Y``), and of other characters,
which mean themselves, as does what stands in square brackets. Behind a date there may be a time, which does not count. Names of months
are English; case does not count.

Where there is nothing to compare (expected_output holds no object or list, or none of the fields; no field counts, or none that weighs
anything) there is no score, and the grader is left out of the test's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import Json
from manyhands.core.settings import Flag, number, shown
from manyhands.core.statistics import exact, weighted_mean
from manyhands.graders.json_values import MISSING, Steps, at, equal, json_in, steps_of
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, found, nothing_to_compare
from manyhands.graders.registry import Setup
from manyhands.io.keys import Entry, SomeItems, key, read, snake
from manyhands.io.locations import Location

MATCHES = ("exact", "numeric_tolerance", "date")
_PATHS_SHOWN = 5
AGGREGATIONS = ("weighted_average", "all_or_nothing")

_LEADING = re.compile(
    r"\s*(?P<number>[+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)(?P<rest>.{0,2})",
    re.DOTALL,
)
_NUMBER_GOES_ON = re.compile(r"[.,]?\d")
Result = Literal["hit", "miss", "not_expected", "left_out"]
_Outcome = tuple[bool, str | None]
_NAMES = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_SHORT = tuple(name[:3] for name in _NAMES)
_CENTURY_TURN = 69
"""Years of two digits: 69 to 99 are of the 20th century, as POSIX says."""
_PARTS = {
    "YYYY": r"(?P<year>\d{4})",
    "YY": r"(?P<year>\d{2})",
    "MMMM": rf"(?P<month>{'|'.join(_NAMES)})",
    "MMM": rf"(?P<month>{'|'.join(_SHORT)}|sept)",
    "MM": r"(?P<month>\d{2})",
    "M": r"(?P<month>\d{1,2})",
    "DD": r"(?P<day>\d{2})",
    "D": r"(?P<day>\d{1,2})",
    **dict.fromkeys(("HH", "hh", "mm", "ss"), r"\d{2}"),
    **dict.fromkeys(("H", "h", "m", "s"), r"\d{1,2}"),
    **dict.fromkeys(("A", "a"), r"[ap]\.?m\.?"),
}
_PERCENT = {
    "%Y": "YYYY",
    "%y": "YY",
    "%B": "MMMM",
    "%b": "MMM",
    "%m": "M",
    "%-m": "M",
    "%d": "D",
    "%-d": "D",
    "%H": "H",
    "%I": "h",
    "%M": "m",
    "%S": "s",
    "%p": "A",
}
_TOKEN = re.compile(r"\[(?P<literal>[^\]]*)\]|" + "|".join((*_PARTS, r"%-?[A-Za-z]", r"\s+", ".")), re.DOTALL)
_ISO = re.compile(r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})(?:[T ].*)?")
_USUAL = (
    *("D-MMM-YYYY", "D-MMMM-YYYY", "D MMM YYYY", "D MMMM YYYY", "D. MMMM YYYY"),
    *("MMM D, YYYY", "MMMM D, YYYY", "MMM D YYYY", "MMMM D YYYY", "MMM. D, YYYY"),
    *("YYYY/M/D", "YYYY.M.D", "YYYY-M-D", "YYYYMMDD", "D.M.YYYY"),
)
"""What can be read in one way only; the last one because nobody writes months first with full stops."""
_MONTH_FIRST = ("M/D/YYYY", "M-D-YYYY")
_DAY_FIRST = ("D/M/YYYY", "D-M-YYYY")
_TIME = r"(?:(?:T|,?\s+)\d{1,2}:\d{2}\b.*)?"
_WEEKDAY = re.compile(r"^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+", re.IGNORECASE)


def _one_of(known: Sequence[str]) -> BeforeValidator:
    def check(value: Any) -> str:
        if not isinstance(value, str) or snake(value) not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return snake(value)

    return BeforeValidator(check)


def _path(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("must be a path, as in rows[0].name")
    steps_of(str(value))
    return str(value)


def _formats(value: Any) -> tuple[str, ...]:
    formats = (value,) if isinstance(value, str) else value
    if not isinstance(formats, (list, tuple)) or not all(isinstance(each, str) for each in formats):
        raise ValueError("must be a list of formats, as in DD/MM/YYYY")
    for each in formats:
        pattern_of(each)
    return tuple(formats)


class FieldEntry(Entry):
    """One field that is compared."""

    path: Annotated[str, BeforeValidator(_path)] = key(..., "Where it is: names with dots, and [n] for items of lists.")
    match: Annotated[str, _one_of(MATCHES)] = key("exact", f"How it is compared: {', '.join(MATCHES)}.")
    required: Flag = key(True, "Whether an answer without it is wrong.")
    weight: Annotated[float, number(minimum=0)] = key(1.0, "How much it counts.")
    tolerance: Annotated[float, number(minimum=0)] = key(0.0, "How far a number may be off.")
    relative: Flag = key(False, "Whether the tolerance is a share of the expected number.")
    formats: Annotated[tuple[str, ...], BeforeValidator(_formats)] = key((), "How dates are written, e.g. DD/MM/YYYY.")


class FieldsEntry(Entry):
    """Settings of ``field_accuracy``."""

    entries: ClassVar[Mapping[str, type[Entry]]] = {"fields": FieldEntry}
    fields_: Annotated[tuple[FieldEntry, ...], SomeItems] = key(..., "The fields that are compared.", alias="fields")
    aggregation: Annotated[str, _one_of(AGGREGATIONS)] = key("weighted_average", f"One of {', '.join(AGGREGATIONS)}.")


ENTRY = FieldsEntry


def parse(entry: Mapping[str, Any], location: Location, setup: Setup) -> Grader:
    """Raises UserError for paths, matches or formats that can't be read."""
    settings = read(FieldsEntry, entry, location)
    rules = [FieldRule(each, steps_of(each.path)) for each in settings.fields_]
    return FieldAccuracy(entry["name"], entry["type"], rules, settings.aggregation)


@dataclass(frozen=True, slots=True)
class FieldRule:
    """A field, and its path as steps."""

    entry: FieldEntry
    steps: Steps


@dataclass(frozen=True, slots=True)
class Compared:
    """How one field came out."""

    path: str
    result: Result
    weight: float
    text: str
    note: str | None = None
    """What else is to be said about it."""

    @property
    def counts(self) -> bool:
        return self.result in ("hit", "miss")


@dataclass(frozen=True, slots=True)
class FieldAccuracy:
    """Compares the fields of the answer's JSON with those of the expected output."""

    name: str
    type: str
    rules: Sequence[FieldRule]
    aggregation: str

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        expected = expected_json(candidate)
        if expected is MISSING:
            return nothing_to_compare(self, "expected_output holds no object or list to compare fields with")
        if all(at(expected, rule.steps) is MISSING for rule in self.rules):
            return nothing_to_compare(self, f"expected_output has none of the fields {self._paths()}")
        actual = json_in(candidate.answer)
        if actual is MISSING:
            return found(self, 0.0, misses=("the answer holds no JSON object or list",))
        return self._score([compare(rule, expected, actual) for rule in self.rules])

    def _paths(self) -> str:
        named = [rule.entry.path for rule in self.rules]
        more = len(named) - _PATHS_SHOWN
        return ", ".join(named[:_PATHS_SHOWN]) + (f" and {more} more" if more > 0 else "")

    def _score(self, fields: Sequence[Compared]) -> Score:
        counted = [field for field in fields if field.counts]
        details = {"fields": [{"path": field.path, "result": field.result, "weight": field.weight} for field in fields]}
        weighing = counted if self.aggregation == "all_or_nothing" else [field for field in counted if field.weight]
        if not weighing:
            why = (
                "no field that is compared weighs anything"
                if counted
                else "the answer has none of the fields, and none is required"
            )
            return nothing_to_compare(self, why, details)
        hits = [field.text for field in counted if field.result == "hit"]
        misses = [field.text for field in counted if field.result == "miss"]
        value = weighted_mean([(float(field.result == "hit"), field.weight) for field in counted])
        if self.aggregation == "all_or_nothing":
            value = float(bool(hits) and not misses)
        notes = [note for field in fields for note in (field.note,) if note]
        reasoning = "; ".join((f"{len(hits)}/{len(counted)} fields matched", *notes))
        return found(self, value, hits, misses, reasoning=reasoning, details=details)


def expected_json(candidate: Candidate) -> Any:
    """The object or list that the last expected message of the assistant holds, or is as JSON text; MISSING if there is none."""
    for message in reversed(candidate.expected_output):
        if message.get("role", "assistant") != "assistant":
            continue
        content = message.get("content")
        value = json_in(content) if isinstance(content, str) else content
        if isinstance(value, (Mapping, list, tuple)):
            return value
    return MISSING


def compare(rule: FieldRule, expected: Json, actual: Json) -> Compared:
    """One field. Raises GraderError if what is expected can't be compared in the requested way."""
    entry = rule.entry
    wanted, got = at(expected, rule.steps), at(actual, rule.steps)
    if wanted is MISSING:
        text = f"{entry.path} is not in expected_output, so it was not compared"
        return Compared(entry.path, "not_expected", entry.weight, text, text)
    if got is MISSING:
        text = f"{entry.path}: missing (expected {shown(wanted)})"
        if entry.required:
            return Compared(entry.path, "miss", entry.weight, text)
        return Compared(entry.path, "left_out", entry.weight, text, f"{entry.path} is missing, and not required")
    right, note = _COMPARISONS[entry.match](entry, wanted, got)
    text = f"{entry.path}: {shown(got)}" + ("" if right else f" (expected {shown(wanted)})")
    return Compared(entry.path, "hit" if right else "miss", entry.weight, text, note)


def _exactly(entry: FieldEntry, wanted: Json, got: Json) -> _Outcome:
    return equal(wanted, got), None


def _nearly(entry: FieldEntry, wanted: Json, got: Json) -> _Outcome:
    goal = number_in(wanted)
    if goal is None:
        raise GraderError(f"{entry.path}: the expected value {shown(wanted)} is not a number")
    value = number_in(got)
    if value is None:
        return False, None
    allowed = exact(entry.tolerance)
    if entry.relative and goal:
        allowed *= abs(goal)
    return abs(value - goal) <= allowed, None


def _same_day(entry: FieldEntry, wanted: Json, got: Json) -> _Outcome:
    goal = day_of(wanted, entry.formats) if isinstance(wanted, str) else None
    if goal is None:
        raise GraderError(f"{entry.path}: the expected value {shown(wanted)} is not a date")
    day = day_of(got, entry.formats) if isinstance(got, str) else None
    if day is None:
        return False, None
    guessed = [shown(text) for text, read in ((wanted, goal), (got, day)) if read.guessed]
    note = f"{entry.path}: {' and '.join(guessed)} was read with the month first; give formats to say otherwise"
    return goal.date == day.date, note if guessed else None


_COMPARISONS: dict[str, Callable[[FieldEntry, Json, Json], _Outcome]] = {
    "exact": _exactly,
    "numeric_tolerance": _nearly,
    "date": _same_day,
}


def number_in(value: Json) -> Fraction | None:
    """A number, or the one that a text begins with (``12.5 kg``, ``1,234.50``); None if there is none, or none for certain (``1,5``)."""
    if isinstance(value, str):
        return _leading(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        return None
    return Fraction(value) if isinstance(value, int) else exact(value)


def _leading(text: str) -> Fraction | None:
    match = _LEADING.match(text)
    if match is None or _NUMBER_GOES_ON.match(match["rest"]):
        return None
    try:
        return Fraction(match["number"].replace(",", ""))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Day:
    """A day."""

    date: date
    guessed: bool = False
    """Whether it could be read with day and month the other way round too, and was read with the month first."""


def day_of(text: str, formats: Sequence[str] = ()) -> Day | None:
    """The day that a text names; None if it names none.

    The formats are tried in their order, then ISO 8601; without formats also what is usual elsewhere. ``03/04/2025`` is then
    4 March, as JavaScript and Americans read it, and marked as guessed.
    """
    text = text.strip()
    for each in formats:
        found = _read(pattern_of(each), text)
        if found:
            return Day(found)
    iso = _read(_ISO, text)
    if iso or formats:
        return Day(iso) if iso else None
    return _usual(_WEEKDAY.sub("", text))


def _usual(text: str) -> Day | None:
    found = _first(_USUAL, text)
    if found:
        return Day(found)
    month_first, day_first = _first(_MONTH_FIRST, text), _first(_DAY_FIRST, text)
    if month_first:
        return Day(month_first, guessed=day_first not in (None, month_first))
    return Day(day_first) if day_first else None


def _first(formats: Sequence[str], text: str) -> date | None:
    return next((found for each in formats if (found := _read(pattern_of(each), text))), None)


@lru_cache(maxsize=256)
def pattern_of(wanted: str) -> re.Pattern[str]:
    """A format as a regular expression.

    Raises ValueError if it lacks day, month or year, or has one twice.
    """
    parts = []
    for token in _TOKEN.finditer(wanted):
        part = _PERCENT.get(token[0], token[0])
        if part.startswith("%"):
            raise ValueError(f"{token[0]} is not known in formats of dates")
        literal = token["literal"]
        parts.append(
            _PARTS.get(part) or (r"\s+" if part.isspace() else re.escape(part if literal is None else literal))
        )
    text = "".join(parts)
    for name in ("year", "month", "day"):
        if text.count(f"(?P<{name}>") != 1:
            raise ValueError(f"must have the {name} once, as in DD/MM/YYYY")
    return re.compile(text + _TIME, re.IGNORECASE)


def _read(pattern: re.Pattern[str], text: str) -> date | None:
    match = pattern.fullmatch(text)
    if match is None:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:
        year += 1900 if year >= _CENTURY_TURN else 2000
    try:
        return date(year, _month(match["month"]), int(match["day"]))
    except ValueError:
        return None


def _month(text: str) -> int:
    return int(text) if text.isdecimal() else _SHORT.index(text[:3].lower()) + 1
