"""Exports as JSON Lines: one object for each row, its values as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO

from manyhands.core.jsonio import exact_line
from manyhands.csv_jobs.export_rows import Values


def write_jsonl(handle: BinaryIO, names: Sequence[str], rows: Iterable[Values]) -> int:
    """Write the rows as objects with the columns' names; returns how many."""
    written = 0
    for row in rows:
        handle.write(exact_line(dict(zip(names, row, strict=True))))
        written += 1
    return written
