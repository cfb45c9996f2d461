"""Whether a job keeps up with workers that take no time, and whether its memory stays flat as tables grow.

The worker is a Python function that does nothing; everything else is as it is by default. The whole command counts: the table is read,
the rows are performed, the results are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.children import run_child
from benchmarks.csv_jobs.tables import JOB_NAME, function_settings, write_table
from benchmarks.rows import Row

_MEGABYTE = 1 << 20


def functions(quick: bool) -> Iterator[Row]:
    """Rows a second, the growth of memory, and the export of what came out."""
    few, many, rounds = (2_000, 20_000, 1) if quick else (10_000, 100_000, 2)
    with TemporaryDirectory() as name:
        small = job(Path(name) / "small", few)
        large = min((job(Path(name) / str(number), many) for number in range(rounds)), key=lambda each: each["wall"])
        exported = run_child("csv_jobs.exporting", data_dir=str(Path(name) / "0"), job=JOB_NAME)
    wall, cpu = large["wall"], 1e6 * large["cpu"] / many
    note = f"{many:,} rows in {wall:.1f} s, table and results included; {cpu:.0f} µs of CPU a row"
    yield Row("jobs: no-op function", many / wall, "rows/s", at_least=2000.0, note=note)
    growth = 100 * (large["memory"] / small["memory"] - 1)
    note = f"{small['memory'] / _MEGABYTE:.0f} MB for {few:,} rows, {large['memory'] / _MEGABYTE:.0f} MB for {many:,}"
    yield Row("jobs: memory growth", growth, "%", at_most=20.0, note=f"{note}, in the largest process")
    note = f"{exported['rows']:,} rows with results, {exported['memory'] / _MEGABYTE:.0f} MB"
    yield Row("jobs: export", exported["rows"] / exported["wall"], "rows/s", note=note)


def job(folder: Path, rows: int) -> dict[str, Any]:
    """A job of that many rows, performed to its end in a new folder: ``wall``, ``cpu``, ``memory``. Raises RuntimeError if not all rows are
    completed."""
    folder.mkdir()
    write_table(folder / "table.csv", rows)
    return run_child("csv_jobs.command", settings=function_settings(folder / "table.csv", folder))
