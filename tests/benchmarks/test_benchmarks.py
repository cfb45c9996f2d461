"""The benchmarks themselves: that a bound which is not kept shows, in the row and in the exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are no part of the installed package

from benchmarks.children import run_child  # noqa: E402
from benchmarks.csv_jobs import agents, functions, large_tables  # noqa: E402
from benchmarks.csv_jobs.tables import JOB_ID, JOB_NAME, function_settings, write_table  # noqa: E402
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


@pytest.mark.slow
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


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are found from the current folder."""
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("at_root")
def test_a_job_by_the_command_is_measured_with_its_runner(tmp_path: Path) -> None:
    measured = functions.job(tmp_path / "folder", 3)
    results = (tmp_path / "folder" / "results.csv").read_text().splitlines()
    assert (len(results), results[-1].count('{""done"":true}')) == (4, 1)
    assert measured["wall"] > 0.1
    assert measured["cpu"] > 0.1
    assert 20 << 20 < measured["memory"] < 1 << 30
    assert run_child("csv_jobs.exporting", data_dir=str(tmp_path / "folder"), job=JOB_NAME)["rows"] == 3


@pytest.mark.usefixtures("at_root")
def test_a_job_that_does_not_complete_is_no_measurement(tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", 3)
    settings = function_settings(tmp_path / "table.csv", tmp_path) | {"worker_function": "json:loads"}
    with pytest.raises(RuntimeError, match=r"csv_jobs\.command failed(.|\n)*worker_error"):
        run_child("csv_jobs.command", settings=settings)


@pytest.mark.slow
@pytest.mark.usefixtures("at_root")
def test_the_bare_loop_makes_the_calls_of_the_job(tmp_path: Path) -> None:
    [(bare, job)] = agents.compared(4, 1)
    assert bare["posts"] == 4 * agents.POSTS
    assert min(bare["cpu"], job["cpu"], bare["wall"], job["wall"]) > 0


@pytest.mark.parametrize(
    "stats", [{"total": 40, "distinct": 21}, {"total": 39, "distinct": 20}, {"total": 60, "distinct": 20}]
)
def test_calls_that_differ_are_no_comparison(stats: dict[str, int]) -> None:
    agents.check({"total": 40, "distinct": 20}, rows=10, rounds=1)
    with pytest.raises(RuntimeError, match="do not make the same calls, 2 a row"):
        agents.check(stats, rows=10, rounds=1)


@pytest.mark.usefixtures("at_root")
def test_a_status_of_the_wrong_job_is_no_measurement(tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv", 3)
    made = run_child("csv_jobs.making", settings=function_settings(tmp_path / "table.csv", tmp_path), job_id=JOB_ID)
    assert made["rows"] == 3
    assert large_tables.status_seconds(tmp_path, 3) > 0
    with pytest.raises(RuntimeError, match="does not name 4 rows"):
        large_tables.status_seconds(tmp_path, 4)
