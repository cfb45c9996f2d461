"""A run of tasks killed while its verifier runs: it runs again as a whole, and there is one result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from tests.support.batches import read_lines, run_command
from tests.support.made_tasks import make_task

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")

VERIFIER = """#!/bin/bash
echo run >> verified
[ "$(wc -l < worked)" = 1 ] && wc -l < verified > /logs/verifier/reward.txt
touch began
sleep 1.5
"""
WORDS = ("batch", "tasks", "--run_name=r", "--executor=local", "--quiet", "--agent_command=echo x >> worked")


def test_a_verifier_that_was_killed_runs_again_from_the_world_before_it(tmp_path: Path) -> None:
    make_task(tmp_path / "tasks/a", test=VERIFIER)
    process = subprocess.Popen(
        [sys.executable, "-m", "manyhands", *WORDS],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": ""},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not any((tmp_path / "data").rglob("workspace/began")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    with closing(JournalReader(tmp_path / "data/r")) as reader:
        before = [step.request.get("do") or step.kind for step in reader.steps(1, 1)]
    assert "verify" not in before
    resumed = run_command(tmp_path, "resume", "data/r")
    assert resumed.code == 0, resumed.err
    (line,) = read_lines(tmp_path / "data/r/trajectories.jsonl")
    assert (line["metadata"]["score"], line["metadata"]["attempt"]) == (1.0, 1)
    with closing(JournalReader(tmp_path / "data/r")) as reader:
        steps = reader.steps(1, 1)
    assert [step.request.get("do") for step in steps].count("verify") == 1
    assert [step.kind for step in steps].count("agent") == 1
