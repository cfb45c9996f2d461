"""``manyhands.evaluate`` as a program calls it."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import manyhands
from manyhands.workloads.evals.in_python.evaluate import EvalKeywords, evaluate
from manyhands.workloads.evals.settings import EvalSpec

TESTS: list[dict[str, Any]] = [
    {
        "id": "greeting",
        "input": "Say hello",
        "expected_output": "hello",
        "assert": [{"type": "contains", "value": "hello"}],
    },
    {
        "id": "parting",
        "input": "Say bye",
        "expected_output": "bye",
        "assert": [lambda answer, expected: expected in answer],
    },
]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def last_word(question: str) -> str:
    return question.split()[-1]


async def whole(test: dict[str, Any]) -> dict[str, Any]:
    return {"text": f"{test['id']}: hello, bye", "cost_usd": 0.25, "token_usage": {"input": 3, "output": 2}}


def test_tests_targets_and_graders_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str | None] = []
    found = manyhands.evaluate(tests=TESTS, target=[last_word, whole], on_result=lambda each: seen.append(each.test_id))
    assert found.passed
    assert found.score == 1
    assert (found.summary.total, found.summary.passed, found.summary.cost_usd) == (4, 4, 0.5)
    assert [(each.test_id, each.target) for each in found] == [
        (test_id, target) for test_id in ("greeting", "parting") for target in ("last_word", "whole")
    ]
    assert found.result("parting", "whole").cost_usd == 0.25
    assert sorted(map(str, seen)) == ["greeting", "greeting", "parting", "parting"]
    assert (found.run_dir / "eval_summary.json").is_file()
    found.raise_for_failures()
    assert "passed=4" in repr(found)
    assert "hello, bye" not in repr(found)
    assert capsys.readouterr() == ("", "")


def test_what_graders_may_return_and_get() -> None:
    def share(record: dict[str, Any]) -> float:
        return 0.5 if record["metadata"] == {"of": "mine"} else 0

    def details(answer: str, metadata: dict[str, Any]) -> dict[str, Any]:
        return {"score": 0.25, "misses": [f"{answer} of {metadata['of']}"]}

    async def passes(output: str, input: str) -> bool:
        return output == "hello" and input == "Say hello"

    test = {"id": "a", "input": "Say hello", "metadata": {"of": "mine"}, "assert": [share, details, passes]}
    found = manyhands.evaluate(tests=[test], target=last_word, threshold=0.7)
    assert [score["score"] for score in found.results[0].scores or ()] == [0.5, 0.25, 1]
    assert not found.passed
    with pytest.raises(
        AssertionError, match=r"1 of 1 test did not pass .*\n  a @ last_word: score 0\.583.*hello of mine"
    ):
        found.raise_for_failures()


def test_an_error_is_no_score_of_zero() -> None:
    def broken(question: str) -> str:
        raise ValueError("out of order")

    found = manyhands.evaluate(tests=TESTS, target=broken)
    assert (found.summary.errors, found.summary.total, found.score) == (2, 2, None)
    with pytest.raises(manyhands.EvaluationFailed, match="greeting @ broken: error: ValueError: out of order"):
        found.raise_for_failures()


def test_the_same_call_continues_a_run_and_calls_nothing_again() -> None:
    calls: list[str] = []

    def counting(question: str) -> str:
        calls.append(question)
        return last_word(question) if len(calls) != 2 else "wrong"

    def again(**more: Any) -> manyhands.Evaluation:
        return manyhands.evaluate(tests=TESTS, target=counting, run_name="r", resume=True, workers=1, **more)

    assert not again().passed
    assert not again().passed
    assert len(calls) == 2
    with pytest.raises(manyhands.RunError, match="continue it with resume=True, or start another with run_name="):
        manyhands.evaluate(tests=TESTS, target=counting, run_name="r")
    rerun = again(rerun_failed=True)
    assert (rerun.passed, rerun.summary.rerolled, len(calls)) == (True, 1, 3)
    assert rerun.notes[0].startswith("1 re-rolled: parting; first results: 1 of 2 passed")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"tests": [{"id": "a", "input": "x", "assert": [{"type": "containz"}]}]},
            r"tests\[0\]\.assert\[0\]\.type: unknown",
        ),
        (
            {"tests": [{"id": "a", "input": "x", "assert": [lambda other: 1]}]},
            r"tests\[0\]\.assert\[0\]: .* needs 'other'",
        ),
        ({"tests": [{"id": "a", "input": {1, 2}}]}, r"tests\[0\]\.input: must be data"),
        ({"tests": []}, "holds no tests"),
        ({}, "give eval_files or tests"),
        ({"eval_files": TESTS}, r"eval_files: must be paths of eval files, not .*; tests are given as tests=…"),
        ({"eval_files": 3}, "eval_files: must be paths of eval files, not 3"),
        ({"eval_files": "none.eval.yaml"}, r"none\.eval\.yaml: there is no such file"),
        ({"tests": TESTS, "target": "nobody"}, "there is no target 'nobody'"),
        ({"tests": TESTS, "target": 3}, "target: must be a target's name"),
        ({"tests": TESTS, "target": lambda: ""}, "takes no argument"),
        ({"tests": TESTS, "threshold": 3}, "threshold must be between 0 and 1"),
        ({"tests": TESTS, "retry_errors": True}, "retry_errors=True goes with resume=True"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_before_anything_runs(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(manyhands.UserError, match=problem) as raised:
        manyhands.evaluate(**{"target": last_word, **given})
    assert "\n" not in str(raised.value)
    assert not Path("data").exists()


def test_eval_files_with_a_function_as_target_and_a_definition() -> None:
    Path("a.eval.yaml").write_text("tests: [{id: a, input: Say hello, assert: [{type: equals, value: hello}]}]\n")
    given = {"name": "made up", "provider": "mock", "response": "hello"}
    found = manyhands.evaluate("a.eval.yaml", target=[last_word, given], test_id="a*")
    assert [(each.target, each.passed) for each in found] == [("last_word", True), ("made up", True)]


async def test_on_a_running_loop_async_functions_run_on_it() -> None:
    home = asyncio.get_running_loop()

    async def answer(question: str) -> str:
        assert asyncio.get_running_loop() is home
        return last_word(question)

    assert (await manyhands.evaluate_async(tests=TESTS, target=answer)).passed
    assert manyhands.evaluate(tests=TESTS, target=last_word).passed, "as in a notebook"


async def test_cancelling_leaves_a_run_that_can_be_continued() -> None:
    calls: list[str] = []

    async def slow(question: str) -> str:
        calls.append(question)
        await asyncio.sleep(60 if len(calls) == 2 else 0)
        return last_word(question)

    def call() -> Any:
        return manyhands.evaluate_async(tests=TESTS, target=slow, run_name="r", resume=True, workers=1)

    task = asyncio.create_task(call())
    while len(calls) < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await call()).passed
    assert len(calls) == 3


def test_in_threads_nothing_of_the_process_is_left_changed() -> None:
    before = (gc.get_threshold(), sys.getswitchinterval(), signal.getsignal(signal.SIGINT))
    frozen = gc.get_freeze_count()
    found: list[bool] = []

    def one(number: int) -> None:
        call = manyhands.evaluate(tests=TESTS, target=last_word, run_name=f"r{number}")
        found.append(call.passed)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3
    assert (gc.get_threshold(), sys.getswitchinterval(), signal.getsignal(signal.SIGINT)) == before
    left = gc.get_freeze_count()  # those of before that have ended meanwhile don't count any more
    assert (left <= frozen, left > 0) == (True, frozen > 0)


def test_commands_run_in_a_thread_too() -> None:
    target = {"name": "echo", "provider": "cli", "command": ["sh", "-c", "echo hello, bye > {OUTPUT_FILE}"]}
    found: list[manyhands.Evaluation] = []
    thread = threading.Thread(target=lambda: found.append(manyhands.evaluate(tests=TESTS, target=target)))
    thread.start()
    thread.join()
    assert found[0].passed, found[0].results


INTERRUPTED = """
import time, manyhands
def slow(question):
    print("called", flush=True)
    time.sleep(0.5)
    return "hello"
tests = [{"id": str(n), "input": "x", "assert": [{"type": "equals", "value": "hello"}]} for n in range(50)]
try:
    manyhands.evaluate(tests=tests, target=slow, run_name="r", workers=1)
except KeyboardInterrupt as interrupt:
    print(interrupt, flush=True)
    print(manyhands.evaluate(tests=tests[:1] + tests[1:], target=slow, run_name="r", resume=True, max_seconds=0.01).summary)
"""


def test_ctrl_c_finishes_what_is_in_flight(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "called\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=30)[0]
    assert process.returncode == 0, rest
    assert "can be continued with run_name and resume=True" in rest
    assert "total=50, passed=1" in rest, rest


def test_the_keywords_are_the_settings() -> None:
    parameters = {"eval_files", "target", "judge_target", "resume"}
    not_for_python = {"watch", "quiet", "view", "fail_on"}
    assert parameters | set(EvalKeywords.__annotations__) == set(EvalSpec.fields) - not_for_python
    with pytest.raises(TypeError, match="unexpected keyword argument 'tresholt'"):
        evaluate(tests=TESTS, tresholt=1)  # type: ignore[call-arg]
