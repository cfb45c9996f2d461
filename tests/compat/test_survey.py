"""The survey of a tree of eval files: each is checked, evaluated and held against its baseline, and the tree stays as it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.survey import main, survey

TARGETS = """
targets:
  - name: default
    use_target: ${{ AGENT_TARGET }}
  - name: vendor
    provider: openai
    api_key: ${{ NO_SUCH_KEY }}
    model: ${{ NO_SUCH_MODEL }}
    stream_log: raw
  - name: echo
    provider: cli
    command: printf 'It says %s' {PROMPT} > {OUTPUT_FILE}
    grader_target: vendor
"""
LENGTH = """
import json, sys
given = json.load(sys.stdin)
print(json.dumps({"pass": len(given["output"]) < 40, "checks": []}))
"""


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def baseline(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def grader(name: str, score: float, kind: str = "contains") -> dict[str, Any]:
    return {"name": name, "type": kind, "score": score, "weight": 1, "verdict": "pass" if score else "fail"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    write(folder / ".agentv" / "config.yaml", {"execution": {"verbose": False, "otel_file": "otel.json"}})
    write(folder / ".agentv" / "targets.yaml", TARGETS)
    write(folder / "length.py", LENGTH)
    said = {"name": "said", "type": "contains", "value": "hello"}
    short = {"name": "short", "type": "code-grader", "command": [sys.executable, "../length.py"]}
    write(
        folder / "evals" / "echo.eval.yaml",
        {
            "governance": {"risk": "low"},
            "execution": {"target": "echo"},
            "tests": [{"id": "a", "input": "hello", "criteria": "says hello", "assertions": [said, short]}],
        },
    )
    asked = {"id": "b", "input": "hello", "criteria": "says hello", "assertions": [{"type": "llm-grader"}]}
    write(folder / "evals" / "asked.eval.yaml", {"tests": [asked]})
    write(folder / "evals" / "wrong.eval.yaml", {"tests": [{"id": "c", "input": "x", "threshold": 7, "criteria": "y"}]})
    return folder


def test_what_loads_runs_and_scores_as_its_baseline_is_well(tree: Path) -> None:
    file = tree / "evals" / "echo.eval.baseline.jsonl"
    baseline(file, {"test_id": "a", "target": "echo", "score": 1, "scores": [grader("said", 1), grader("short", 1)]})
    before = sorted(tree.rglob("*"))
    asked, echo, wrong = survey(tree)
    assert sorted(tree.rglob("*")) == before
    assert (echo.file, echo.loads, echo.runs) == ("evals/echo.eval.yaml", "yes", "yes")
    assert echo.baseline == "equal (3 scores)"
    assert (asked.loads, asked.runs, asked.baseline) == ("yes", "yes; default replaced", "")
    assert "tests[0].threshold" in wrong.loads
    assert not wrong.runs
    assert [row.well for row in (asked, echo, wrong)] == [True, True, False]


def test_a_score_that_differs_is_named(tree: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tree / "evals" / "wrong.eval.yaml").unlink()
    file = tree / "evals" / "echo.eval.baseline.jsonl"
    baseline(file, {"test_id": "a", "target": "echo", "score": 0.5, "scores": [grader("said", 0), grader("short", 1)]})
    assert main([str(tree), f"--table={tmp_path / 'table.md'}"]) == 1
    said = capsys.readouterr().out
    assert "2 of 3 scores differ: a said: 0 there, 1 here; a: 0.5 there, 1 here" in said
    assert (
        said.splitlines()[-1]
        == "2 eval files: 2 load, 2 run; 1 baselines: 0 equal, 1 differ, 0 without anything to compare"
    )
    assert (tmp_path / "table.md").read_text() == said.rpartition("\n\n")[0] + "\n"


@pytest.mark.slow
def test_answers_in_a_baseline_are_graded_again_and_those_of_models_are_not_compared(tree: Path) -> None:
    said = {"type": "contains", "value": "Paris"}
    test = {"id": "d", "input": "?", "criteria": "the capital", "assertions": [said, {"type": "llm-grader"}]}
    write(tree / "evals" / "asked.eval.yaml", {"tests": [test, {**test, "id": "e"}]})
    scores = [grader("contains-Paris", 1), grader("judge", 0.25, "llm-grader")]
    with_answer = {"test_id": "d", "target": "default", "score": 0.6, "answer": "It is Paris.", "scores": scores}
    without = {"test_id": "e", "target": "default", "score": 0.6, "scores": scores}
    baseline(tree / "evals" / "asked.eval.baseline.jsonl", with_answer, without)
    assert survey(tree)[0].baseline == "equal (1 scores)"
    baseline(tree / "evals" / "asked.eval.baseline.jsonl", without)
    assert survey(tree)[0].baseline == "nothing to compare: a model's answers, which it does not hold"
