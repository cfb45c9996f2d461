"""The rows of an export: what the journal holds of each item, as values in the order of the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState
from manyhands.csv_jobs.export_columns import RESULT, Columns
from manyhands.engine.blobs import unpack
from manyhands.engine.store import is_owned
from manyhands.engine.workload import RunReader

Values = list[Json]
TimeOf = Callable[[int], Json]
"""How seconds since 1970 UTC are shown."""
SKIPPED = "skipped"


def read_rows(reader: RunReader, columns: Columns, time: TimeOf) -> Iterator[Values]:
    """The rows in order of the table, one at a time."""
    job_id, width, leaves = reader.meta("run_id"), len(columns.headers), columns.leaves
    place, words = columns.place(RESULT), _words(reader)
    for key, payload, state, performances, message, record, finished, _ in reader.streamed("exported_items"):
        row = unpack(payload)
        report = unpack(record) if record else {}
        reported = report.get("reported_at")
        values = _cells(row, width)
        values += (
            job_id,
            key,
            row["row_index"],
            row["source_id"],
            words[state],
            performances,
            message,
            report.get("result"),
            None if reported is None else time(int(reported)),
            None if finished is None else time(int(finished)),
        )
        if leaves:
            result = values[place]
            values += [leaf.of(result) for leaf in leaves]
        yield values


def read_results(reader: RunReader) -> Iterator[Json]:
    """The results in order of the table, one at a time."""
    for record, _ in reader.streamed("completed_records"):
        yield unpack(record).get("result")


@lru_cache(maxsize=4096)
def rfc3339(seconds: int) -> str:
    """A time as RFC 3339 has it, in UTC and whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _words(reader: RunReader) -> dict[str, str]:
    """What the states are called. A row that nobody performs is not running, whatever an owner that died left behind."""
    words = {state.value: state.value for state in ItemState} | {ItemState.DISCARDED.value: SKIPPED}
    return words if is_owned(reader.folder) else {**words, ItemState.RUNNING.value: ItemState.PENDING.value}


def _cells(row: Mapping[str, Any], width: int) -> Values:
    """The cells of the table, as many as it has columns: a row that was skipped may have others."""
    cells: Values = row["row"]
    return cells if len(cells) == width else [*cells[:width], *[None] * (width - len(cells))]
