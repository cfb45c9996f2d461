"""Tests that depend on others: what is refused, in what order they are put to targets, and what becomes of them when a dependency fails."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.engine.check import check_run
from manyhands.engine.journal.reader import JournalReader
from manyhands.io.locations import Location
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.evalfile.loading import wrong_dependencies
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.workload import EvalsWorkload
from tests.support.commands import run
from tests.support.eval_runs import EvalRun, perform_eval

OWN = """\
import asyncio, os, signal
from pathlib import Path
HERE = Path(__file__).parent

def log(text):
    with (HERE / "calls.log").open("a") as file:
        file.write(text + "\\n")

async def answer(asked):
    log(f"begin {asked['id']}")
    await asyncio.sleep(0.01)
    metadata = asked["metadata"]
    if metadata.get("kill") and not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if metadata.get("broken") and not (HERE / "mended").exists():
        raise ValueError("no luck")
    if metadata.get("once") and not (HERE / "tried").exists():
        (HERE / "tried").touch()
        raise TimeoutError("slow")
    log(f"end {asked['id']}")
    return metadata.get("says", "yes")

async def late(asked):
    log(f"begin {asked['id']}")
    if asked["id"] == "a" and not (HERE / "tried").exists():
        (HERE / "tried").touch()
        await asyncio.sleep(60)
    log(f"end {asked['id']}")
    return "yes"
"""
BULK = """\
import json, sys
from pathlib import Path
Path("calls.log").open("a").write("bulk\\n")
records = [{"id": "a", "error": "no luck"}, {"id": "b", "text": "yes"}, {"id": "c", "text": "yes"}]
Path(sys.argv[1]).write_text("".join(json.dumps(each) + "\\n" for each in records))
"""


def case(test_id: str, *depends_on: str, **more: Any) -> dict[str, Any]:
    return {"id": test_id, "input": "x", **({"depends_on": list(depends_on)} if depends_on else {}), **more}


def write(folder: Path, *tests: dict[str, Any], function: str = "answer", head: str = "", target: str = "") -> Path:
    (folder / "own.py").write_text(OWN)
    (folder / "bulk.py").write_text(BULK)
    own = target or json.dumps({"name": "t", "provider": "python", "function": f"own.py:{function}", "workers": 1})
    lines = [f"targets: [{own}]", "assert: [{type: contains, value: 'yes'}]", head, "tests:"]
    path = folder / "suite.yaml"
    path.write_text("\n".join([*lines, *(f"  - {json.dumps(test)}" for test in tests)]) + "\n")
    return path


def calls(folder: Path) -> list[str]:
    log = folder / "calls.log"
    return log.read_text().splitlines() if log.exists() else []


def ended_before(log: list[str], first: str, second: str) -> bool:
    return log.index(f"end {first}") < log.index(f"begin {second}")


def ledger(run: EvalRun) -> dict[str, int]:
    return {name: count for name, count in run.summary["tests"].items() if count}


# --- What is refused


UNKNOWN = "line 6: tests[1].depends_on[0]: no test of the file is called 'alhpa'; did you mean alpha?"
CIRCLE = "line 5: tests[0].depends_on: tests depend on each other in a circle: a → c → b → a"
POLICY = "line 6: tests[1].on_dependency_failure: must be 'skip', 'fail' or 'run', not 'stop'"


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ([case("alpha"), case("b", "alhpa")], UNKNOWN),
        ([case("a", "a")], "line 5: tests[0].depends_on[0]: is the test's own id"),
        ([case("a", "c"), case("b", "a"), case("c", "b")], CIRCLE),
        ([case("a"), case("b", "a", on_dependency_failure="stop")], POLICY),
        (
            [case("a", depends_on=[{"id": "b"}]), case("b")],
            "tests[0].depends_on: must be a list of ids, or one id, not ",
        ),
    ],
)
async def test_what_can_not_be_waited_for_is_refused_in_one_line(
    tmp_path: Path, tests: list[dict[str, Any]], said: str
) -> None:
    write(tmp_path, *tests)
    with pytest.raises(UserError) as error:
        await perform_eval(tmp_path)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "data").exists()


async def test_keys_may_be_written_in_other_ways_and_ids_may_be_numbers(tmp_path: Path) -> None:
    write(tmp_path, case("7", id=7), case("b", dependsOn=7, **{"on-dependency-failure": "fail"}), case("c", "b"))
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"7": "passed", "b": "passed", "c": "passed"}
    assert run.record("b")["depends_on"] == ["7"]

    write(tmp_path, case("a"), case("b", dependsOn=["x"]))
    with pytest.raises(UserError, match=r"line 6: tests\[1\].dependsOn\[0\]: no test of the file is called 'x'$"):
        await perform_eval(tmp_path, "other")


async def test_what_belongs_to_a_test_is_refused_at_the_head_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, case("a"), head="depends_on: [a]")
    with pytest.raises(UserError, match="depends_on: is not supported; each test says for itself what it depends on"):
        await perform_eval(tmp_path)


@pytest.mark.parametrize("given", [{"test_id": ["b"]}, {"test_id": ["!a"]}, {"tag": ["late"]}])
async def test_a_choice_that_leaves_out_a_dependency_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    write(tmp_path, case("a"), case("b", "a", tags=["late"]))
    with pytest.raises(UserError) as error:
        await perform_eval(tmp_path, **given)
    ((name, values),) = given.items()
    said = f"test 'a' is left out by --{name}={values[0]}, and test 'b' depends on it: choose both"
    assert f"line 6: tests[1].depends_on[0]: {said}" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


async def test_a_choice_of_both_or_of_none_that_depends_is_fine(tmp_path: Path) -> None:
    write(tmp_path, case("a"), case("b", "a"), case("c"))
    assert (await perform_eval(tmp_path, "both", test_id=["a", "b"])).statuses() == {"a": "passed", "b": "passed"}
    assert (await perform_eval(tmp_path, "none", test_id=["c"])).statuses() == {"c": "passed"}


async def test_a_dependency_must_be_put_to_the_same_targets(tmp_path: Path) -> None:
    two = '{"name": "t", "provider": "mock", "response": "yes"}, {"name": "u", "provider": "mock", "response": "yes"}'
    tests = [case("a", execution={"target": "u"}), case("b", "a", execution={"targets": ["u", "t"]})]
    write(tmp_path, *tests, target=two)
    with pytest.raises(UserError) as error:
        await perform_eval(tmp_path)
    assert "test 'a' is not executed with target t, as test 'b' is, which depends on it" in str(error.value)


async def test_with_skip_invalid_a_circle_is_left_out_and_what_depends_on_it_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, case("a", "b"), case("b", "a"), case("c", "a"), case("d", "nobody"), case("e"))
    run = await perform_eval(tmp_path, skip_invalid=True)
    assert run.statuses() == {"a": "invalid", "b": "invalid", "d": "invalid", "c": "skipped", "e": "passed"}
    assert ledger(run) == {"in": 5, "passed": 1, "skipped": 1, "invalid": 3}
    assert "circle: a → b → a" in run.record("b")["error"]


@given(st.dictionaries(st.integers(0, 7), st.lists(st.integers(0, 7), max_size=3, unique=True), max_size=8))
def test_without_the_tests_that_are_named_in_circles_the_rest_has_an_order(graph: dict[int, list[int]]) -> None:
    tests = [Test(str(each), (), Location("f"), depends_on=tuple(map(str, graph[each]))) for each in graph]
    wrong = wrong_dependencies(tests, {test.id for test in tests})
    left = {test.id: set(test.depends_on) for number, test in enumerate(tests) if number not in wrong}
    ended = {test.id for number, test in enumerate(tests) if number in wrong}
    while ready := [each for each, named in left.items() if named <= ended]:
        ended.update(ready)
        for each in ready:
            del left[each]
    assert not left
    named = [
        number
        for number, test in enumerate(tests)
        if any(each not in {t.id for t in tests} for each in test.depends_on)
    ]
    assert set(named) <= set(wrong)


# --- The order


@pytest.mark.parametrize("workers", [1, 2, 50])
async def test_no_test_begins_before_what_it_depends_on_has_ended(tmp_path: Path, workers: int) -> None:
    chain = [case(f"c{each}", f"c{each - 1}") for each in range(12, 0, -1)]  # the last one stands first
    write(tmp_path, *chain, case("fan", "c12", "c3"), case("c0"), case("alone"), function="answer")
    run = await perform_eval(tmp_path, workers=workers)
    log = calls(tmp_path)
    assert all(ended_before(log, f"c{each - 1}", f"c{each}") for each in range(1, 13))
    assert ended_before(log, "c12", "fan")
    assert ledger(run) == {"in": 15, "passed": 15}


async def test_waiting_tests_keep_nobody_from_work(tmp_path: Path) -> None:
    many = [case(f"w{each}", "a") for each in range(40)]
    own = json.dumps({"name": "t", "provider": "python", "function": "own.py:late", "workers": 2})
    write(tmp_path, *many, case("a"), *(case(f"free{each}") for each in range(5)), target=own)
    run = await perform_eval(tmp_path, agent_timeout=0.3)  # the first answer of a takes too long, and it is tried again
    log = calls(tmp_path)
    assert all(log.index(f"end free{each}") < log.index("end a") for each in range(5))
    assert all(ended_before(log, "a", f"w{each}") for each in range(40))
    assert log.count("begin a") == 2
    assert ledger(run) == {"in": 46, "passed": 46}


async def test_each_target_has_its_own_dependencies(tmp_path: Path) -> None:
    two = json.dumps({"name": "t", "provider": "python", "function": "own.py:answer"})
    two += ', {"name": "m", "provider": "mock", "response": "yes"}'
    write(
        tmp_path, case("b", "a"), case("a", metadata={"broken": True}), head="execution: {targets: [t, m]}", target=two
    )
    run = await perform_eval(tmp_path)
    assert {(each["test_id"], each["target"]): each["status"] for each in run.records()} == {
        ("a", "t"): "error",
        ("b", "t"): "skipped",
        ("a", "m"): "passed",
        ("b", "m"): "passed",
    }


# --- What becomes of tests whose dependencies fail


async def test_a_failed_dependency_skips_fails_or_lets_run(tmp_path: Path) -> None:
    write(
        tmp_path,
        case("a", metadata={"broken": True}),
        case("skip", "a"),
        case("fail", "a", on_dependency_failure="fail"),
        case("run", "a", on_dependency_failure="run"),
        case("behind", "skip", "run", "fail"),
        case("after_run", "run"),
    )
    run = await perform_eval(tmp_path, output=[str(tmp_path / "o.xml"), str(tmp_path / "o.html")])
    assert run.statuses() == {
        "a": "error",
        "skip": "skipped",
        "fail": "error",
        "run": "passed",
        "behind": "skipped",
        "after_run": "passed",
    }
    skipped, failed, behind = (run.record(each) for each in ("skip", "fail", "behind"))
    message = "test a, which it depends on, has no score because of an error"
    assert (skipped["error"], skipped["score"], skipped["cause"]) == (message, None, "dependency_failed")
    assert (failed["error"], failed["score"], failed["cause"]) == (message, None, "dependency_failed")
    assert behind["failed_dependencies"] == ["skip", "fail"]
    assert behind["depends_on"] == ["skip", "run", "fail"]
    assert ledger(run) == {"in": 6, "passed": 2, "errors": 2, "skipped": 2}
    assert run.summary["pass_rate"]["tests"] == 2
    assert run.code == 3
    assert run.result.summary["ledger"]["by_cause"]["discarded"] == {"dependency_failed": 2}
    assert not any(line.endswith((" skip", " fail", " behind")) for line in calls(tmp_path))
    junit = (tmp_path / "o.xml").read_text()
    assert 'tests="6" failures="0" errors="2" skipped="2"' in junit
    assert f'<skipped message="skipped: {message}"/>' in junit
    assert 'data-filter-status="skipped"' in (tmp_path / "o.html").read_text()


async def test_a_low_score_is_no_failure_of_a_dependency(tmp_path: Path) -> None:
    write(tmp_path, case("a", metadata={"says": "no"}), case("b", "a"))
    assert (await perform_eval(tmp_path)).statuses() == {"a": "failed", "b": "passed"}


async def test_a_grader_that_breaks_is_one(tmp_path: Path) -> None:
    broken = {"type": "code_judge", "script": [sys.executable, "-c", "import sys; sys.exit(1)"]}
    write(tmp_path, {**case("a"), "assert": [broken]}, case("b", "a"))
    assert (await perform_eval(tmp_path)).statuses() == {"a": "grader_error", "b": "skipped"}


async def test_fail_on_error_names_the_error_and_not_what_depends_on_it(tmp_path: Path) -> None:
    broken = {"type": "code_judge", "script": [sys.executable, "-c", "import sys; sys.exit(1)"]}
    write(
        tmp_path,
        {**case("a"), "assert": [broken]},
        case("b", "a", on_dependency_failure="fail"),
        case("c", "b"),
        head="execution: {fail_on_error: true}",
    )
    run = await perform_eval(tmp_path)
    assert run.result.stopped is None
    assert run.statuses() == {"a": "grader_error", "b": "error", "c": "skipped"}


async def test_a_run_that_stops_leaves_waiting_tests_pending(tmp_path: Path) -> None:
    write(
        tmp_path,
        case("b", "a"),
        case("c", "b"),
        case("a", metadata={"broken": True}),
        head="execution: {fail_on_error: true}",
    )
    stopped = await perform_eval(tmp_path)
    assert ledger(stopped) == {"in": 3, "errors": 1, "pending": 2}
    assert (await perform_eval(tmp_path, resume=True)).statuses() == {"b": "skipped", "c": "skipped", "a": "error"}


@pytest.mark.parametrize(
    ("trials", "status"),
    [
        ({"count": 2}, "passed"),  # one of two passed
        ({"count": 2, "strategy": "mean"}, "skipped"),  # a mean needs both
    ],
)
async def test_all_trials_of_a_dependency_are_waited_for(tmp_path: Path, trials: dict[str, Any], status: str) -> None:
    tests = [case("b", "a"), case("a", metadata={"once": True}, execution={"trials": trials})]
    write(tmp_path, *tests)
    run = await perform_eval(tmp_path, max_retries=0)
    assert run.statuses()["b"] == status
    log = calls(tmp_path)
    if status == "passed":
        assert log.index("begin b") > max(location for location, line in enumerate(log) if line.endswith(" a"))
    assert log.count("begin a") == 2


async def test_trials_of_what_depends_are_skipped_together(tmp_path: Path) -> None:
    write(tmp_path, case("b", "a", execution={"trials": {"count": 3}}), case("a", metadata={"broken": True}))
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"b": "skipped", "a": "error"}
    assert ledger(run) == {"in": 2, "errors": 1, "skipped": 1}


async def test_a_command_for_all_tests_is_asked_once_and_grades_what_may_be_graded(tmp_path: Path) -> None:
    bulk = json.dumps(
        {"name": "t", "provider": "cli", "command": "python3 bulk.py {OUTPUT_FILE}", "provider_batching": True}
    )
    write(tmp_path, case("b", "a"), case("a"), case("c"), target=bulk)
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"b": "skipped", "a": "error", "c": "passed"}
    assert calls(tmp_path) == ["bulk"]
    assert any(
        "target t answers all tests in one invocation, which depends_on can't put in order" in line for line in run.said
    )


# --- Going on


async def test_tests_that_were_skipped_are_looked_at_again_with_retry_errors(tmp_path: Path) -> None:
    write(tmp_path, case("c", "b"), case("b", "a"), case("a", metadata={"broken": True}), case("d"))
    await perform_eval(tmp_path)
    again = await perform_eval(tmp_path, resume=True)
    assert again.statuses() == {"c": "skipped", "b": "skipped", "a": "error", "d": "passed"}
    again = await perform_eval(tmp_path, resume=True, retry_errors=True)
    assert again.record("a")["attempts"] == 2
    assert "attempts" not in again.record("b")  # it was never performed
    (tmp_path / "mended").touch()
    mended = await perform_eval(tmp_path, resume=True, retry_errors=True)
    assert set(mended.statuses().values()) == {"passed"}
    log = calls(tmp_path)
    assert ended_before(log, "a", "b")
    assert ended_before(log, "b", "c")
    assert log.count("begin d") == 1
    with closing(JournalReader(mended.folder)) as reader:
        checked = await check_run(reader, EvalsWorkload(reader.meta("spec"), mended.folder))
    assert not checked.mismatches


async def test_a_regrading_skips_what_was_skipped(tmp_path: Path) -> None:
    write(tmp_path, case("b", "a"), case("a", metadata={"broken": True}), case("c"))
    first = await perform_eval(tmp_path)
    regraded = await perform_eval(tmp_path, "again", regrade=str(first.folder))
    assert regraded.statuses() == first.statuses() == {"b": "skipped", "a": "error", "c": "passed"}


async def test_a_regrading_says_that_what_was_skipped_has_no_answer(tmp_path: Path) -> None:
    broken = {"type": "code_judge", "script": "exit 3"}
    talk = {"id": "talk", "mode": "conversation", "turns": [{"input": "q"}], "depends_on": ["a"]}
    write(tmp_path, case("a", **{"assert": [broken]}), case("b", "a"), talk)
    first = await perform_eval(tmp_path)
    assert first.statuses() == {"a": "grader_error", "b": "skipped", "talk": "skipped"}
    write(tmp_path, case("a"), case("b", "a"), talk)
    regraded = await perform_eval(tmp_path, "again", regrade=str(first.folder))
    assert regraded.statuses() == {"a": "passed", "b": "error", "talk": "error"}
    said = "run run has no answer, as this was not executed there: test a, which it depends on, has no score"
    assert regraded.record("b")["error"].startswith(said)
    assert regraded.record("talk")["error"].startswith(f"turn 1: {said}")


@pytest.mark.parametrize("killed", ["a", "b", "c"])
def test_a_killed_run_ends_as_one_that_nobody_disturbed(tmp_path: Path, killed: str) -> None:
    tests = [case("d", "c", "x"), case("c", "b"), case("b", "a"), case("a"), case("x", metadata={"broken": True})]
    for test in tests:
        if test["id"] == killed:
            test["metadata"] = {"kill": True}
    write(tmp_path, *tests)
    words = ("eval", "suite.yaml", "--run_name=r", "--resume", "--quiet")
    assert run(*words, folder=tmp_path).code == -9
    second = run(*words, folder=tmp_path)
    assert second.code == 3, second.err
    records = [json.loads(line) for line in (tmp_path / "data/r/results.jsonl").read_text().splitlines()]
    assert {each["test_id"]: each["status"] for each in records} == {
        "d": "skipped",
        "c": "passed",
        "b": "passed",
        "a": "passed",
        "x": "error",
    }
    log = calls(tmp_path)
    assert [log.count(f"end {each}") for each in "abcd"] == [1, 1, 1, 0]
    assert ended_before(log, "a", "b")
    assert ended_before(log, "b", "c")


async def test_many_tests_wait_for_one_without_slots_of_their_own(tmp_path: Path) -> None:
    mock = '{"name": "t", "provider": "mock", "response": "yes"}'
    write(tmp_path, *(case(f"w{each}", "a") for each in range(2000)), case("a"), target=mock)
    options = EvalSpec.make({"eval_files": [str(tmp_path / "suite.yaml")], "data_dir": str(tmp_path / "data")})
    session = await open_eval(options.changed({"workers": 1, "run_name": "r"}), resume=False, notice=print, environ={})
    assert session.workload.execution.concurrency == 1
    run = await perform_eval(tmp_path, "s", workers=1)
    assert ledger(run) == {"in": 2001, "passed": 2001}
