"""``manyhands tasks check``: the tasks' own solutions, a line for each, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from tests.support.batches import run_command
from tests.support.made_tasks import make_task

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")


def test_all_solutions_must_get_the_full_reward(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks/good", solve="true\n")
    assert run_command(tmp_path, "tasks", "check", "tasks", "--executor=local").code == 0
    make_task(tmp_path / "tasks/low", solve="true\n", test="#!/bin/bash\necho 0.5 > /logs/verifier/reward.txt\n")
    make_task(tmp_path / "tasks/none")
    make_task(tmp_path / "tasks/silent", solve="true\n", test="#!/bin/bash\ntrue\n")
    ran = run_command(tmp_path, "tasks", "check", "tasks", "--executor=local")
    assert ran.code == 1
    words = {line.split()[0]: " ".join(line.split()[1:]) for line in ran.out.splitlines() if line.strip()}
    assert words["good"].startswith("ok 1 reward 1")
    assert words["low"].startswith("too low 0.5")
    assert words["none"].startswith("invalid_input task none has no solution/solve.sh")
    assert words["silent"].startswith("grader_error the verifier left neither")
    assert "1 of 4 solutions get a reward of 1" in ran.out


def test_tasks_that_are_not_taken_refuse_it_or_count_as_wrong(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks/good", solve="true\n")
    make_task(tmp_path / "tasks/bad", toml="[environment]\ngpus = 1\n")
    refused = run_command(tmp_path, "tasks", "check", "tasks", "--executor=local")
    assert (refused.code, "environment.gpus" in refused.err) == (2, True)
    skipped = run_command(tmp_path, "tasks", "check", "tasks", "--executor=local", "--skip_invalid")
    assert skipped.code == 1
    assert "not taken" in skipped.out
    assert run_command(tmp_path, "tasks", "check", str(tmp_path / "tasks" / "good" / "tests")).code == 2
