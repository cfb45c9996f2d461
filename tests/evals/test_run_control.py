"""Limits, budgets, trials and retries of evaluation runs: what holds tests back, and what ends runs early."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState
from manyhands.engine.check import check_run
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.execution import Controls, execute_run
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.scheduling import max_attempts, slots
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.evals.workload import EvalsWorkload
from tests.support.eval_runs import EvalRun, perform_eval

OWN = """\
import asyncio, json
from pathlib import Path
HERE = Path(__file__).parent
NOW = {}

def log(text):
    with (HERE / "calls.log").open("a") as file:
        file.write(text + "\\n")

async def counted(asked):
    name = asked["config"].get("name", "t")
    NOW[name] = NOW.get(name, 0) + 1
    NOW["all"] = NOW.get("all", 0) + 1
    log(f"{name} {NOW[name]} {NOW['all']}")
    await asyncio.sleep(0.005)
    NOW[name] -= 1
    NOW["all"] -= 1
    return {"text": "yes", "cost_usd": 0.01}

def priced(asked):
    log(f"{asked['id']} {asked['trial']}")
    return {"text": asked["config"].get(asked["id"], "no no yes").split()[asked["trial"]], "cost_usd": 0.4}

async def slow(asked):
    log(asked["id"])
    await asyncio.sleep(60)

def broken(asked):
    log(asked["id"])
    if asked["id"] == "b":
        raise ValueError("no luck")
    return "yes"
"""
YES = "[{type: contains, value: 'yes'}]"


def write(folder: Path, *lines: str, name: str = "suite") -> None:
    (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    (folder / "own.py").write_text(OWN)


def function(called: str, **more: Any) -> str:
    """A target in flow style."""
    return json.dumps({"name": "t", "provider": "python", "function": f"own.py:{called}", **more})


def cases(*ids: str, **more: Any) -> list[str]:
    return ["tests:", *(f"  - {json.dumps({'id': each, 'input': 'x', 'criteria': 'c', **more})}" for each in ids)]


def calls(folder: Path) -> list[str]:
    log = folder / "calls.log"
    return log.read_text().splitlines() if log.exists() else []


def states(run: EvalRun) -> dict[str, str]:
    return {row.key.partition("/")[2]: str(row.reason or row.state) for row in run.items()}


# --- The pass limit

MOCK = 'targets: [{name: m, provider: mock, response: "half"}]'
HALF = "assert: [{type: contains, value: half}, {type: contains, value: other}]"


@pytest.mark.parametrize(
    ("head", "given", "limits", "stated"),
    [
        ("", {}, (0.8, 0.4), 0.8),
        ("threshold: 0.5", {}, (0.5, 0.4), 0.5),
        ("execution: {threshold: 0.5}", {}, (0.5, 0.4), 0.5),
        ("threshold: 0.5", {"threshold": 0.9}, (0.9, 0.4), 0.9),
        ("", {"threshold": 0.3}, (0.3, 0.4), 0.3),
    ],
)
async def test_a_tests_limit_goes_before_the_typed_one_and_that_before_the_files(
    tmp_path: Path, head: str, given: dict[str, Any], limits: tuple[float, float], stated: float
) -> None:
    write(tmp_path, MOCK, head, HALF, *cases("a"), *cases("b", threshold=0.4)[1:])
    run = await perform_eval(tmp_path, **given)
    assert [each["threshold"] for each in run.records()] == list(limits)
    assert [each["score"] for each in run.records()] == [0.5, 0.5]
    assert run.statuses() == {"a": "passed" if limits[0] <= 0.5 else "failed", "b": "passed"}
    assert run.summary["pass_limit"] == stated
    assert run.summary["tests_with_other_limits"] == {"0.4": 1}


async def test_each_file_has_its_limit_and_a_resume_takes_todays(tmp_path: Path) -> None:
    write(tmp_path, MOCK, "threshold: 0.5", HALF, *cases("a"))
    write(tmp_path, MOCK, "threshold: 0.6", HALF, *cases("b"), name="other")
    files = [str(tmp_path / "suite.yaml"), str(tmp_path / "other.yaml")]
    run = await perform_eval(tmp_path, eval_files=files)
    assert run.statuses() == {"a": "passed", "b": "failed"}
    assert (run.summary["pass_limit"], run.summary["tests_with_other_limits"]) == (0.8, {"0.5": 1, "0.6": 1})
    again = await perform_eval(tmp_path, eval_files=files, resume=True, threshold=0.4)
    assert again.statuses() == {"a": "passed", "b": "passed"}
    assert (again.summary["pass_limit"], again.summary["tests_with_other_limits"]) == (0.4, {})


async def test_required_means_the_limit_that_holds_for_the_test(tmp_path: Path) -> None:
    judge = "{type: python, function: 'grade.py:grade', required: true}"
    (tmp_path / "grade.py").write_text("def grade(test):\n    return 0.6\n")
    write(tmp_path, MOCK, "threshold: 0.9", f"assert: [{judge}]", *cases("a"), *cases("b", threshold=0.5)[1:])
    run = await perform_eval(tmp_path)
    assert [each["score"] for each in run.records()] == [0, 0.6]
    assert [each["scores"][0]["required"] for each in run.records()] == [0.9, 0.5]


# --- Budgets


async def test_a_run_stops_when_its_commands_have_cost_the_budget(tmp_path: Path) -> None:
    head = [f"targets: [{function('priced', workers=1)}]", f"assert: {YES}", "execution: {total_budget_usd: 1}"]
    write(tmp_path, *head, *cases("a", "b", "c", "d", "e"))
    run = await perform_eval(tmp_path)
    assert len(calls(tmp_path)) == 3  # 0.4, 0.8, and the one that reached it
    assert run.result.stopped == "the budget of $1 (max_cost) is used up: $1.2000 spent"
    assert (run.summary["tests"]["pending"], run.summary["tests"]["failed"], run.code) == (2, 3, 3)
    assert run.summary["cost_usd"]["sum"] == run.summary["model_usage"]["cost"] == 1.2
    # Used up, it is used up on a resume too; with more, the run goes on where it was.
    assert (await perform_eval(tmp_path, resume=True)).code == 3
    assert len(calls(tmp_path)) == 3
    more = await perform_eval(tmp_path, resume=True, max_cost=5)
    assert (more.summary["tests"]["pending"], more.code) == (0, 1)
    assert [line.split()[0] for line in calls(tmp_path)] == ["a", "b", "c", "d", "e"]


async def test_the_budget_counts_what_commands_and_records_say(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import json\nprint(json.dumps({'text': 'yes', 'cost_usd': 0.25}))\n")
    (tmp_path / "bulk.py").write_text(
        "import json, os, sys\nwith open(sys.argv[1], 'w') as out:\n"
        "    for each in open(os.environ['MANYHANDS_TEST_IDS_FILE']).read().split():\n"
        "        out.write(json.dumps({'id': each, 'text': 'yes', 'cost_usd': 0.5}) + '\\n')\n"
    )
    one = {"provider": "cli", "command": f"{sys.executable} one.py"}
    bulk = {"provider": "cli", "command": f"{sys.executable} bulk.py {{OUTPUT_FILE}}", "provider_batching": True}
    write(tmp_path, f"targets: {json.dumps({'one': one, 'bulk': bulk})}", f"assert: {YES}", *cases("a", "b"))
    run = await perform_eval(tmp_path, target="one,bulk")
    assert run.summary["model_usage"]["cost"] == 1.5
    assert run.code == 0
    again = await perform_eval(tmp_path, "again", regrade="run")
    assert again.summary["model_usage"]["cost"] == 0  # nobody was asked


async def test_of_several_files_the_least_budget_holds_unless_one_is_typed(tmp_path: Path) -> None:
    for name, budget in (("suite", 2), ("other", 1)):
        write(tmp_path, MOCK, HALF, f"execution: {{budget_usd: {budget}}}", *cases("a"), name=name)
    files = [str(tmp_path / "suite.yaml"), str(tmp_path / "other.yaml")]
    run = await perform_eval(tmp_path, eval_files=files)
    assert next(line for line in run.said if "budget" in line).startswith("the run may cost $1, which is the least")
    assert spec(run)["max_cost"] == 1
    typed = await perform_eval(tmp_path, "typed", eval_files=files, max_cost=7)
    assert spec(typed)["max_cost"] == 7


def spec(run: EvalRun) -> dict[str, Any]:
    with closing(JournalReader(run.folder)) as reader:
        value: dict[str, Any] = reader.meta("spec")["options"]
        return value


# --- Stopping at errors


async def test_the_first_error_of_a_target_stops_the_run_if_the_file_says_so(tmp_path: Path) -> None:
    target = f"targets: [{function('broken', workers=1)}]"
    write(tmp_path, target, f"assert: {YES}", "execution: {fail_on_error: true}", *cases("a", "b", "c", "d"))
    run = await perform_eval(tmp_path)
    assert calls(tmp_path) == ["a", "b"]
    assert run.statuses() == {"a": "passed", "b": "error"}
    assert (run.summary["tests"]["pending"], run.code) == (2, 3)
    assert run.result.stopped is not None
    assert "fail_on_error" in run.result.stopped
    assert "test b" in run.result.stopped
    rest = await perform_eval(tmp_path, resume=True)
    assert calls(tmp_path) == ["a", "b", "c", "d"]
    assert rest.statuses() == {"a": "passed", "b": "error", "c": "passed", "d": "passed"}


async def test_a_grader_that_breaks_does_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("raise SystemExit(3)\n")
    grader = "assert: [{type: code_judge, script: [python3, judge.py]}]"
    write(tmp_path, MOCK, grader, "execution: {fail_on_error: true, workers: 1}", *cases("a", "b"))
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"a": "grader_error", "b": "grader_error"}


# --- The grader of tests without graders


async def test_evaluator_names_the_grader_of_tests_without_any(tmp_path: Path) -> None:
    judged = "targets: [{name: m, provider: mock, response: '{}', judge_target: sim}, {name: sim, provider: model, model: simulated}]"
    write(
        tmp_path,
        judged,
        "execution: {target: m}",
        "evaluator: is-json",
        *cases("a"),
        *cases("b", evaluator="llm_judge")[1:],
    )
    run = await perform_eval(tmp_path)
    assert [[score["type"] for score in each["scores"]] for each in run.records()] == [["is_json"], ["llm_judge"]]
    write(tmp_path, MOCK, "evaluator: is_json", *cases("a"))
    without_judge = await perform_eval(tmp_path, "without")
    assert without_judge.statuses() == {"a": "failed"}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("contains", r"suite.yaml, line 2: evaluator: a grader of kind contains needs settings \(value is required\)"),
        ("code-judge", r"line 2: evaluator: .* needs settings \(script is required\)"),
        ("llm_juge", r"line 2: evaluator: unknown kind of grader 'llm_juge'; did you mean"),
    ],
)
async def test_an_evaluator_that_can_not_be_used_is_refused(tmp_path: Path, kind: str, said: str) -> None:
    write(tmp_path, MOCK, f"evaluator: {kind}", *cases("a"))
    with pytest.raises(UserError, match=said):
        await perform_eval(tmp_path)


# --- Trials


def with_trials(answers: dict[str, str], trials: str, *more: str) -> list[str]:
    return [
        f"targets: [{function('priced', config=answers)}]",
        f"assert: {YES}",
        f"execution: {{trials: {trials}}}",
        *more,
        *cases(*answers),
    ]


async def test_trials_end_with_the_first_that_passes(tmp_path: Path) -> None:
    write(tmp_path, *with_trials({"a": "no yes no yes", "b": "no no no no", "c": "yes no no no"}, "{count: 4}"))
    run = await perform_eval(tmp_path)
    assert sorted(calls(tmp_path)) == ["a 0", "a 1", "b 0", "b 1", "b 2", "b 3", "c 0"]
    assert run.statuses() == {"a": "passed", "b": "failed", "c": "passed"}
    assert states(run) == {
        "a@t": "completed",
        "a@t#1": "completed",
        "a@t#2": "passed_before",
        "a@t#3": "passed_before",
        **{f"b@t{number}": "completed" for number in ("", "#1", "#2", "#3")},
        "c@t": "completed",
        **{f"c@t#{number}": "passed_before" for number in (1, 2, 3)},
    }
    one = {
        "strategy": "pass_at_k",
        "passed_attempts": 1,
        "total_attempts": 2,
        "planned_attempts": 4,
        "stops_early": True,
    }
    assert run.record("a")["aggregation"] == one
    assert [each["attempt"] for each in run.record("a")["trials"]] == [0, 1]
    assert len(run.record("c")["trials"]) == 1
    # What was seen says when the first one passed, and is no sample: c passed at the first, two of three within four.
    trials = run.summary["trials"]
    assert {k: round(value, 3) for k, value in trials["pass_at_k"].items()} == {
        "1": 0.333,
        "2": 0.667,
        "3": 0.667,
        "4": 0.667,
    }
    assert trials["pass_power_k"] == {"1": pytest.approx(1 / 3), "2": None, "3": None, "4": None}
    assert run.summary["tests"] == {**run.summary["tests"], "in": 3, "passed": 2, "failed": 1, "invalid": 0}
    assert run.result.ledger["discarded"] == 5


@pytest.mark.parametrize(
    ("trials", "given", "made"),
    [
        ("{count: 3, strategy: mean}", {}, 3),
        ("{count: 3, strategy: confidence_interval}", {}, 3),
        ("{count: 3, stop_early: false}", {}, 3),
        ("{count: 2}", {"trials": 3}, 3),
        ("{count: 3}", {}, 1),
    ],
)
async def test_which_trials_are_all_made(tmp_path: Path, trials: str, given: dict[str, Any], made: int) -> None:
    write(tmp_path, *with_trials({"a": "yes no yes"}, trials))
    run = await perform_eval(tmp_path, **given)
    assert len(calls(tmp_path)) == made
    if made == 3:
        assert "stops_early" not in run.record("a")["aggregation"]
        assert run.summary["trials"]["pass_at_k"]["1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("strategy", ["pass_at_k", "mean", "confidence_interval"])
async def test_no_trial_begins_once_those_of_its_test_have_cost_the_limit(tmp_path: Path, strategy: str) -> None:
    limited = f"{{count: 4, strategy: {strategy}, cost_limit_usd: 0.7}}"
    write(tmp_path, *with_trials({"a": "no no yes yes", "b": "no no no no"}, limited))
    run = await perform_eval(tmp_path)
    assert sorted(calls(tmp_path)) == ["a 0", "a 1", "b 0", "b 1"]
    assert [each["cost_limited"] for each in run.records()] == [True, True]
    assert run.statuses() == {"a": "failed", "b": "failed"}
    assert {reason for reason in states(run).values() if reason != "completed"} == {"cost_limit"}
    assert run.code == 1


async def test_tests_are_tried_side_by_side_though_their_trials_are_not(tmp_path: Path) -> None:
    ids = [f"t{number}" for number in range(6)]
    head = [f"targets: [{function('counted', workers=3)}]", "assert: [{type: contains, value: never}]"]
    write(tmp_path, *head, "execution: {trials: {count: 4}}", *cases(*ids))
    run = await perform_eval(tmp_path)
    assert run.summary["tests"]["failed"] == 6
    assert len(calls(tmp_path)) == 24
    assert max(int(line.split()[1]) for line in calls(tmp_path)) == 3


async def test_trials_go_on_where_they_were_and_see_the_limit_of_today(tmp_path: Path) -> None:
    half = "assert: [{type: contains, value: 'yes'}, {type: contains, value: 'surely'}]"
    lines = with_trials({"a": "no yes no", "b": "yes yes yes"}, "{count: 3}")
    write(tmp_path, *[half if line.startswith("assert") else line for line in lines])
    first = await perform_eval(tmp_path, max_cost=0.3, workers=1)
    assert (len(calls(tmp_path)), first.code) == (1, 3)
    second = await perform_eval(tmp_path, resume=True, max_cost=None, threshold=0.5)
    assert calls(tmp_path)[0] == "a 0"
    assert sorted(calls(tmp_path)) == ["a 0", "a 1", "b 0"]
    assert second.statuses() == {"a": "passed", "b": "passed"}
    # With a higher limit, none has passed, so that the others are needed after all.
    third = await perform_eval(tmp_path, resume=True, threshold=0.9)
    assert sorted(calls(tmp_path)) == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]
    assert third.statuses() == {"a": "failed", "b": "failed"}


async def test_trials_that_were_left_out_are_left_out_of_a_regrading_too(tmp_path: Path) -> None:
    write(tmp_path, *with_trials({"a": "no yes no"}, "{count: 3}"))
    await perform_eval(tmp_path)
    (tmp_path / "suite.yaml").write_text((tmp_path / "suite.yaml").read_text().replace("'yes'", "'never'"))
    again = await perform_eval(tmp_path, "again", regrade="run")
    assert again.statuses() == {"a": "failed"}
    assert again.record("a")["aggregation"]["total_attempts"] == 2
    assert again.record("a")["aggregation"]["stops_early"] is True
    assert len(calls(tmp_path)) == 2


@pytest.mark.parametrize("often", [1, 2])
async def test_a_stop_ends_trials_that_wait_too(tmp_path: Path, often: int) -> None:
    own = "import asyncio\nasync def answer(asked):\n    await asyncio.sleep(0.1)\n    return 'no'\n"
    target = function("answer", function="slow.py:answer", workers=2)
    write(tmp_path, f"targets: [{target}]", f"assert: {YES}", "execution: {trials: {count: 5}}", *cases("a", "b", "c"))
    (tmp_path / "slow.py").write_text(own)
    given = {"eval_files": [str(tmp_path / "suite.yaml")], "data_dir": str(tmp_path / "data"), "run_name": "run"}
    session = await open_eval(EvalSpec.make(given), resume=False, notice=print, environ={})
    controls = Controls()
    performing = asyncio.create_task(execute_run(session, controls=controls))
    await asyncio.sleep(0.05)
    for _ in range(often):
        controls.stop()
    result = await asyncio.wait_for(performing, 20)
    assert result.interrupted
    assert result.ledger["discarded"] == 0
    assert result.ledger["pending"] >= 1
    rest = await perform_eval(tmp_path, resume=True)
    assert rest.result.ledger["completed"] == 15
    assert rest.statuses() == dict.fromkeys("abc", "failed")


async def test_trials_are_what_the_journal_says(tmp_path: Path) -> None:
    write(tmp_path, *with_trials({"a": "no yes no"}, "{count: 3}"))
    run = await perform_eval(tmp_path)
    with closing(JournalReader(run.folder)) as reader:
        result = await check_run(reader, EvalsWorkload(reader.meta("spec"), run.folder))
    assert (result.checked, result.skipped, result.mismatches) == (2, 1, [])


async def test_a_trial_that_broke_is_not_made_again_if_another_has_passed(tmp_path: Path) -> None:
    own = "def priced(asked):\n    open('LOG', 'a').write('x')\n    if not asked['trial']:\n        raise ValueError\n    return 'yes'\n"
    write(tmp_path, *with_trials({"a": ""}, "{count: 3}"))
    (tmp_path / "own.py").write_text(own.replace("LOG", str(tmp_path / "asked.log")))
    run = await perform_eval(tmp_path)
    assert states(run) == {"a@t": "failed", "a@t#1": "completed", "a@t#2": "passed_before"}
    again = await perform_eval(tmp_path, resume=True, retry_errors=True)
    assert states(again) == {"a@t": "passed_before", "a@t#1": "completed", "a@t#2": "passed_before"}
    assert (tmp_path / "asked.log").read_text() == "xx"
    assert again.statuses() == {"a": "passed"}


async def test_a_command_for_all_tests_makes_all_trials(tmp_path: Path) -> None:
    (tmp_path / "bulk.py").write_text(
        "import json, os, sys\nwith open(sys.argv[1], 'w') as out:\n"
        "    for each in open(os.environ['MANYHANDS_TEST_IDS_FILE']).read().split():\n"
        "        out.write(json.dumps({'id': each, 'text': 'yes'}) + '\\n')\n"
    )
    bulk = {
        "name": "t",
        "provider": "cli",
        "command": f"{sys.executable} bulk.py {{OUTPUT_FILE}}",
        "provider_batching": True,
    }
    lines = with_trials({"a": ""}, "{count: 2, cost_limit_usd: 0.1}")
    write(tmp_path, f"targets: [{json.dumps(bulk)}]", *lines[1:])
    run = await perform_eval(tmp_path)
    assert states(run) == {"a@t": "completed", "a@t#1": "completed"}
    assert "stops_early" not in run.record("a")["aggregation"]


async def test_a_trial_that_breaks_is_followed_by_the_next(tmp_path: Path) -> None:
    write(tmp_path, *with_trials({"a": "no"}, "{count: 3}"))  # the second finds no answer
    run = await perform_eval(tmp_path)
    assert calls(tmp_path) == ["a 0", "a 1", "a 2"]
    assert run.statuses() == {"a": "error"}


# --- Tests at once


@pytest.mark.parametrize("given", [{}, {"workers": 8}])
async def test_a_target_never_has_more_tests_than_it_takes(tmp_path: Path, given: dict[str, Any]) -> None:
    both = [
        function("counted", name=name, config={"name": name}, workers=most) for name, most in (("one", 1), ("many", 4))
    ]
    head = [f"targets: [{', '.join(both)}]", "execution: {targets: [one, many]}", f"assert: {YES}"]
    write(tmp_path, *head, *cases(*(f"t{number}" for number in range(12))))
    run = await perform_eval(tmp_path, **given)
    assert run.code == 0
    most = {
        name: max(int(line.split()[1]) for line in calls(tmp_path) if line.startswith(name)) for name in ("one", "many")
    }
    assert most["one"] == 1
    assert 1 < most["many"] <= 4


async def test_a_target_of_several_files_is_one_target(tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text(f"targets: [{function('counted', workers=1)}]\n")
    for name in ("suite", "other"):
        write(tmp_path, f"assert: {YES}", *cases("a", "b", "c"), name=name)
    run = await perform_eval(tmp_path, eval_files=[str(tmp_path / "suite.yaml"), str(tmp_path / "other.yaml")])
    assert run.code == 0
    assert [line.split()[1] for line in calls(tmp_path)] == ["1"] * 6


@pytest.mark.parametrize(("execution", "given", "most"), [("workers: 2", {}, 2), ("workers: 9", {"workers": 3}, 3)])
async def test_files_and_the_run_bound_tests_too(
    tmp_path: Path, execution: str, given: dict[str, Any], most: int
) -> None:
    head = [f"targets: [{function('counted')}]", f"execution: {{{execution}}}", f"assert: {YES}"]
    write(tmp_path, *head, *cases(*(f"t{number}" for number in range(10))))
    await perform_eval(tmp_path, **given)
    assert max(int(line.split()[2]) for line in calls(tmp_path)) == most


async def test_slots_are_enough_for_all_places(tmp_path: Path) -> None:
    targets = [
        "{name: a, provider: mock, workers: 2}",
        "{name: b, provider: mock}",
        "{name: c, provider: cli, command: 'echo'}",
    ]
    write(
        tmp_path,
        f"targets: [{', '.join(targets)}]",
        "execution: {targets: [a, b, c], trials: {count: 2}}",
        f"assert: {YES}",
        *cases("t"),
    )
    run = await perform_eval(tmp_path)
    assert slots(prepared(run)) == (2 + 16 + 3) * 2
    assert slots(prepared(await perform_eval(tmp_path, "w", workers=4))) == (2 + 4 + 4) * 2
    assert slots(prepared(await perform_eval(tmp_path, "all", trials=3))) == 2 + 16 + 3


def prepared(run: EvalRun) -> PreparedEval:
    with closing(JournalReader(run.folder)) as reader:
        return PreparedEval.from_json(reader.meta("spec"), run.folder.parent)


# --- What is tried again


async def test_only_what_took_too_long_is_asked_again(tmp_path: Path) -> None:
    slow = function("slow", name="slow", timeout_seconds=0.3)
    write(tmp_path, f"targets: [{slow}, {function('broken', name='broken')}]", f"assert: {YES}", *cases("b"))
    late = await perform_eval(tmp_path, target="slow")
    assert calls(tmp_path) == ["b"] * 3
    assert (late.record("b")["cause"], late.record("b")["attempts"]) == ("timeout", 3)
    await perform_eval(tmp_path, "fewer", target="slow", max_retries=1)
    assert calls(tmp_path) == ["b"] * 5
    await perform_eval(tmp_path, "once", target="slow", max_attempts=1)
    assert calls(tmp_path) == ["b"] * 6
    raised = await perform_eval(tmp_path, "raised", target="broken")
    assert calls(tmp_path) == ["b"] * 7
    assert (raised.record("b")["cause"], "attempts" in raised.record("b")) == ("worker_error", False)


async def test_a_time_limit_for_answers_and_one_for_the_whole_test(tmp_path: Path) -> None:
    write(tmp_path, f"targets: [{function('slow')}]", f"assert: {YES}", *cases("a"))
    answer = await perform_eval(tmp_path, agent_timeout=0.3, max_retries=0)
    assert "no answer within 0.3 s (--agent_timeout)" in answer.record("a")["error"]
    whole = await perform_eval(tmp_path, "whole", item_timeout=0.5)
    assert "took longer than 0.5 s (--item_timeout)" in whole.record("a")["error"]
    assert (whole.record("a")["status"], whole.record("a")["cause"]) == ("error", "timeout")
    assert calls(tmp_path) == ["a", "a"]  # its time is over, so that it is not tried again


async def test_a_grader_that_breaks_runs_once(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text("open('judged.log', 'a').write('x')\nraise SystemExit(3)\n")
    write(tmp_path, MOCK, "assert: [{type: code_judge, script: [python3, judge.py]}]", *cases("a"))
    run = await perform_eval(tmp_path)
    assert (tmp_path / "judged.log").read_text() == "x"
    assert run.statuses() == {"a": "grader_error"}


async def test_a_grading_that_takes_too_long_is_no_error_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "grade.py").write_text("import asyncio\nasync def grade(test):\n    await asyncio.sleep(60)\n")
    grader = "{type: python, function: 'grade.py:grade'}"
    write(tmp_path, MOCK, f"assert: [{grader}, {{type: contains, value: x}}]", *cases("a"))
    run = await perform_eval(tmp_path, item_timeout=1)
    record = run.record("a")
    assert (record["status"], record["cause"], record["score"]) == ("grader_error", "timeout", None)
    assert record["answer"] == "half"
    shorter = await perform_eval(tmp_path, "shorter", agent_timeout=0.5)
    assert shorter.statuses() == {"a": "grader_error"}
    assert "0.5" in shorter.record("a")["error"]


@pytest.mark.parametrize(
    ("cause", "given", "often"),
    [
        (Cause.TIMEOUT, {}, 3),
        (Cause.TIMEOUT, {"max_retries": 5}, 6),
        (Cause.TIMEOUT, {"max_attempts": 2}, 2),
        (Cause.WORKER_ERROR, {"max_retries": 5}, 1),
        (Cause.INVALID_OUTPUT, {}, 1),
        (Cause.TARGET_ERROR, {"max_attempts": 9}, 1),
        (Cause.GRADER_ERROR, {"max_attempts": 9}, 1),
        (Cause.RATE_LIMIT, {}, None),
        (Cause.MODEL_ERROR, {"max_retries": 0}, 1),
        (Cause.SANDBOX_LOST, {"max_attempts": 4}, 4),
        (Cause.AUTHENTICATION, {"max_retries": 4}, None),
    ],
)
def test_how_often_each_failure_is_tried(cause: Cause, given: dict[str, Any], often: int | None) -> None:
    assert max_attempts(EvalSpec.make({"eval_files": ["e"], **given}), cause) == often


def test_settings_that_contradict_each_other() -> None:
    for given, said in (
        ({"max_retries": 1, "max_attempts": 2}, "not both"),
        ({"dry_run_delay": 5}, "goes with --dry_run"),
        ({"dry_run": True, "dry_run_delay_min": 5, "dry_run_delay_max": 4}, "must not be more"),
    ):
        with pytest.raises(UserError, match=said):
            EvalSpec.make({"eval_files": ["e"], **given}).resolved()
    assert EvalSpec.make({"eval_files": ["e"]}).cache is None


async def test_items_that_were_left_out_end_as_discarded(tmp_path: Path) -> None:
    write(tmp_path, *with_trials({"a": "yes no"}, "{count: 2}"))
    run = await perform_eval(tmp_path)
    (_, left) = run.items()
    assert (left.state, left.message) == (ItemState.DISCARDED, "not needed: another trial of the test has passed")
