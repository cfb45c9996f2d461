"""The example that researches companies on a web of its own: every row is searched for, read and reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from manyhands.runs.folders import find_runs, open_reader

EXAMPLE = Path(__file__).parents[2] / "examples" / "csv_jobs" / "research.py"


def test_every_row_is_searched_for_read_and_reported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--data_dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert "Juniper Robotics      2018  Torino      robots that prune vines" in done.stdout
    assert "Isla Verde Coffee     2003  San Juan    coffee roasted on an island" in done.stdout
    [folder] = find_runs(tmp_path)
    reader = open_reader(folder)
    try:
        for row in reader.items():
            called = [step.request["call"]["name"] for step in reader.steps(row.number, 1) if step.kind == "tool"]
            assert called == ["web_search", "web_extract", "report_agent_job_result"]
    finally:
        reader.close()
