"""``--rerun_failed``: failed tests are run again in their run, and never passed off as first tries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.workloads.evals.results.formats import write_junit
from manyhands.workloads.evals.results.reading import RESULTS, results_in
from manyhands.workloads.evals.results.summary import notes
from tests.support.eval_runs import EvalRun, perform_eval

COUNTING = """
from pathlib import Path

def answer(test):
    calls = Path(__file__).parent / f"calls-{test['id']}-{test['trial']}"
    before = len(calls.read_text()) if calls.exists() else 0
    calls.write_text("x" * (before + 1))
    if test["id"] == "broken" and not before:
        raise ValueError("not yet")
    said = "yes" if before or test["id"] == "good" or test["trial"] == 1 else "no"
    return {"text": said, "cost_usd": 0.25}
"""
SUITE = """
targets: [{{name: own, provider: python, function: answers.py:answer}}]
assert: [{{type: contains, value: "yes"}}]
{more}
tests:
  - {{id: good, input: hi, criteria: c}}
  - {{id: bad, input: hi, criteria: c}}
  - {{id: broken, input: hi, criteria: c}}
"""


def suite(folder: Path, more: str = "") -> Path:
    (folder / "answers.py").write_text(COUNTING)
    (folder / "suite.yaml").write_text(SUITE.format(more=more))
    return folder


def calls(folder: Path) -> dict[str, int]:
    return {path.name.removeprefix("calls-"): len(path.read_text()) for path in sorted(folder.glob("calls-*"))}


async def rerun(folder: Path, name: str = "run", **settings: Any) -> EvalRun:
    return await perform_eval(folder, name, rerun_failed=True, **settings)


async def test_failed_tests_and_errors_are_run_again_and_results_say_so(tmp_path: Path) -> None:
    first = await perform_eval(suite(tmp_path))
    assert first.statuses() == {"good": "passed", "bad": "failed", "broken": "error"}
    again = await rerun(tmp_path)
    assert again.statuses() == dict.fromkeys(("good", "bad", "broken"), "passed")
    assert calls(tmp_path) == {"bad-0": 2, "broken-0": 2, "good-0": 1}
    labels = {
        each: [again.record(each).get(name) for name in ("rerolls", "first_status", "first_score")]
        for each in again.statuses()
    }
    assert labels == {"good": [None] * 3, "bad": [1, "failed", 0], "broken": [1, "error", None]}
    expected = {"tests": 2, "ids": ["bad", "broken"], "first_passed": 1, "first_mean_score": 0.5}
    assert again.summary["rerolled"] == expected
    assert next(notes(again.summary)) == ("2 re-rolled: bad, broken; first results: 1 of 3 passed, mean score 0.500")
    assert again.summary["model_usage"]["cost"] == 1.0, "both calls of a test are paid"


async def test_a_test_is_named_once_however_many_targets_it_has(tmp_path: Path) -> None:
    (suite(tmp_path) / "suite.yaml").write_text(
        """
targets: [{name: a, provider: mock, response: "no"}, {name: b, provider: mock, response: "no"}]
execution: {targets: [a, b]}
assert: [{type: contains, value: "yes"}]
tests: [{id: bad, input: hi, criteria: c}]
"""
    )
    await perform_eval(tmp_path)
    again = await rerun(tmp_path)
    assert next(notes(again.summary)) == "2 re-rolled: bad; first results: 0 of 2 passed, mean score 0.000"


async def test_the_note_stays_when_the_run_is_resumed_or_graded_again(tmp_path: Path) -> None:
    await perform_eval(suite(tmp_path))
    await rerun(tmp_path)
    resumed = await perform_eval(tmp_path, resume=True)
    assert resumed.record("bad")["rerolls"] == 1
    regraded = await perform_eval(tmp_path, "graded", regrade="run")
    assert regraded.record("bad")["first_score"] == 0
    assert regraded.summary["rerolled"]["first_passed"] == 1


async def test_all_samples_of_a_failed_test_are_made_again(tmp_path: Path) -> None:
    trials = "execution: {trials: {count: 2, strategy: mean}}"
    first = await perform_eval(suite(tmp_path, trials))
    assert first.record("bad")["score"] == 0.5
    again = await rerun(tmp_path)
    assert calls(tmp_path)["bad-0"] == calls(tmp_path)["bad-1"] == 2, "the one that passed too"
    assert (again.record("bad")["score"], again.record("bad")["first_score"]) == (1, 0.5)


async def test_answers_of_the_cache_are_not_taken_for_a_second_try(tmp_path: Path) -> None:
    await perform_eval(suite(tmp_path), cache=True)
    again = await rerun(tmp_path, cache=True)
    assert again.statuses()["bad"] == "passed"


async def test_reports_name_what_is_no_first_try(tmp_path: Path) -> None:
    await perform_eval(suite(tmp_path), threshold=0.9)
    again = await rerun(tmp_path)
    with (tmp_path / "junit.xml").open("wb") as handle:
        write_junit(handle, lambda: results_in(again.folder / RESULTS), again.summary)
    written = (tmp_path / "junit.xml").read_text()
    assert "re-rolled once; first: 0.000" in written
    assert 'name="rerolled" value="2 re-rolled' in written


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"run_name": None}, "--rerun_failed needs --run_name"),
        ({"run_name": "other"}, "there is no run other"),
    ],
)
async def test_a_run_must_be_there(settings: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        await rerun(suite(tmp_path), **settings)
    assert not (tmp_path / "data").exists()


async def test_a_command_that_answers_all_tests_at_once_is_not_asked_for_some(tmp_path: Path) -> None:
    suite(tmp_path)
    (tmp_path / "suite.yaml").write_text(
        "targets: [{name: all, provider: replay, path: answers.jsonl}]\n"
        "assert: [{type: contains, value: 'yes'}]\n"
        "tests: [{id: bad, input: hi, criteria: c}]\n"
    )
    (tmp_path / "answers.jsonl").write_text('{"id": "bad", "text": "no"}\n')
    await perform_eval(tmp_path)
    with pytest.raises(UserError, match="target all answers all tests at once"):
        await rerun(tmp_path)
