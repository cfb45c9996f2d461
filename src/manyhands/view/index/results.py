"""What queries of an index answer with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manyhands.view.index.filters import Cursor


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an index is. Times are seconds since 1970 UTC."""

    is_complete: bool
    """Whether it can be used."""
    done: int
    """Items that are in it."""
    total: int
    """Items of the run."""
    at: float
    """When it was begun, or last brought to where the journal was."""
    difference: int
    """Items that are in another state than in the index, found when it was last looked at."""


@dataclass(frozen=True, slots=True)
class Page:
    """Items, by their numbers, in the order asked for."""

    numbers: Sequence[int]
    next: Cursor | None
    """Where the next page begins; None if this is the last one."""
    previous: Cursor | None
    """Where the page in front of it ends; None if this is the first one."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of items."""

    items: int
    is_exact: bool
    """Whether there are not more than that."""

    def __str__(self) -> str:
        return f"{self.items:,}" if self.is_exact else f"more than {self.items:,}"


@dataclass(frozen=True, slots=True)
class Facets:
    """How the items that pass filters are distributed."""

    states: Mapping[tuple[str, str], int]
    """By state and reason or cause."""
    labels: Mapping[str, Mapping[str, int]]
    """By name and value."""
    tools: Mapping[str, int]
    """Items whose latest attempt called a tool, by its name."""
    scores: Sequence[int]
    """Of 20 ranges of equal width from 0 to 1; those outside are in the first and the last."""
    is_exact: bool
    """Whether all items were counted; if not, there are more."""


@dataclass(frozen=True, slots=True)
class Point:
    """What happened in a stretch of time."""

    at: float
    """Its beginning, in seconds since 1970 UTC."""
    finished: int
    """Items that ended, whichever way."""
    completed: int
    failed: int
    failures: int
    """Failures, also those after which an item was tried again."""
    tokens_in: int
    tokens_out: int
    cost: float


@dataclass(frozen=True, slots=True)
class Series:
    """Points at equal distances, also those at which nothing happened."""

    seconds: int
    """From each point to the next."""
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class ToolFigures:
    """How a tool was used. Calls are those of latest attempts, but for the durations, which are of all attempts, to about 5 %."""

    name: str
    items: int
    calls: int
    failures: int
    failed_items: int
    """Items of which a call failed."""
    median_seconds: float | None
    p95_seconds: float | None


@dataclass(frozen=True, slots=True)
class IndexedItem:
    """What the index knows of an item. Figures are as of ``gathering.Entry``."""

    calls: Mapping[str, tuple[int, int]]
    """Of each tool: calls, and how many of them failed."""
    number: int
    position: int
    state: str
    detail: str
    score: float | None
    cost: float | None
    tokens: int | None
    tokens_out: int | None
    turns: int | None
    tools: int | None
    tool_failures: int | None
    seconds: float | None
    finished: float | None
    attempt: int
