"""A workload of another package, with what fills in the summaries of its runs: the command line shows what that knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.runs.execution import execute_run
from manyhands.runs.making import Opened, create_run
from manyhands.runs.registry import load_workload
from tests.support.commands import PROGRAM, Ended, run

PACKAGE = """
from manyhands.runs.summaries import Summarizer, brief, figure
from manyhands.testing.steps_workload import StepsWorkload


class Counting(StepsWorkload):
    name = "counting"


class CountingSummarizer(Summarizer):
    def item(self, row):
        total = (row.record or {}).get("total")
        return {
            **super().item(row),
            "label": f"count {row.position}",
            "score": None if total is None else total / 4,
            "verdict": None if total is None else "counted",
            "input": brief(row.payload),
            "outcome": brief(row.message or total),
        }

    def figures(self):
        return [figure("highest", max(row.record["total"] for row in self.reader.items() if row.record), ".0f")]
"""


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder for runs, beside the folder of the package, which is as if it were installed."""
    installed = tmp_path / "packages"
    information = installed / "counting-1.0.dist-info"
    information.mkdir(parents=True)
    (installed / "counting_package.py").write_text(PACKAGE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[manyhands.workloads]\ncounting = counting_package:Counting\n"
        "[manyhands.summaries]\ncounting = counting_package:CountingSummarizer\n"
    )
    monkeypatch.syspath_prepend(str(installed))
    return tmp_path / "data"


def command(data_dir: Path, *words: str) -> Ended:
    """``manyhands …`` with an interpreter of its own."""
    ended = run(*words, f"--data_dir={data_dir}", program=PROGRAM)
    assert ended.code == 0, ended.err
    return ended


async def test_its_runs_are_shown_with_what_it_knows(data_dir: Path) -> None:
    folder = data_dir / "r"
    spec = {"items": 2, "steps": 3, "lines": False, "failures": {"item-1": ["tool_error"] * 9}}
    workload = load_workload("counting")(spec, folder)
    create_run(folder, "counting", workload, version="test", notice=print)
    await execute_run(Opened(folder, workload))

    (listed,) = json.loads(command(data_dir, "runs", "--json").out)
    state = "finished, with failures"
    assert (listed["run"], listed["workload"], listed["state"], listed["failed"]) == ("r", "counting", state, 1)
    status = json.loads(command(data_dir, "status", "r", "--json").out)
    assert status["figures"] == [{"name": "highest", "label": "highest", "value": 3, "text": "3"}]
    assert "highest 3" in command(data_dir, "status", "r").out
    counted, failed = map(json.loads, command(data_dir, "show", "r", "--json").out.splitlines())
    assert (counted["label"], counted["score"], counted["verdict"], counted["outcome"]) == (
        "count 0",
        0.75,
        "counted",
        "3",
    )
    assert (counted["input"], counted["usage"]["calls"]) == ('{"position": 0}', 3)
    assert (failed["label"], failed["score"], failed["cause"]) == ("count 1", None, "tool_error")
    assert "0.750" in command(data_dir, "show", "r").out
    assert "total:\n  3" in command(data_dir, "show", "r", "1").out
