"""What CSV jobs cost."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.csv_jobs.agents import agents
from benchmarks.csv_jobs.functions import functions
from benchmarks.csv_jobs.large_tables import large_tables
from benchmarks.rows import Row


def jobs(quick: bool) -> Iterator[Row]:
    """All figures."""
    yield from functions(quick)
    yield from agents(quick)
    yield from large_tables(quick)
