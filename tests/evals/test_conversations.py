"""Tests of several turns: what targets are told, who grades what, how scores become one, and that no answered turn is asked again."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.engine.check import check_run
from manyhands.engine.journal.reader import JournalReader
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedServer, chat_response
from manyhands.workloads.evals.grading.conversation import aggregated, transcript, windowed
from manyhands.workloads.evals.items import TestItem as Item
from manyhands.workloads.evals.targets.recorded import RecordedTarget
from manyhands.workloads.evals.workload import EvalsWorkload
from tests.support.commands import Command, run
from tests.support.eval_runs import EvalRun, perform_eval

OWN = """\
import json, os, signal, time
from pathlib import Path
HERE = Path(__file__).parent

def log(text):
    with (HERE / "calls.log").open("a") as file:
        file.write(text + "\\n")

def last(asked):
    return asked["input"][-1]["content"]

def echo(asked):
    log(asked["id"])
    said = last(asked)
    if said == "break":
        raise ValueError("no luck")
    if said == "cheap":
        return {"text": "yes", "cost_usd": 0.1}
    if said == "slow" and not (HERE / "tried").exists():
        (HERE / "tried").touch()
        time.sleep(1)
    if said == "kill" and not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"text": f"you said {said}", "cost_usd": 0.5, "token_usage": {"input": 2, "output": 3}}

def told(asked):
    return json.dumps({"id": asked["id"], "input": asked["input"], "prompt": asked["prompt"]})

def files(asked):
    folder = Path(asked["workspace"])
    before = sorted(path.name for path in folder.iterdir())
    (folder / last(asked)).write_text("x")
    return " ".join(before)
"""
SEEN = """\
import json, sys
from pathlib import Path
seen = json.load(sys.stdin)
with (Path(__file__).parent / "seen.log").open("a") as file:
    file.write(json.dumps(seen) + "\\n")
print(json.dumps({"score": float(sys.argv[1])}))
"""


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "contains", "value": text, **more}


def scores(value: float) -> dict[str, Any]:
    """A grader that gives this score, and writes down what it sees."""
    return {"type": "code_judge", "name": f"gives {value}", "script": [sys.executable, "seen.py", str(value)]}


def turn(said: Any, *graders: Any, **more: Any) -> dict[str, Any]:
    return {"input": said, **({"assert": list(graders)} if graders else {}), **more}


def conversation(*turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "talk", "mode": "conversation", "turns": list(turns), **more}


def function(called: str = "echo", **more: Any) -> str:
    return json.dumps({"name": "t", "provider": "python", "function": f"own.py:{called}", **more})


def write(folder: Path, *tests: dict[str, Any], target: str = "", head: str = "") -> None:
    (folder / "own.py").write_text(OWN)
    (folder / "seen.py").write_text(SEEN)
    lines = [f"targets: [{target or function()}]", head, "tests:", *(f"  - {json.dumps(test)}" for test in tests)]
    (folder / "suite.yaml").write_text("\n".join(lines) + "\n")


def calls(folder: Path) -> list[str]:
    log = folder / "calls.log"
    return log.read_text().splitlines() if log.exists() else []


def seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "seen.log").read_text().splitlines()]


def answer(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage, "model": "m"}


def named_scores(run: EvalRun) -> dict[str, tuple[float | None, str]]:
    return {score["name"]: (score["score"], score["verdict"]) for score in run.record("talk")["scores"]}


# --- What targets are told


async def test_a_model_gets_the_conversation_so_far_as_messages(tmp_path: Path) -> None:
    async with ScriptedServer([answer("30"), answer("60"), answer("15 % of 200")]) as server:
        model = json.dumps({"name": "m", "provider": "model", "model": "m", "base_url": server.base_url})
        turns = [
            turn("What is 15 % of 200?", says("30")),
            turn("Double that.", says("60")),
            turn("Of what?", says("200")),
        ]
        write(tmp_path, conversation(*turns, input=[{"role": "system", "content": "Be brief."}]), target=model)
        run = await perform_eval(tmp_path)
    sent = [request.body["messages"] for request in server.requests]
    system, first = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 15 % of 200?"}
    told = [system, first, {"role": "assistant", "content": "30"}, {"role": "user", "content": "Double that."}]
    assert sent[0] == [system, first]
    assert sent[1] == told
    assert sent[2] == [*told, {"role": "assistant", "content": "60"}, {"role": "user", "content": "Of what?"}]
    record = run.record("talk")
    assert (record["status"], record["score"], record["answer"]) == ("passed", 1, "15 % of 200")
    assert [(each["turn"], each["answer"], each["score"]) for each in record["turns"]] == [
        (1, "30", 1),
        (2, "60", 1),
        (3, "15 % of 200", 1),
    ]
    assert [message["role"] for message in record["output"]] == ["user", "assistant"] * 3
    assert (record["token_usage"]["input"], record["token_usage"]["output"]) == (3, 3)


async def test_a_command_gets_it_as_one_text(tmp_path: Path) -> None:
    command = '{"name": "c", "provider": "cli", "command": "cat {PROMPT_FILE}; echo; echo of {EVAL_ID}"}'
    write(tmp_path, conversation(turn("hello", says("hello")), turn("again", says("x"))), target=command)
    first, second = (await perform_eval(tmp_path)).record("talk")["turns"]
    assert first["answer"] == "hello\nof talk/turn-1"
    assert second["answer"] == f"@[User]:\nhello\n\n@[Assistant]:\n{first['answer']}\n\n@[User]:\nagain\nof talk/turn-2"


async def test_a_function_gets_messages_and_data_stays_as_it_is(tmp_path: Path) -> None:
    turns = [
        turn({"anyKey": [1]}, says("x")),
        turn([{"type": "text", "value": "parts"}], says("x")),
        turn(7, says("x")),
    ]
    write(tmp_path, conversation(*turns, input="before"), target=function("told"))
    told = [json.loads(each["answer"]) for each in (await perform_eval(tmp_path)).record("talk")["turns"]]
    assert told[0]["id"] == "talk/turn-1"
    assert told[0]["input"] == [{"role": "user", "content": "before"}, {"role": "user", "content": {"anyKey": [1]}}]
    assert [each["role"] for each in told[2]["input"]] == ["user", "user", "assistant", "user", "assistant", "user"]
    assert told[2]["input"][3]["content"] == [{"type": "text", "value": "parts"}]
    assert told[2]["input"][-1]["content"] == "7"


def test_a_window_keeps_the_systems_messages_and_the_last_two_for_each_turn() -> None:
    history = [{"role": "system", "content": "s"}]
    for number in range(3):
        history += [{"role": "user", "content": f"u{number}"}, {"role": "assistant", "content": f"a{number}"}]
    history.append({"role": "user", "content": "u3"})
    told = {size: [each["content"] for each in windowed(history, size)] for size in (None, 1, 2, 9)}
    assert told[None] == ["s", "u0", "a0", "u1", "a1", "u2", "a2", "u3"] == told[9]
    assert told[1] == ["s", "a2", "u3"]
    assert told[2] == ["s", "a1", "u2", "a2", "u3"]


async def test_the_window_holds_for_the_target_and_for_graders_of_turns(tmp_path: Path) -> None:
    turns = [turn("one"), turn("two"), turn("three", scores(1))]
    system = [{"role": "system", "content": "s"}]
    write(
        tmp_path, conversation(*turns, window_size=1, input=system, **{"assert": [scores(1)]}), target=function("told")
    )
    run = await perform_eval(tmp_path)
    told = [json.loads(each["answer"])["input"] for each in run.record("talk")["turns"]]
    assert [[message["role"] for message in each] for each in told] == [
        ["system", "user"],
        ["system", "assistant", "user"],
        ["system", "assistant", "user"],
    ]
    of_turn, of_whole = seen(tmp_path)
    assert of_turn["input"] == told[2]
    assert len(of_whole["input"]) == 7


# --- Who grades what


async def test_turns_are_graded_by_themselves_and_the_whole_by_the_tests_graders(tmp_path: Path) -> None:
    turns = [turn("one", scores(0.5), expected_output="uno"), turn("two", scores(1), says("two"))]
    write(
        tmp_path,
        conversation(*turns, criteria="kind", **{"assert": [scores(0.75)]}),
        head=f"assert: [{json.dumps(says('user: one'))}]",
    )
    run = await perform_eval(tmp_path)
    assert named_scores(run) == {"turn-1": (0.5, "fail"), "turn-2": (1, "pass"), "conversation": (0.875, "pass")}
    record = run.record("talk")
    assert record["score"] == pytest.approx((0.5 + 1 + 0.875) / 3)
    first, second, whole = seen(tmp_path)
    assert first["answer"] == "you said one"
    assert first["expected_output"] == [{"role": "assistant", "content": "uno"}]
    assert first["criteria"] == second["criteria"] == "kind"
    assert second["input"][-1] == {"role": "user", "content": "two"}
    assert second["question"] == "user: one\n\nassistant: you said one\n\nuser: two"
    assert whole["question"] == "user: one\n\nuser: two"
    assert whole["answer"] == "user: one\n\nassistant: you said one\n\nuser: two\n\nassistant: you said two"
    assert [score["name"] for score in record["scores"][1]["scores"]] == ["gives 1", "contains-two"]
    assert (record["cost_usd"], record["token_usage"]) == (1, {"input": 4, "output": 6})


async def test_costs_of_turns_add_up_to_what_a_budget_names(tmp_path: Path) -> None:
    turns = [turn("cheap", says("yes"))] * 3
    write(tmp_path, conversation(*turns, **{"assert": [{"type": "cost", "budget": 0.3}]}))
    record = (await perform_eval(tmp_path)).record("talk")
    assert (record["score"], record["cost_usd"]) == (1, 0.3)


@pytest.mark.parametrize(
    ("aggregation", "score"), [({}, 0.65), ({"aggregation": "mean"}, 0.65), ({"aggregation": "min"}, 0.2), ({"aggregation": "max"}, 1)]
)  # fmt: skip
async def test_scores_of_turns_become_one(tmp_path: Path, aggregation: dict[str, str], score: float) -> None:
    turns = [turn("one", scores(0.2)), turn("two"), turn("three", scores(0.6)), turn("four", scores(0.8))]
    write(tmp_path, conversation(*turns, **aggregation))
    record = (await perform_eval(tmp_path)).record("talk")
    assert record["score"] == pytest.approx(score)  # (0.2 + 1 + 0.6 + 0.8) / 4, as a turn without graders scores 1
    assert record["status"] == ("passed" if score >= 0.8 else "failed")


def test_aggregation_of_one_score_is_that_score() -> None:
    assert [aggregated([0.3], each) for each in ("mean", "min", "max")] == [0.3, 0.3, 0.3]
    assert transcript([{"role": "user", "content": {"a": 1}}]) == 'user: {"a":1}'


async def test_a_required_grader_holds_for_its_turn(tmp_path: Path) -> None:
    turns = [turn("one", says("one"), says("x", required=True)), turn("two", says("two"))]
    write(tmp_path, conversation(*turns))
    assert named_scores(await perform_eval(tmp_path)) == {"turn-1": (0, "fail"), "turn-2": (1, "pass")}


@pytest.mark.parametrize(("policy", "asked", "score"), [("stop", 2, 1 / 3), ("continue", 3, 2 / 3)])
async def test_a_turn_below_the_limit_stops_the_conversation_if_it_is_to(
    tmp_path: Path, policy: str, asked: int, score: float
) -> None:
    turns = [turn("one", says("one")), turn("two", says("x")), turn("three", says("three"))]
    write(tmp_path, conversation(*turns, on_turn_failure=policy))
    run = await perform_eval(tmp_path)
    assert calls(tmp_path) == [f"talk/turn-{number}" for number in range(1, asked + 1)]
    assert run.record("talk")["score"] == pytest.approx(score)
    assert named_scores(run)["turn-3"] == ((0, "skip") if policy == "stop" else (1, "pass"))
    if policy == "stop":
        last = run.record("talk")["turns"][2]
        assert last == {"turn": 3, "input": [{"role": "user", "content": "three"}], "score": 0, "verdict": "skip"}
        assert "not reached, as turn 2 is below the limit" in run.record("talk")["misses"]


async def test_the_tests_own_limit_decides_what_stops_it(tmp_path: Path) -> None:
    turns = [turn("one", scores(0.5)), turn("two", scores(0.5))]
    write(tmp_path, conversation(*turns, on_turn_failure="stop", threshold=0.5))
    run = await perform_eval(tmp_path)
    assert (run.statuses(), len(calls(tmp_path))) == ({"talk": "passed"}, 2)


# --- Judges


async def test_texts_are_rubrics_and_an_expected_output_is_judged(tmp_path: Path) -> None:
    judged = function(judge_target="judge") + ', {"name": "judge", "provider": "model", "model": "simulated"}'
    turns = [turn("one", "says one", "is short"), turn("two", expected_output="2")]
    write(tmp_path, conversation(*turns), target=judged, head="execution: {target: t}")
    run = await perform_eval(tmp_path)
    first, second = run.record("talk")["scores"]
    assert [score["type"] for score in (*first["scores"], *second["scores"])] == ["rubrics", "llm_judge"]
    assert first["simulated"]
    assert run.summary["simulated_scores"] == 1


@pytest.mark.parametrize("of_turn", [turn("one", "says one"), turn("one", expected_output="1")])
async def test_a_judge_that_a_turn_needs_must_be_there_before_anything_runs(
    tmp_path: Path, of_turn: dict[str, Any]
) -> None:
    write(tmp_path, conversation(of_turn))
    with pytest.raises(UserError, match=r"test 'talk' asks a judge, and"):
        await perform_eval(tmp_path)


async def test_a_conversation_that_nobody_grades_has_no_score(tmp_path: Path) -> None:
    write(tmp_path, conversation(turn("one"), turn("two"), criteria="kind"))
    with pytest.raises(UserError, match="test 'talk' has no graders"):
        await perform_eval(tmp_path)
    run = await perform_eval(tmp_path, allow_ungraded=True)
    assert (run.statuses(), run.record("talk")["score"]) == ({"talk": "ungraded"}, None)
    assert len(run.record("talk")["turns"]) == 2
    write(tmp_path, conversation(turn("one")))
    with pytest.raises(UserError, match="criteria, expected_output or graders are required"):
        await perform_eval(tmp_path, "none")


async def test_criteria_alone_are_judged_of_the_whole(tmp_path: Path) -> None:
    judged = function(judge_target="judge") + ', {"name": "judge", "provider": "model", "model": "simulated"}'
    write(tmp_path, conversation(turn("one"), criteria="kind"), target=judged, head="execution: {target: t}")
    assert list(named_scores(await perform_eval(tmp_path))) == ["turn-1", "conversation"]


# --- Errors


async def test_an_error_of_the_target_leaves_no_score_and_ends_the_conversation(tmp_path: Path) -> None:
    write(tmp_path, conversation(turn("one", scores(1)), turn("break", says("x")), turn("three", says("x"))))
    run = await perform_eval(tmp_path)
    record = run.record("talk")
    assert (record["status"], record["score"]) == ("error", None)
    assert record["error"].startswith("turn 2: ValueError: no luck")
    assert calls(tmp_path) == ["talk/turn-1", "talk/turn-2"]
    assert [each.get("answer") for each in record["turns"]] == ["you said one", None]
    assert record["turns"][1]["error"].startswith("ValueError: no luck")
    assert named_scores(run) == {"turn-1": (1, "pass")}
    assert run.code == 3


async def test_a_grader_that_breaks_leaves_none_either(tmp_path: Path) -> None:
    broken = {"type": "code_judge", "name": "judge", "script": [sys.executable, "-c", "import sys; sys.exit(1)"]}
    write(tmp_path, conversation(turn("one", broken), turn("two", says("x"))))
    record = (await perform_eval(tmp_path)).record("talk")
    assert (record["status"], record["score"]) == ("grader_error", None)
    assert record["error"].startswith("turn-1: judge: ")
    assert calls(tmp_path) == ["talk/turn-1"]


# --- What is refused


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"id": "a", "input": "x", "criteria": "c", "turns": [turn("x")]}, "turns: goes with mode: conversation, which is not given"),
        ({"id": "a", "input": "x", "criteria": "c", "window_size": 2}, "window_size: goes with mode: conversation"),
        ({"id": "a", "mode": "conversation", "criteria": "c"}, "turns: is required for a conversation"),
        (conversation(criteria="c"), "turns: must be a list of turns, not []"),
        (conversation(turn(" ", says("x"))), "turns[0].input: must not be empty"),
        (conversation({"assert": [says("x")]}), "turns[0]: input is required"),
        (conversation(turn("x", {"type": "contain", "value": "x"})), "turns[0].assert[0].type: "),
        (conversation(turn("x", says("x")), expected_output="y"), "expected_output: each turn of a conversation says for itself"),
        (conversation(turn("x", says("x")), aggregation="median"), "aggregation: must be 'mean', 'min' or 'max', not 'median'"),
        (conversation(turn("x", says("x")), window_size=0), "window_size: must be "),
        (conversation(turn("x", says("x")), mode="chat"), "mode: must be 'conversation', not 'chat'"),
        (conversation(turn([{"type": "file", "value": "none.txt"}], says("x"))), "turns[0].input: there is no file none.txt"),
    ],
)  # fmt: skip
async def test_what_is_no_conversation_is_refused_in_one_line(tmp_path: Path, test: dict[str, Any], said: str) -> None:
    write(tmp_path, test)
    with pytest.raises(UserError) as error:
        await perform_eval(tmp_path)
    assert f"line 4: tests[0].{said}" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"provider": "cli", "command": "true {OUTPUT_FILE}", "provider_batching": True}, "answers all tests in one invocation"),
        ({"provider": "replay", "path": "own.py"}, "has one answer to each test"),
    ],
)  # fmt: skip
async def test_targets_that_can_not_be_asked_turn_by_turn_are_refused(
    tmp_path: Path, target: dict[str, Any], said: str
) -> None:
    write(tmp_path, conversation(turn("x", says("x"))), target=json.dumps({"name": "t", **target}))
    with pytest.raises(UserError) as error:
        await perform_eval(tmp_path)
    assert f"line 4: tests[0].mode: target t {said}" in str(error.value)


async def test_a_dry_run_has_the_conversation_with_a_stand_in(tmp_path: Path) -> None:
    write(tmp_path, conversation(turn("x", says("dry-run"))))
    run = await perform_eval(tmp_path, dry_run=True)
    assert (run.statuses(), calls(tmp_path)) == ({"talk": "passed"}, [])


# --- Paid once


def test_a_killed_conversation_asks_no_answered_turn_again(tmp_path: Path) -> None:
    write(tmp_path, conversation(turn("one", scores(1)), turn("kill", scores(1)), turn("three", says("three"))))
    words = ("eval", "suite.yaml", "--run_name=r", "--resume", "--quiet")
    assert run(*words, folder=tmp_path).code == -9
    assert calls(tmp_path) == ["talk/turn-1", "talk/turn-2"]
    second = run(*words, folder=tmp_path)
    assert second.code == 0, second.err
    assert calls(tmp_path) == ["talk/turn-1", "talk/turn-2", "talk/turn-2", "talk/turn-3"]
    (record,) = (json.loads(line) for line in (tmp_path / "data/r/results.jsonl").read_text().splitlines())
    assert [each["answer"] for each in record["turns"]] == ["you said one", "you said kill", "you said three"]
    assert record["cost_usd"] == 1.5


async def test_a_turn_that_took_too_long_is_asked_again_alone(tmp_path: Path) -> None:
    write(
        tmp_path,
        conversation(turn("one", says("one")), turn("slow", says("slow"))),
        target=function(timeout_seconds=0.5),
    )
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"talk": "passed"}
    assert calls(tmp_path) == ["talk/turn-1", "talk/turn-2", "talk/turn-2"]
    with closing(JournalReader(run.folder)) as reader:
        checked = await check_run(reader, EvalsWorkload(reader.meta("spec"), run.folder))
    assert (checked.checked, checked.mismatches) == (1, [])


async def test_a_regrading_asks_nobody(tmp_path: Path) -> None:
    turns = [turn("one", says("x")), turn("two", says("two"))]
    write(tmp_path, conversation(*turns, on_turn_failure="stop"))
    first = await perform_eval(tmp_path)
    assert len(calls(tmp_path)) == 1
    write(tmp_path, conversation(turn("one", says("one"), scores(1)), **{"assert": [says("user: one")]}))
    regraded = await perform_eval(tmp_path, "again", regrade=str(first.folder))
    assert (regraded.statuses(), len(calls(tmp_path))) == ({"talk": "passed"}, 1)
    write(tmp_path, conversation(turn("one", says("one")), turn("two", says("two"))))
    more = await perform_eval(tmp_path, "more", regrade=str(first.folder))
    assert more.record("talk")["error"] == "turn 2: run run has no answer to this turn"


async def test_what_a_regrading_says_of_one_answer_is_not_changed_by_another(tmp_path: Path) -> None:
    write(tmp_path, conversation(turn("one", says("one"))), target=json.dumps({"name": "own", "provider": "mock"}))
    run = await perform_eval(tmp_path)
    with closing(JournalReader(run.folder)) as reader:
        row = next(reader.items())
        known = Item.from_json(row.payload)
        shared = RecordedTarget(reader, known.dataset, known.target)
        simulated, unknown = shared.for_item(), shared.for_item()
        simulated.turn(known, 1)
        unknown.turn(replace(known, sample=7), 1)
        assert (simulated.simulated, unknown.simulated) == (True, False)


async def test_a_regrading_says_of_which_turns_the_input_has_changed(tmp_path: Path) -> None:
    turns = [turn("one", says("one")), turn("two", says("two"))]
    write(tmp_path, conversation(*turns))
    first = str((await perform_eval(tmp_path)).folder)
    assert "notices" not in (await perform_eval(tmp_path, "same", regrade=first)).record("talk")
    write(tmp_path, conversation(turns[0], turn("deux", says("two"))))
    changed = (await perform_eval(tmp_path, "changed", regrade=first)).record("talk")
    assert changed["notices"] == ["the input of turn 2 has changed since run run, whose answer this is"]
    write(tmp_path, conversation(*turns, input="Be kind."))
    changed = (await perform_eval(tmp_path, "head", regrade=first)).record("talk")
    assert changed["notices"] == ["the input has changed since run run, whose answer this is"]


async def test_answers_of_turns_come_from_the_cache(tmp_path: Path) -> None:
    write(tmp_path, conversation(turn("one", says("one")), turn("two", says("two"))))
    await perform_eval(tmp_path, cache=True)
    again = await perform_eval(tmp_path, "again", cache=True)
    assert (again.statuses(), len(calls(tmp_path))) == ({"talk": "passed"}, 2)


async def test_trials_have_a_conversation_each(tmp_path: Path) -> None:
    write(
        tmp_path, conversation(turn("one", says("one")), turn("two", says("x"))), head="execution: {trials: {count: 2}}"
    )
    record = (await perform_eval(tmp_path)).record("talk")
    assert [trial["score"] for trial in record["trials"]] == [0.5, 0.5]
    assert len(calls(tmp_path)) == 4


async def test_all_turns_share_a_workspace(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "given").touch()
    turns = [turn("first", says("given")), turn("second", says("first given"))]
    hook = {"script": "echo begun; pwd", "cwd": "."}
    space = {"template": "template", "before_each": hook}
    write(tmp_path, conversation(*turns, workspace=space), target=function("files"))
    record = (await perform_eval(tmp_path)).record("talk")
    assert record["status"] == "passed"
    assert all(name in record["file_changes"] for name in ("first", "second"))
    assert record["before_each_output"].count("begun") == 1


def tool_call(line: str) -> dict[str, Any]:
    function = {"name": "terminal", "arguments": json.dumps({"command": line})}
    return chat_response("", tool_calls=[{"id": "c1", "type": "function", "function": function}])


def agent(server: ScriptedServer, sandbox: str) -> str:
    about = {"name": "agent", "provider": "agent", "model": "scripted", "toolsets": ["terminal"]}
    return json.dumps({**about, "base_url": server.base_url, "sandbox": sandbox})


def told_last(request: RecordedRequest) -> tuple[str, str]:
    """The role of a request's last message, and what the user said last."""
    messages = request.body["messages"]
    return messages[-1]["role"], next(each["content"] for each in reversed(messages) if each["role"] == "user")


@pytest.mark.parametrize("sandbox", ["local", "bubblewrap"])
async def test_the_turns_of_an_agent_share_its_sandbox(tmp_path: Path, sandbox: str) -> None:
    def reply(request: RecordedRequest) -> Reply:
        role, said = told_last(request)
        if role == "user":
            lines = {"write": "echo first >> notes.txt; word=kept; sleep 60 &", "read": "echo $word; cat notes.txt"}
            return tool_call(lines[said])
        return chat_response(f"the tool said {request.body['messages'][-1]['content']}")

    async with ScriptedServer(reply) as server:
        turns = [
            turn("write", says("said")),
            turn(
                "read",
                says("kept"),
                says("first"),
                {"type": "tool_trajectory", "mode": "exact", "expected": [{"tool": "terminal"}]},
            ),
        ]
        write(tmp_path, conversation(*turns), target=agent(server, sandbox))
        run = await perform_eval(tmp_path)
        assert len(server.requests) == 4
    assert run.statuses() == {"talk": "passed"}


STILL = """\
import json, pathlib, sys, time
clock = pathlib.Path(json.load(sys.stdin)["workspace_path"], "clock")
before = clock.stat().st_mtime_ns
time.sleep(0.3)
print(json.dumps({"score": float(clock.stat().st_mtime_ns == before)}))
"""


@pytest.mark.parametrize("sandbox", ["local", "bubblewrap"])
async def test_what_runs_on_stands_still_for_graders_and_then_goes_on(tmp_path: Path, sandbox: str) -> None:
    lines = {
        "begin": "word=kept; (while :; do date >clock; sleep 0.01; done) & sleep 0.2",
        "look": 'a=$(stat -c %y clock); sleep 0.3; [ "$a" != "$(stat -c %y clock)" ] && echo $word and running',
    }

    def reply(request: RecordedRequest) -> Reply:
        role, said = told_last(request)
        return tool_call(lines[said]) if role == "user" else chat_response(request.body["messages"][-1]["content"])

    (tmp_path / "still.py").write_text(STILL)
    still = {"type": "code_judge", "name": "still", "script": [sys.executable, "still.py"]}
    async with ScriptedServer(reply) as server:
        turns = [turn("begin", still), turn("look", says("kept and running"), still)]
        write(
            tmp_path,
            conversation(*turns, workspace={"before_each": {"script": "true", "cwd": "."}}),
            target=agent(server, sandbox),
        )
        run = await perform_eval(tmp_path)
    assert run.statuses() == {"talk": "passed"}, run.record("talk")


async def test_an_agent_that_was_killed_goes_on_in_its_turns_sandbox(tmp_path: Path) -> None:
    command: Command | None = None

    def reply(request: RecordedRequest) -> Reply:
        role, said = told_last(request)
        if role == "user":
            return tool_call(f"echo {said} >> notes.txt; cat notes.txt")
        if said == "second" and command is not None:
            command.send(signal.SIGKILL)
        return chat_response(f"the tool said {request.body['messages'][-1]['content']}")

    async with ScriptedServer(reply) as server:
        turns = [turn("first", says("first")), turn("second", says("second")), turn("third", says("third"))]
        write(tmp_path, conversation(*turns), target=agent(server, "local"))
        with Command("eval", "suite.yaml", "--run_name=run", "--quiet", folder=tmp_path) as command:
            assert (await asyncio.to_thread(command.wait)).code == -9
        command = None
        run = await perform_eval(tmp_path, resume=True)
        asked = [told_last(request) for request in server.requests]
    assert run.statuses() == {"talk": "passed"}
    last = run.record("talk")["turns"][2]["answer"]
    assert [last.count(each) for each in ("first", "second", "third")] == [1, 1, 1]
    assert asked.count(("user", "first")) == asked.count(("tool", "first")) == asked.count(("user", "second")) == 1
    assert asked.count(("tool", "second")) == 2  # in flight when it was killed


async def test_an_agent_that_was_killed_in_the_first_step_of_a_turn_loses_nothing(tmp_path: Path) -> None:
    """The folder is then as the earlier turn left it, whatever the cut-off command had done to it."""
    kill = f"test -e {tmp_path}/killed || {{ touch {tmp_path}/killed; kill -9 $(cat {tmp_path}/pid); sleep 5; }}"
    lines_of = {
        "first": ["echo first >> notes.txt", "true"],
        "second": [f"echo second >> notes.txt; {kill}; cat notes.txt"],
    }

    def reply(request: RecordedRequest) -> Reply:
        role, said = told_last(request)
        ready = len(lines_of[said]) - len([each for each in request.body["messages"] if each["role"] == "tool"])
        if role == "user" or ready:
            return tool_call(lines_of[said][-ready])
        return chat_response(f"the tool said {request.body['messages'][-1]['content']}")

    async with ScriptedServer(reply) as server:
        turns = [turn("first", says("said")), turn("second", says("first"), says("second"))]
        write(tmp_path, conversation(*turns), target=agent(server, "local"))
        with Command("eval", "suite.yaml", "--run_name=run", "--quiet", folder=tmp_path) as command:
            (tmp_path / "pid").write_text(str(command.process.pid))
            assert (await asyncio.to_thread(command.wait)).code == -9
        run = await perform_eval(tmp_path, resume=True)
        asked = [told_last(request) for request in server.requests]
    assert run.statuses() == {"talk": "passed"}
    answer = run.record("talk")["turns"][1]["answer"]
    assert [answer.count(each) for each in ("first", "second")] == [1, 1]
    assert asked.count(("user", "first")) == asked.count(("user", "second")) == 1
    assert asked.count(("tool", "first")) == 2


async def test_conversations_may_depend_on_tests_and_others_on_them(tmp_path: Path) -> None:
    one = {"id": "one", "input": "hi", "assert": [says("hi")]}
    write(
        tmp_path,
        conversation(turn("x", says("x")), depends_on=["one"]),
        one,
        {**one, "id": "last", "depends_on": ["talk"]},
    )
    assert set((await perform_eval(tmp_path)).statuses().values()) == {"passed"}
    assert calls(tmp_path) == ["one", "talk/turn-1", "last"]


async def test_variables_and_files_stand_in_turns(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("noted")
    turns = [
        turn("about {{ thing }}", says("{{ thing }}")),
        turn([{"type": "file", "value": "note.txt"}], says("note.txt")),
    ]
    write(tmp_path, conversation(*turns, vars={"thing": "bees"}), target=function("told"))
    run = await perform_eval(tmp_path)
    assert run.statuses() == {"talk": "passed"}
    assert f'<file: path=\\"{tmp_path}/note.txt\\">' in run.record("talk")["turns"][1]["answer"]
