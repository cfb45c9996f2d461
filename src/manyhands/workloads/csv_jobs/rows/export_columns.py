"""The columns of an export (the table's, the job's own, and those of the results if they are spread out), and its rows: what the
journal holds of each item, as values in the order of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from typing import Any

from manyhands.core.jsonio import Json, without_surrogates
from manyhands.core.outcomes import ItemState
from manyhands.engine.contract import RunReader
from manyhands.engine.journal.lock import is_owned
from manyhands.io.tables.base import Values
from manyhands.workloads.csv_jobs.rows.flatten import Leaf

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


TimeOf = Callable[[int], Json]
"""How seconds since 1970 UTC are shown."""
SKIPPED = "skipped"


def read_rows(reader: RunReader, columns: Columns, time: TimeOf) -> Iterator[Values]:
    """The rows in order of the table, one at a time."""
    job_id, width, leaves = reader.meta("run_id"), len(columns.headers), columns.leaves
    place, words = columns.place(RESULT), _words(reader)
    for item in reader.results():
        row, report = item.payload, item.record or {}
        reported = report.get("reported_at")
        values = _cells(row, width)
        values += (
            job_id,
            item.key,
            row["row_index"],
            row["source_id"],
            words[item.state],
            item.performances,
            item.message,
            report.get("result"),
            None if reported is None else time(int(reported)),
            None if item.finished_at is None else time(int(item.finished_at)),
        )
        if leaves:
            result = values[place]
            values += [leaf.of(result) for leaf in leaves]
        yield values


def read_results(reader: RunReader) -> Iterator[Json]:
    """The results in order of the table, one at a time."""
    for record in reader.completed_records():
        yield record.get("result")


@lru_cache(maxsize=4096)
def rfc3339(seconds: int) -> str:
    """A time as RFC 3339 has it, in UTC and whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _words(reader: RunReader) -> dict[str, str]:
    """What the states are called. A row that nobody executes is not running, whatever an owner that died left behind."""
    words = {state.value: state.value for state in ItemState} | {ItemState.DISCARDED.value: SKIPPED}
    return words if is_owned(reader.folder) else {**words, ItemState.RUNNING.value: ItemState.PENDING.value}


def _cells(row: Mapping[str, Any], width: int) -> Values:
    """The cells of the table, as many as it has columns: a row that was skipped may have others."""
    cells: Values = row["row"]
    return cells if len(cells) == width else [*cells[:width], *[None] * (width - len(cells))]
