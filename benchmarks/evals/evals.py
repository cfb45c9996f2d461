"""What evaluations cost: judges that are programs, and records by the ten thousand."""

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
    yield from judges(200 if quick else 1_000, at_least=5.0)
    yield from _records(5_000 if quick else 20_000)


def judges(tests: int, *, at_least: float) -> Iterator[Row]:
    """A command for all tests and a trivial Python judge each, against a fresh interpreter for each judge."""
    with TemporaryDirectory() as name:
        suite = write_suite(Path(name) / "suite", tests, CODE)
        alone = run_child("evals.alone", folder=str(suite.parent), answers=tests)
        run = _executed(suite, tests)
    if (run["passed"], run["mean"]) != (alone["passed"], alone["mean"]):
        raise RuntimeError(f"the scores differ: {run} and {alone}")
    seconds = run["make"]["wall"] + run["execute"]["wall"]
    note = (
        f"{tests:,} judges in {seconds:.1f} s, making the run included, against {alone['wall']:.1f} s one after another"
    )
    yield Row("evals: Python judges", alone["wall"] / seconds, "× as fast", at_least=at_least, note=note)


def _records(tests: int) -> Iterator[Row]:
    """A command for all tests and a rule for each."""
    with TemporaryDirectory() as name:
        run = _executed(write_suite(Path(name) / "suite", tests, RULE), tests)
    wall, cpu = run["execute"]["wall"], run["execute"]["cpu"]
    note = f"{tests:,} records in {wall:.1f} s, {1e6 * cpu / tests:.0f} µs of the engine's CPU each, results included"
    yield Row("evals: records graded", tests / wall, "/s", at_least=2_000, note=note)
    yield Row("evals: making the run", tests / run["make"]["wall"], "/s", note=f"{tests:,} tests read and planned")
    yield Row("evals: memory", run["memory"] / _MEGABYTE, "MB", at_most=300, note=f"the most, with {tests:,} tests")


def _executed(suite: Path, tests: int) -> dict[str, Any]:
    run = run_child("evals.executing", suite=str(suite))
    if run["completed"] != tests:
        raise RuntimeError(f"{run['completed']} of {tests} tests were completed")
    return run
