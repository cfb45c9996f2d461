"""The figures that targets may give with an answer: what it took.

Whoever reads, records, adds up, sums up or shows them goes through ``FIGURES``, so that a new one is a line of that table and its fields
in the classes here: records, results, their samples, traces, the page and the summary have it then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self, TypedDict

from manyhands.core.jsonio import Json
from manyhands.core.statistics import exact_sum, quantiles
from manyhands.graders.messages import is_figure
from manyhands.graders.protocol import Candidate

_TOKENS = ("input", "output")


@dataclass(slots=True, kw_only=True)  # not frozen: see Outcome
class AnswerFigures:
    """The figures of an answer, and of a result, in the order of these. None where not known."""

    token_usage: Mapping[str, float] | None = None
    """Tokens by kind."""
    cost_usd: float | None = None
    """US dollars."""
    duration_ms: float | None = None
    """Milliseconds."""


class TrialFigures(TypedDict, total=False):
    """Those figures of one of several samples that are numbers."""

    cost_usd: float
    duration_ms: float


class SummaryFigures(TypedDict):
    """What a summary says of the figures of many results, in the order of these."""

    cost_usd: dict[str, float]
    """The ``sum`` in US dollars, and of how many tests it is (``tests_with_cost``)."""
    token_usage: dict[str, float]
    """Tokens by kind, and of how many tests they are (``tests_with_usage``)."""
    duration_ms: dict[str, float]
    """``median``, ``p90``, ``max`` in milliseconds, and of how many tests they are (``tests_with_duration``)."""


# --- Read


class RecordFault(ValueError):
    """A field of a record is not what it has to be; the message names it."""


def _token_usage(value: Json, name: str, notices: list[str]) -> Mapping[str, float] | None:
    """Both counts, or none of it. Raises RecordFault for what is no object or holds what is no number."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RecordFault(f"{name} is not an object")
    counts = {kind: _number(value.get(kind), f"{name}.{kind}") for kind in (*_TOKENS, "cached")}
    found = {kind: count for kind, count in counts.items() if count is not None}
    if not all(kind in found for kind in _TOKENS):
        notices.append(f"{name} without both input and output was left out")
        return None
    if any(not is_figure(count) for count in found.values()):
        notices.append(f"{name} with a negative count was left out")
        return None
    return found


def read_number(value: Json, name: str, notices: list[str]) -> float | None:
    """A number that a measurement can be. Raises RecordFault for what is no number."""
    number = _number(value, name)
    if number is None or is_figure(number):
        return number
    notices.append(f"{'negative' if number < 0 else 'unusable'} {name} was left out")
    return None


def _number(value: Json, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RecordFault(f"{name} is not a number")
    return value


def _added_tokens(usages: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for usage in usages:
        for kind, count in usage.items():
            total[kind] = total.get(kind, 0) + count
    return total


def _shown_tokens(usage: Mapping[str, float]) -> str:
    return "tokens: " + ", ".join(f"{kind} {count:g}" for kind, count in usage.items())


# --- Summed up


class Tally(Protocol):
    """What a summary says of a figure, while it is counted."""

    def add(self, value: Any) -> None:
        """Count the figure of one more test."""

    def join(self, other: Self) -> None:
        """Count all that another one has counted."""

    def to_json(self) -> dict[str, float]:
        """What the summary has."""


class Sum:
    """A ``Tally``: the sum, to six decimals. ``tests``: the name of the number of tests that it is of."""

    def __init__(self, tests: str) -> None:
        self._tests = tests
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._sum, self._count = self._sum + value, self._count + 1

    def join(self, other: Self) -> None:
        self._sum, self._count = self._sum + other._sum, self._count + other._count

    def to_json(self) -> dict[str, float]:
        return {"sum": round(self._sum, 6), self._tests: self._count}


class SumsByKind:
    """A ``Tally``: a sum for each kind. ``tests``: as of ``Sum``."""

    def __init__(self, tests: str) -> None:
        self._tests = tests
        self._sums: Counter[str] = Counter()
        self._count = 0

    def add(self, value: Mapping[str, Any]) -> None:
        self._sums.update(value)
        self._count += 1

    def join(self, other: Self) -> None:
        self._sums.update(other._sums)
        self._count += other._count

    def to_json(self) -> dict[str, float]:
        return {**self._sums, self._tests: self._count}


class Spread:
    """A ``Tally``: median, 90th percentile and maximum. ``tests``: as of ``Sum``."""

    def __init__(self, tests: str) -> None:
        self._tests = tests
        self._values: list[float] = []

    def add(self, value: float) -> None:
        self._values.append(value)

    def join(self, other: Self) -> None:
        self._values += other._values

    def to_json(self) -> dict[str, float]:
        found = quantiles(self._values, (0.5, 0.9, 1.0))
        return {self._tests: len(self._values), **dict(zip(("median", "p90", "max"), found, strict=False))}


# --- The table


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a target may give with an answer: a field of its record, of ``Answer``, of the item's record and of the result."""

    name: str
    read: Callable[[Json, str, list[str]], Any]
    """Its value of what a record has under that name, None without one; the list takes notices. Raises RecordFault."""
    of_turns: Callable[[Sequence[Any]], Any]
    """What those of a conversation's turns come to."""
    of_samples: Callable[[Sequence[Any]], Any]
    """What those of a test's samples come to."""
    shown: Callable[[Any], str]
    """The value with its unit, for people."""
    tally: Callable[[], Tally]
    """What a summary makes of those of its results."""
    is_number: bool = True
    """Whether it is one number; otherwise it is an object of numbers."""


FIGURES = (
    Figure(
        "token_usage",
        _token_usage,
        _added_tokens,
        _added_tokens,
        _shown_tokens,
        lambda: SumsByKind("tests_with_usage"),
        is_number=False,
    ),
    Figure("cost_usd", read_number, exact_sum, exact_sum, "${:.4f}".format, lambda: Sum("tests_with_cost")),
    Figure("duration_ms", read_number, sum, exact_sum, "{:,.0f} ms".format, lambda: Spread("tests_with_duration")),
)
"""All figures of answers, in the order of records and results."""
NUMBERS = tuple(each.name for each in FIGURES if each.is_number)
"""The names of those that are one number."""
_CANDIDATE = {each.name for each in fields(Candidate)}
GRADED = tuple(each.name for each in FIGURES if each.name in _CANDIDATE)
"""The names of those that graders know, in candidates and their traces."""


def figures_given(source: object) -> dict[str, Any]:
    """The figures that an answer has, by name."""
    return {each.name: value for each in FIGURES if (value := getattr(source, each.name)) is not None}
