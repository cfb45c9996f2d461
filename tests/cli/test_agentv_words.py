"""Words of AgentV's command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Ended, run

SUITE = {
    "targets": {"it": {"provider": "cli", "command": "echo yes"}},
    "tests": [{"id": "a", "input": "i", "assert": [{"type": "contains", "value": "yes"}]}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(json.dumps(SUITE))
    return tmp_path


def evaluate(folder: Path, *words: str) -> Ended:
    return run("eval", *words, folder=folder)


def test_run_and_the_folder_of_the_run(folder: Path) -> None:
    assert evaluate(folder, "run", "suite.yaml", "-o", "results/first", "--test-id=a", "--budget-usd", "3").code == 0
    assert (folder / "results/first/results.jsonl").is_file()
    words = ("run", "suite.yaml", "--output", "results/first", "--output=out.json", "--budget-usd=3", "--test-id=a")
    assert "exists already" in evaluate(folder, *words).err
    assert evaluate(folder, *words, "--resume").code == 0
    assert (folder / "out.json").is_file()
    again = evaluate(folder, "suite.yaml", "--retry-errors", "results/first", "--budget-usd=3", "--test-id=a")
    assert again.code == 0
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--experiment", "x"], "--experiment: name the run with --run_name"),
        (["--no-results-push"], "--no-results-push: results are not committed anywhere"),
        (["--record-replay=x.jsonl"], "--record-replay: a run keeps its answers"),
        (["--model", "openai:m"], "--model: the targets of an evaluation say this themselves"),
        (["--output=x", "--run_name=y"], "--output=FOLDER says where the run is; leave --run_name out"),
        (["--output=x", "--output=y/"], "--output names two folders"),
    ],
)
def test_what_there_is_instead(folder: Path, words: list[str], said: str) -> None:
    ran = evaluate(folder, "run", "suite.yaml", *words)
    assert ran.code == 2
    (line,) = ran.err.strip().splitlines()
    assert said in line


def test_a_file_that_is_called_run(folder: Path) -> None:
    (folder / "run").write_text("")
    ran = evaluate(folder, "run", "suite.yaml")
    assert (ran.code, "write ./run, or leave it out" in ran.err) == (2, True)
