"""The benchmarks of whole processes: that both sides do the same work, and that all that they take is counted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are no part of the installed package

from benchmarks.children import run_child  # noqa: E402
from benchmarks.limit.comparing import Comparison, Serving, whole  # noqa: E402
from benchmarks.limit.prompts import check  # noqa: E402

SPIN = "import os, time\nif not os.fork():\n    os.setsid()\n    while time.process_time() < 0.3: pass"
"""A program that comes back at once, and leaves a process that computes."""


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are found from the current folder."""
    monkeypatch.chdir(ROOT)


def test_the_bare_loop_makes_the_calls_of_a_batch(tmp_path: Path) -> None:
    compared = Comparison(tmp_path, 4, 2, Serving(full=2))
    measured = [compared.bare(), compared.bare(plain=True), compared.batch(executor="local")]
    check(measured, 4)
    for each in measured:
        assert each["cpu"] > 0.05
        assert each["started"] < each["first"] < each["started"] + 60
    with pytest.raises(RuntimeError, match="the same 5 calls"):
        check(measured, 5)


@pytest.mark.slow
def test_the_bare_loop_runs_the_commands_of_a_batch(tmp_path: Path) -> None:
    compared = Comparison(tmp_path, 1, 1, Serving(turns=2))
    assert [run["requests"] for run in (compared.bare(), compared.batch())] == [3, 3]
    assert (tmp_path / "run-1" / "trajectories.jsonl").read_text().count("ready") >= 2


def test_processes_that_outlive_a_command_count() -> None:
    measured = whole([sys.executable, "-c", SPIN])
    assert measured["cpu"] >= 0.3
    assert measured["memory"] > 1 << 20


def test_a_command_that_fails_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="no harbour"):
        whole(["sh", "-c", "echo no harbour; exit 3"])


def test_modules_are_told_apart_by_whether_a_function_of_theirs_is_called() -> None:
    never = run_child("limit.called_modules", words=["simulate", "--help"])["never"]
    assert "manyhands.core" in never
    assert "manyhands.cli.main" not in never
