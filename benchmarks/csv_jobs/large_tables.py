"""A table that is large: how fast its rows are entered, and how soon ``manyhands jobs status`` says where the job stands."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.children import run_child
from benchmarks.csv_jobs.tables import JOB_ID, JOB_NAME, function_settings, write_table
from benchmarks.rows import Row
from benchmarks.startup import program

_MEGABYTE = 1 << 20


def large_tables(quick: bool) -> Iterator[Row]:
    """Rows a second, and the seconds of the command, from its start to its end."""
    rows = 100_000 if quick else 1_000_000
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder / "table.csv", rows)
        made = run_child("csv_jobs.making", settings=function_settings(folder / "table.csv", folder), job_id=JOB_ID)
        seconds = [status_seconds(folder, rows) for _ in range(6 if quick else 16)][1:]
    note = f"median of {len(seconds)} runs, a job of {rows:,} rows"
    yield Row("jobs: manyhands jobs status", median(seconds), "s", at_most=0.2, note=note)
    note = f"{rows:,} rows of CSV in {made['wall']:.1f} s, {made['memory'] / _MEGABYTE:.0f} MB"
    yield Row("jobs: import", rows / made["wall"], "rows/s", note=note)


def status_seconds(data_dir: Path, rows: int) -> float:
    """How long the command takes. Raises RuntimeError if it does not say that there are that many rows."""
    command = [*program(), "jobs", "status", JOB_NAME, f"--data_dir={data_dir}"]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if re.search(rf"^in all +{rows:,} ", done.stdout, re.MULTILINE) is None:
        raise RuntimeError(f"the status does not name {rows:,} rows:\n{done.stdout}")
    return seconds
