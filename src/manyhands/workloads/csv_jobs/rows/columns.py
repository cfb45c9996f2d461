"""Columns by their names: those that a job adds, and those that are chosen for prompts and for results."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from manyhands.core.errors import UserError
from manyhands.io.tables.base import known_columns, shown

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
"""What a job adds to its table."""
SPREAD = "result."
"""What the name of a column begins with that holds one property of the results."""
TABLE, JOB, RESULTS = "table", "job", "results"
"""Words for all columns of one origin: the table's, the job's own, and one for each property of the results."""
_FIRST_COLUMN = re.compile(rf"((?:stage\d+_)?){OUR_COLUMNS[0]}")
ALL, NONE = "all", "none"


def column_list(value: Any) -> tuple[str, ...] | None:
    """Names of columns, each once: a list, or as typed with commas between them, where a name with a comma is put into double quotes.

    Raises ValueError.
    """
    if isinstance(value, str):
        try:
            value = next(csv.reader([value], skipinitialspace=True, strict=True), [])
        except csv.Error:
            raise ValueError("must be names of columns with commas between them") from None
        value = [name.strip() for name in value]
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise ValueError("must be names of columns")
    return tuple(dict.fromkeys(name for name in value if name)) or None


def prefixes() -> Iterator[str]:
    """What stands before the columns that a job adds, in the order of the jobs that a table has been through."""
    yield ""
    for job in count(2):
        yield f"stage{job}_"


def earlier_columns(headers: Sequence[str]) -> frozenset[str]:
    """The columns that earlier jobs added to a table: all ten of a job, or none of them."""
    jobs = [{match[1] + name for name in OUR_COLUMNS} for match in map(_FIRST_COLUMN.fullmatch, headers) if match]
    return frozenset().union(*(added for added in jobs if added.issubset(headers)))


def prompt_columns(chosen: Sequence[str] | None, headers: Sequence[str]) -> tuple[str, ...]:
    """The columns that prompts may hold as JSON: those that were chosen, or else all but those that earlier jobs added.

    Raises UserError for a name that no column has.
    """
    if chosen is None:
        left_out = earlier_columns(headers)
        return tuple(name for name in headers if name not in left_out)
    if len(chosen) == 1 and chosen[0] in (ALL, NONE) and chosen[0] not in headers:
        return tuple(headers) if chosen[0] == ALL else ()
    for name in chosen:
        if name not in headers:
            raise UserError(f"--prompt_columns: {shown(name)} is no column{known_columns(name, headers)}")
    return tuple(chosen)
