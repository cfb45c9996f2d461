"""What a row of the built-in agent costs beyond a bare asyncio loop with the same HTTP library, making the same calls.

As ``overhead`` for batches: both talk to one simulated server without latency, and each figure is the least of a few rounds, in which
the two take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.children import run_child
from benchmarks.csv_jobs.tables import JOB_ID, agent_settings, write_table
from benchmarks.rows import Row
from benchmarks.simulated import simulated_server

IN_FLIGHT = 200
POSTS = 2
"""Model calls a row: one that ends in a call of a tool, one in the report."""


Measured = tuple[dict[str, float], dict[str, float]]
"""What the bare loop and the job took in one round: ``cpu`` and ``wall``, in seconds."""


def agents(quick: bool) -> Iterator[Row]:
    """Engine CPU a row, and wall time against the bare loop's."""
    rows, rounds = (500, 2) if quick else (2_000, 3)
    measured = compared(rows, rounds)
    bare, engine = (min(each[side]["cpu"] for each in measured) for side in (0, 1))
    bare_wall, wall = (min(each[side]["wall"] for each in measured) for side in (0, 1))
    per_row = 1000 / rows
    note = f"{rows:,} rows, each with a tool call and a report, {IN_FLIGHT} in flight"
    yield Row("jobs: engine CPU, agent", (engine - bare) * per_row, "ms/row", at_most=2.0, note=note)
    note = f"what the engine's CPU is counted beyond: {POSTS} posts a row"
    yield Row("jobs: bare loop CPU", bare * per_row, "ms/row", note=note)
    yield Row("jobs: wall time, agent", wall / bare_wall, "× bare", note=f"{wall:.2f} s against {bare_wall:.2f} s")


def compared(rows: int, rounds: int) -> list[Measured]:
    """Rounds of both, over the same table. Raises RuntimeError if the two did not make the same calls, to the byte."""
    with TemporaryDirectory() as name, simulated_server() as server:
        folder = Path(name)
        write_table(folder / "table.csv", rows)
        measured = [_round(folder, number, server.base_url, rows) for number in range(rounds)]
        check(server.stats(), rows, rounds)
    return measured


def check(stats: Mapping[str, Any], rows: int, rounds: int) -> None:
    """Raises RuntimeError if a server's counts are not those of ``rounds`` times the same calls by both sides."""
    if stats["distinct"] != POSTS * rows or stats["total"] != 2 * rounds * POSTS * rows:
        raise RuntimeError(f"the two do not make the same calls, {POSTS} a row: {stats} for {rows} rows")


def _round(folder: Path, number: int, base_url: str, rows: int) -> Measured:
    settings = agent_settings(folder / "table.csv", folder / str(number), base_url, IN_FLIGHT)
    bare = run_child("csv_jobs.bare", settings=settings, job_id=JOB_ID)
    made = run_child("csv_jobs.making", settings=settings, job_id=JOB_ID)
    job = run_child("csv_jobs.performing", folder=made["folder"])
    if job["completed"] != rows:
        raise RuntimeError(f"{job['completed']} of {rows} rows were completed")
    return bare, job
