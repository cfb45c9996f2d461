"""``make demo``, but for the installation: what it prints, and the runs that it leaves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.batches import run_command
from tests.support.commands import LONGEST, environment

ROOT = Path(__file__).parents[2]
PRINTED = (
    "completed     30  ended with a result",
    "The first trajectory (simulated model):",
    "To show its steps:  ",
    "  editor      3       3       2  66.7 %",
    "  completed     5  reported a result",
    "  LLMChatSession - simulated - 3000 (simulated)  completed",
    "Four runs have ended, and one goes on for a minute. To look at them in a browser:",
    "manyhands view data",
)
STATES = {"": "finished", "-eval": "finished", "-job": "finished", "-live": "running"}


def test_the_demonstration_leaves_four_finished_runs_and_one_that_goes_on(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    command = [sys.executable, "-P", "examples/demo.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LONGEST)
    found = re.search(r"--run_name=(demo-\d+-\d+) ", done.stdout)
    assert done.returncode == 0, done
    assert found is not None
    try:
        runs = json.loads(run_command(tmp_path, "runs", "--json").out)
    finally:
        stopped = run_command(tmp_path, "jobs", "cancel", f"{found[1]}-live", "--firm")
    assert stopped.code == 0, stopped
    for text in PRINTED:
        assert text in done.stdout
    states = {Path(run["run"]).name: run["state"] for run in runs}
    assert states == {"quick": "finished", **{f"{found[1]}{name}": state for name, state in STATES.items()}}
    assert sorted(path.name for path in (tmp_path / "examples/csv_jobs").iterdir()) == sorted(
        path.name for path in (ROOT / "examples/csv_jobs").iterdir() if path.name != "__pycache__"
    )
