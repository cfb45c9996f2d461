"""The benchmarks themselves: that a bound which is not kept shows, in the row and in the exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are no part of the installed package

from benchmarks.rows import Row, cells, failed, number  # noqa: E402


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    ("row", "kept", "bound", "verdict"),
    [
        (Row("a", 0.4, "s", at_most=0.4), True, "≤ 0.4 s", "ok"),
        (Row("a", 0.41, "s", at_most=0.4), False, "≤ 0.4 s", "OVER"),
        (Row("a", 90.0, "%", at_least=90.0), True, "≥ 90 %", "ok"),
        (Row("a", 89.9, "%", at_least=90.0), False, "≥ 90 %", "OVER"),
        (Row("a", float("nan"), "%", at_least=90.0), False, "≥ 90 %", "OVER"),
        (Row("a", 1e9), None, "–", ""),
    ],
)
def test_a_row_says_whether_its_bound_is_kept(row: Row, kept: bool | None, bound: str, verdict: str) -> None:
    assert row.kept is kept
    assert cells(row)[2:4] == (bound, verdict)
    assert failed([Row("b", 1.0), row]) is (kept is False)


def test_numbers_are_readable() -> None:
    assert [number(value) for value in (0.12345, 12.345, 99.95, 1234567.0)] == ["0.123", "12.3", "100", "1,234,567"]


def test_a_benchmark_is_run_by_name() -> None:
    done = run("--quick", "startup")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "startup: manyhands --help" in done.stdout
    assert "overhead" not in done.stdout


def test_an_unknown_name_is_refused() -> None:
    done = run("startpu")
    assert done.returncode == 2
    assert "startpu" in done.stderr
    assert "startup" in done.stderr
