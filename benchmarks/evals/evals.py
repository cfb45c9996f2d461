"""What evaluations cost: judges that are programs, and records by the hundred thousand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.children import run_child
from benchmarks.evals.suites import CODE, RULE, write_suite
from benchmarks.rows import Row

_MEGABYTE = 1 << 20


def evals(quick: bool) -> Iterator[Row]:
    """All figures."""
    yield from _judges(200 if quick else 1_000)
    # Caches that a small run does not fill weigh more where the large one is not much larger.
    yield from _records(*((10_000, 30_000) if quick else (20_000, 100_000)), kilobytes=1.0 if quick else 0.45)


def _judges(tests: int) -> Iterator[Row]:
    """A command for all tests and a trivial Python judge each, against a fresh interpreter for each judge."""
    with TemporaryDirectory() as name:
        suite = write_suite(Path(name) / "suite", tests, CODE)
        alone = run_child("evals.alone", folder=str(suite.parent), answers=tests)
        run = _performed(suite, tests)
    if (run["passed"], run["mean"]) != (alone["passed"], alone["mean"]):
        raise RuntimeError(f"the scores differ: {run} and {alone}")
    seconds = run["make"]["wall"] + run["perform"]["wall"]
    note = (
        f"{tests:,} judges in {seconds:.1f} s, making the run included, against {alone['wall']:.1f} s one after another"
    )
    yield Row("evals: Python judges", alone["wall"] / seconds, "× as fast", at_least=5.0, note=note)


def _records(few: int, many: int, *, kilobytes: float) -> Iterator[Row]:
    """A command for all tests and a rule for each, and whether memory stays flat: at most so many ``kilobytes`` more for each test. Both
    runs are large enough for a process that writes their results."""
    with TemporaryDirectory() as name:
        small = _performed(write_suite(Path(name) / "small", few, RULE), few)
        large = _performed(write_suite(Path(name) / "large", many, RULE), many)
    wall, cpu = large["perform"]["wall"], large["perform"]["cpu"]
    note = f"{many:,} records in {wall:.1f} s, {1e6 * cpu / many:.0f} µs of the engine's CPU each, results included"
    yield Row("evals: records graded", many / wall, "/s", at_least=5_000, note=note)
    yield Row("evals: making the run", many / large["make"]["wall"], "/s", note=f"{many:,} tests read and planned")
    growth = (large["memory"] - small["memory"]) / (many - few)
    sizes = f"{small['memory'] / _MEGABYTE:.0f} MB for {few:,}, {large['memory'] / _MEGABYTE:.0f} MB for {many:,}"
    yield Row("evals: memory a test", growth / 1024, "KB", at_most=kilobytes, note=sizes)


def _performed(suite: Path, tests: int) -> dict[str, Any]:
    run = run_child("workloads.evals.executing", suite=str(suite))
    if run["completed"] != tests:
        raise RuntimeError(f"{run['completed']} of {tests} tests were completed")
    return run
