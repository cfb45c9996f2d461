"""The columns of an export and their names: those of the table, then ours, then those of the results if they are spread out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from manyhands.core.jsonio import without_surrogates
from manyhands.csv_jobs.export_flatten import Leaf

OUR_COLUMNS = (
    "job_id",
    "item_id",
    "row_index",
    "source_id",
    "status",
    "attempt_count",
    "last_error",
    "result_json",
    "reported_at",
    "completed_at",
)
ROW_INDEX, ATTEMPTS, RESULT = (OUR_COLUMNS.index(name) for name in ("row_index", "attempt_count", "result_json"))
REPORTED, COMPLETED = (OUR_COLUMNS.index(name) for name in ("reported_at", "completed_at"))
SPREAD = "result."
"""What the name of a column begins with that holds one property of the results."""


@dataclass(frozen=True, slots=True)
class Columns:
    """``headers`` of the table; ``ours``: the names of our ten; ``leaves``: the properties of the results that have a column each,
    named ``spread``."""

    headers: tuple[str, ...]
    ours: tuple[str, ...]
    leaves: tuple[Leaf, ...] = ()
    spread: tuple[str, ...] = ()

    @classmethod
    def of(cls, headers: Sequence[str], leaves: Sequence[Leaf] = ()) -> Columns:
        """Names all columns: where one of ours is among the headers, all of ours get the first prefix of ``stage2_``, ``stage3_`` … with
        which none is, so that what a job writes can be another job's table, however often."""
        own = tuple(without_surrogates(header) for header in headers)
        ours = (*OUR_COLUMNS, *_distinct(SPREAD + ".".join(leaf.path) for leaf in leaves))
        taken = set(own)
        prefix = next(prefix for prefix in _prefixes() if taken.isdisjoint(prefix + name for name in ours))
        named = tuple(prefix + name for name in ours)
        return cls(own, named[: len(OUR_COLUMNS)], tuple(leaves), named[len(OUR_COLUMNS) :])

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.headers, *self.ours, *self.spread)

    def place(self, ours: int) -> int:
        """Where one of our columns is in a row."""
        return len(self.headers) + ours


def _prefixes() -> Iterator[str]:
    yield ""
    for stage in count(2):
        yield f"stage{stage}_"


def _distinct(names: Iterable[str]) -> list[str]:
    """The names; where two properties would share one (a dot may be part of a property's name), the later gets a number behind it."""
    given: dict[str, None] = {}
    for name in map(without_surrogates, names):
        given[next(candidate for candidate in _numbered(name) if candidate not in given)] = None
    return list(given)


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in count(2))
