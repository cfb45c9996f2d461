"""Eval files as tests of pytest, in sessions of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = """
targets: [{name: own, provider: python, function: answers.py:answer}]
assert: [{type: contains, value: hello}]
tests:
  - {id: good, input: hi, criteria: c, tags: [smoke]}
  - {id: bad, input: hi, criteria: c}
  - {id: broken, input: hi, criteria: c}
"""
ANSWERS = """
import time

def answer(test):
    with open("calls.txt", "a") as calls:
        calls.write(test["id"] + "\\n")
    if test["id"] == "broken":
        raise ValueError("out of order")
    return "hello" if test["id"] == "good" else "bye"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "suite.eval.yaml").write_text(SUITE)
    (tmp_path / "answers.py").write_text(ANSWERS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code and what was printed. The plug-in is named, whether or not the package is installed with its entry points."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-p", "manyhands.testing.pytest_plugin", "-q", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout + done.stderr


def calls(folder: Path) -> list[str]:
    path = folder / "calls.txt"
    return sorted(path.read_text().split()) if path.exists() else []


def test_items_have_the_outcomes_of_their_tests(folder: Path) -> None:
    code, printed = run(folder, "suite.eval.yaml", "--junitxml=out.xml")
    assert code == 1
    assert "1 failed, 1 passed, 1 error" in printed
    assert "bad @ own: score 0.000, below the threshold of 0.8: the answer does not contain 'hello'" in printed
    assert "broken @ own: error: ValueError: out of order" in printed
    assert "Traceback" not in printed
    assert "site-packages" not in printed
    assert "suite.eval.yaml: " in printed.partition("evaluations ==")[2], "where the results are"
    assert calls(folder) == ["bad", "broken", "good"]
    assert '<property name="score" value="0"' in (folder / "out.xml").read_text()


def test_nothing_is_called_unless_a_file_is_named(folder: Path) -> None:
    assert run(folder)[0] == 5, "no tests"
    code, printed = run(folder, "--collect-only", "suite.eval.yaml")
    assert (code, "suite.eval.yaml::bad[own]" in printed) == (0, True)
    assert calls(folder) == []
    (folder / "pytest.ini").write_text("[pytest]\nmanyhands_eval_files = *.eval.yaml\nmanyhands_data_dir = runs\n")
    assert run(folder, "-k", "smoke")[0] == 0
    assert calls(folder) == ["good"]
    assert len(list((folder / "runs").iterdir())) == 1


def test_only_what_is_selected_is_called_and_a_named_run_is_continued(folder: Path) -> None:
    words = ("suite.eval.yaml::good[own]", "suite.eval.yaml::bad[own]", "--manyhands-run=mine")
    assert [run(folder, *words)[0] for _ in range(2)] == [1, 1]
    assert calls(folder) == ["bad", "good"]
    code, printed = run(folder, "suite.eval.yaml", "--manyhands-run=mine")
    assert (code, "which was made of other tests" in printed) == (1, True)


def test_other_yaml_files_are_left_to_others(folder: Path) -> None:
    (folder / "other.yaml").write_text("some: thing\n")
    (folder / "plain.yaml").write_text(SUITE)
    code, printed = run(folder, "--collect-only", "plain.yaml")
    assert (code, "plain.yaml::good[own]" in printed) == (0, True)
    assert "::" not in run(folder, "--collect-only", "other.yaml")[1]


def test_a_file_that_cannot_be_read_is_an_error_of_a_line(folder: Path) -> None:
    (folder / "suite.eval.yaml").write_text("tests: [{id: a, input: hi, assert: [{type: containz}]}]\n")
    code, printed = run(folder, "suite.eval.yaml")
    assert code == 2
    assert "suite.eval.yaml, line 1: tests[0].assert[0].type: unknown kind of grader 'containz'" in printed
    assert "Traceback" not in printed


def test_what_a_target_lacks_is_an_error_of_its_items(folder: Path) -> None:
    (folder / "answers.py").unlink()
    code, printed = run(folder, "suite.eval.yaml")
    assert (code, "3 errors" in printed, "there is no file" in printed) == (1, True, True)


def test_the_workers_of_xdist_share_no_run_and_call_nothing_twice(folder: Path) -> None:
    code, printed = run(folder, "-p", "xdist.plugin", "-n", "2", "suite.eval.yaml")
    assert (code, "1 failed, 1 passed, 1 error" in printed) == (1, True)
    assert calls(folder) == ["bad", "broken", "good"]


def test_sessions_without_eval_files_load_nothing_of_it(folder: Path) -> None:
    (folder / "test_own.py").write_text(
        "import sys\n\ndef test_it():\n    assert not [name for name in sys.modules if name.startswith('manyhands.workloads')]\n"
    )
    assert run(folder, "test_own.py")[0] == 0


def test_answers_obey_no_terminal(folder: Path) -> None:
    (folder / "answers.py").write_text('def answer(test):\n    return "\\x1b]0;owned\\x07\\x1b[2J"\n')
    _, printed = run(folder, "suite.eval.yaml::bad[own]", "--color=no")
    assert "answer: \\x1b]0;owned" in printed
    assert "\x1b" not in printed
