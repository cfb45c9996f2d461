"""What exports get of evaluations: the answers of every kind of target as conversations, and those of judges."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.agents.task import BASE_PROMPT, TOOLS_PROMPT
from manyhands.core.outcomes import ItemState
from manyhands.export.conversations import Conversation
from manyhands.runs.folders import is_made
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedServer, chat_response
from manyhands.workloads.evals.results.recorded_output import turns_of_output
from tests.support.eval_runs import EvalRun, perform_eval
from tests.support.exported import brief, conversations, exported, exported_with_report, own_keys, summed, used

OWN = """\
import time
from pathlib import Path


def answer(test):
    calls = [
        {"tool": "find", "id": "a", "input": {"of": test["id"]}, "output": {"found": 3}},
        {"tool": "count", "input": [1, 2], "output": "2", "end_time": "2026-01-02T03:04:05Z"},
    ]
    said = [
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "assistant", "content": "There are 3.", "start_time": "2026-01-02T03:04:06Z"},
    ]
    return {"output": said, "cost_usd": 0.25}


def talk(test):
    call = {"tool": "note", "id": "n", "input": {}, "output": "noted"}
    return [{"role": "assistant", "content": f"to {test['input'][-1]['content']}", "tool_calls": [call]}]


def waits(test):
    while test["id"] == "b" and not Path(__file__).with_name("go").exists():
        time.sleep(0.02)
    return test["id"]


def broken(test):
    raise ValueError("no luck")
"""
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED: list[dict[str, Any]] = [
    SYSTEM,
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Hi."},
    {
        "role": "user",
        "content": [{"type": "file", "value": "notes.txt"}, {"type": "text", "value": "What now? [simulate: tools=1]"}],
    },
]
SIMULATED = {"provider": "model", "model": "simulated"}
AGENT = {"provider": "agent", "model": "simulated", "toolsets": ["file"], "sandbox": "local"}


async def performed(
    folder: Path, targets: dict[str, Any], tests: Sequence[dict[str, Any]], name: str = "run", **settings: Any
) -> EvalRun:
    """Tests run with all targets that do not judge."""
    names = [each for each in targets if each != "judge"]
    suite = {"name": "suite", "targets": targets, "execution": {"targets": names}, "tests": list(tests)}
    (folder / "suite.yaml").write_text(json.dumps(suite))
    (folder / "own.py").write_text(OWN)
    (folder / "notes.txt").write_text("a note")
    return await perform_eval(folder, name, **settings)


def asking(test_id: str = "t", input: Any = "Say it.", **more: Any) -> dict[str, Any]:
    """A test that every answer passes."""
    return {"id": test_id, "input": input, "criteria": "c", "assert": [{"type": "regex", "value": "."}], **more}


def of_target(found: Sequence[Conversation], target: str) -> Conversation:
    return next(each for each in found if each.agent == target)


GIVEN = [("system", "Be brief."), ("user", "Hello?"), ("assistant", "Hi.")]
SHOWN = ("user", '<file path="notes.txt">\na note\n</file>\n\nWhat now? [simulate: tools=1]')


async def test_every_kind_of_target_answers_in_a_conversation(tmp_path: Path) -> None:
    targets = {
        "plain": SIMULATED,
        "agent": AGENT,
        "mock": {"provider": "mock", "response": "A made-up answer."},
        "function": {"provider": "python", "function": "own.py:answer"},
        "tool": {"provider": "cli", "command": f"{sys.executable} -c 'print(1)' >{{OUTPUT_FILE}}"},
    }
    about: dict[str, Any] = {"metadata": {"level": 2}, "tags": ["x"], "expected_output": "yes"}
    run = await performed(tmp_path, targets, [asking(input=ASKED, **about)])
    found = conversations(run.folder)
    assert [each.agent for each in found] == list(targets)
    assert {each.label for each in found} == {"t"}
    assert len({each.prompt_key for each in found}) == 1
    assert {each.stop_reason for each in found} == {"answered"}
    assert all(each.score == 1 and each.verdict == "pass" for each in found)
    assert all([score["type"] for score in each.scores] == ["regex"] for each in found)
    test: dict[str, Any] = {
        "test_id": "t",
        "dataset": "suite",
        "criteria": "c",
        "metadata": {"level": 2},
        "tags": ["x"],
    }
    test |= {"expected_output": [{"role": "assistant", "content": "yes"}]}
    assert all(each.source == test for each in found)
    assert [each.agent for each in found if each.simulated] == ["plain", "agent", "mock"]
    asked = [*GIVEN, ("user", f'<file: path="{tmp_path / "notes.txt"}">\n\nWhat now? [simulate: tools=1]')]
    assert brief(of_target(found, "mock").turns) == [*asked, ("assistant", "A made-up answer.")]
    assert brief(of_target(found, "tool").turns) == [*asked, ("assistant", "1\n")]
    assert summed(found) == used(run.folder)
    assert exported(run.folder, "jsonl") == [each.to_json() for each in found]
    rows = exported(run.folder)
    assert [row["messages"][-1]["weight"] for row in rows] == [1] * len(targets)
    assert rows[0]["messages"][2] == {"role": "assistant", "content": "Hi.", "weight": 0}
    assert own_keys(rows) == []
    assert [len(row.get("tools", ())) for row in rows] == [0, 4, 0, 0, 0]


async def test_what_a_model_was_sent_is_what_is_exported(tmp_path: Path) -> None:
    told = {**SIMULATED, "system_prompt": "You are told.", "ephemeral_system_prompt": "Not kept."}
    targets = {"plain": SIMULATED, "told": told, "agent": {**AGENT, "seed": 5}}
    run = await performed(tmp_path, targets, [asking(input=ASKED)])
    found = conversations(run.folder)
    plain, of_told, agent = found
    assert brief(plain.turns[:-1]) == [*GIVEN, SHOWN]
    assert [turn.train for turn in plain.turns] == [False, False, False, False, True]
    assert plain.turns[2].message["_given"]
    assert plain.result == plain.turns[-1].message["content"] == run.record("t", "plain")["answer"]
    call = plain.turns[-1].call
    assert call is not None
    assert (call.step, call.model, call.usage.calls) == ("/1", "simulated", 1)
    assert plain.turns[3].at is not None
    assert plain.turns[3].at <= call.started_at <= call.finished_at == plain.turns[-1].at
    assert plain.tools == ()
    assert brief(of_told.turns[:1]) == [("system", "You are told.\n\nBe brief.")]
    assert of_told.ephemeral == "Not kept."
    assert brief(agent.turns[:4]) == [("system", f"{BASE_PROMPT}\n\n{TOOLS_PROMPT}\n\nBe brief."), *GIVEN[1:], SHOWN]
    assert [tool["function"]["name"] for tool in agent.tools] == ["patch", "read_file", "search_files", "write_file"]
    assert not agent.tools_changed
    assert agent.seed is not None
    assert {turn.role for turn in agent.turns[4:]} == {"assistant", "tool"}


async def test_the_messages_of_a_record_are_its_conversation(tmp_path: Path) -> None:
    run = await performed(tmp_path, {"it": {"provider": "python", "function": "own.py:answer"}}, [asking()])
    (found,) = conversations(run.folder)
    assert brief(found.turns) == [
        ("user", "Say it."),
        ("assistant", 'I look. find({"of": "t"}) count({"input": [1, 2]})'),
        ("tool", '{"found":3}'),
        ("tool", "2"),
        ("assistant", "There are 3."),
    ]
    ids = [call["id"] for call in found.turns[1].message["tool_calls"]]
    assert [turn.message.get("tool_call_id") for turn in found.turns[2:4]] == ids == ["a", "call_2"]
    assert [turn.at for turn in found.turns[3:]] == [1767323045.0, 1767323046.0]
    assert found.usage.cost == 0.25
    assert summed([found]) == used(run.folder)


async def test_samples_share_their_prompt_and_are_numbered(tmp_path: Path) -> None:
    tests = [asking("a"), asking("b"), asking("c", "Another.")]
    run = await performed(tmp_path, {"plain": SIMULATED, "other": SIMULATED}, tests, trials=3)
    found = conversations(run.folder)
    assert [each.sample for each in found[:3]] == [0, 1, 2]
    keys = {name: {each.prompt_key for each in found if each.label == name} for name in "abc"}
    assert {len(each) for each in keys.values()} == {1}
    assert keys["a"] == keys["b"] != keys["c"]  # the same words are the same prompt, whatever the test is called
    assert summed(found) == used(run.folder)


async def test_answers_of_targets_to_one_test_make_pairs(tmp_path: Path) -> None:
    targets = {name: {"provider": "mock", "response": f"That is {name}."} for name in ("good", "bad")}
    yes = {"type": "contains", "value": "good"}
    run = await performed(tmp_path, targets, [asking(input=ASKED) | {"assert": [yes]}])
    (row,) = exported(run.folder, "openai-dpo")
    assert [message["content"] for message in row["input"]["messages"]][:3] == ["Be brief.", "Hello?", "Hi."]
    outputs = [row[name][-1]["content"] for name in ("preferred_output", "non_preferred_output")]
    assert outputs == ["That is good.", "That is bad."]


async def test_turns_of_a_test_are_one_conversation(tmp_path: Path) -> None:
    turns: list[dict[str, Any]] = [
        {"input": "First?"},
        {"input": [{"role": "assistant", "content": "Wait."}, {"role": "user", "content": "Second?"}]},
    ]
    test = asking(input=[SYSTEM], mode="conversation", turns=turns)
    targets = {"plain": SIMULATED, "agent": AGENT, "function": {"provider": "python", "function": "own.py:talk"}}
    run = await performed(tmp_path, targets, [test])
    found = conversations(run.folder)
    plain = of_target(found, "plain")
    answers = [turn["answer"] for turn in run.record("t", "plain")["turns"]]
    assert brief(plain.turns) == [
        ("system", "Be brief."),
        ("user", "First?"),
        ("assistant", answers[0]),
        ("assistant", "Wait."),
        ("user", "Second?"),
        ("assistant", answers[1]),
    ]
    assert [turn.train for turn in plain.turns] == [False, False, True, False, False, True]
    assert [turn.call.step for turn in plain.turns if turn.call] == ["turn-1/1", "turn-2/1"]
    assert plain.result == answers[1]
    agent = of_target(found, "agent")
    assert [turn.role for turn in agent.turns].count("user") == 2
    ids = [call["id"] for turn in agent.turns for call in turn.message.get("tool_calls") or ()]
    assert ids
    assert len(set(ids)) == len(ids)
    function = of_target(found, "function")
    assert brief(function.turns) == [
        ("system", "Be brief."),
        ("user", "First?"),
        ("assistant", "note({})"),
        ("tool", "noted"),
        ("assistant", "to First?"),
        ("assistant", "Wait."),
        ("user", "Second?"),
        ("assistant", "note({})"),
        ("tool", "noted"),
        ("assistant", "to Second?"),
    ]
    calls = [call["id"] for turn in function.turns for call in turn.message.get("tool_calls") or ()]
    assert calls == ["n", "n_2"]
    assert function.turns[8].message["tool_call_id"] == "n_2"
    assert len({each.prompt_key for each in found}) == 1
    assert summed(found) == used(run.folder)


async def test_judges_are_conversations_beside(tmp_path: Path) -> None:
    def judged(name: str) -> dict[str, Any]:
        return {"type": "llm_judge", "name": name, "target": "judge"}

    whole = {"type": "composite", "name": "both", "aggregator": "weighted_average"}
    graders = [judged("good"), {**whole, "assert": [{"type": "contains", "value": "a"}, judged("inner")]}]
    turns = [{"input": "One?", "assert": [judged("of-turn")]}, {"input": "Two?"}]
    talk = asking("talk", mode="conversation", turns=turns, on_turn_failure="continue") | {"assert": [judged("end")]}
    tests = [asking() | {"assert": graders}, talk]
    run = await performed(tmp_path, {"plain": SIMULATED, "judge": SIMULATED}, tests)
    single, several = conversations(run.folder)
    assert [other.name for other in single.others] == ["judge good", "judge both > inner"]
    assert [other.name for other in several.others] == ["judge turn-1 > of-turn", "judge conversation > end"]
    judge = single.others[0]
    assert [turn.role for turn in judge.turns] == ["system", "user", "assistant"]
    assert (judge.model, judge.agent, judge.score, judge.usage.calls) == ("simulated", None, None, 0)
    assert single.usage.calls == 3
    assert [turn.role for turn in single.turns] == ["user", "assistant"]
    assert summed([single, several]) == used(run.folder)
    rows = exported(run.folder, "jsonl", judges=True)
    assert [row["name"] for row in rows if row["label"] == "t"] == ["", "judge good", "judge both > inner"]
    assert len({row["prompt_key"] for row in rows}) == 2
    assert single.score is not None
    assert several.score is not None
    least = (single.score + several.score) / 2
    better = "t" if single.score > least else "talk"
    rows, report = exported_with_report(run.folder, "jsonl", judges=True, min_score=least)
    assert {row["label"] for row in rows} == {better}
    assert report.left_out == {f"scored less than {least:g}": 1, "of judges of what is left out": 2}


async def test_a_judge_that_is_asked_anew_has_as_many_conversations(tmp_path: Path) -> None:
    """After two replies of no use, and a resume, it is asked from the beginning."""
    replies = ["no JSON", "still none", "none either", '{"score": 0.5, "hits": [], "misses": [], "reasoning": "r"}']

    def reply(request: RecordedRequest) -> Reply:
        return chat_response(replies.pop(0))

    async with ScriptedServer(reply) as server:
        judge = {"provider": "model", "model": "m", "base_url": server.base_url}
        targets = {"mock": {"provider": "mock", "response": "x"}, "judge": judge}
        tests = [asking() | {"assert": [{"type": "llm_judge", "name": "j", "target": "judge"}]}]
        run = await performed(tmp_path, targets, tests)
        if replies:
            run = await performed(tmp_path, targets, tests, resume=True, retry_errors=True)
    assert not replies
    (found,) = conversations(run.folder)
    assert len(found.others) > 1
    begins = [turn.role for other in found.others for turn in other.turns].count("system")
    assert begins == len(found.others)
    assert sum(turn.role == "assistant" for other in found.others for turn in other.turns) == 4
    assert all([turn.role for turn in other.turns].count("system") == 1 for other in found.others)


async def test_what_went_wrong_is_told_apart(tmp_path: Path) -> None:
    targets = {
        "plain": SIMULATED,
        "cut": {**AGENT, "max_turns": 1},
        "broken": {"provider": "python", "function": "own.py:broken"},
    }
    never = {"type": "contains", "value": "\0 never"}
    run = await performed(tmp_path, targets, [asking() | {"assert": [never]}], max_attempts=1)
    assert [each["status"] for each in run.records()] == ["failed", "error", "error"]
    failed, cut = conversations(run.folder)  # the broken one said nothing
    assert (failed.state, failed.score, failed.stop_reason) == (ItemState.COMPLETED, 0, "answered")
    assert (cut.state, cut.reason, cut.stop_reason, cut.score) == (ItemState.FAILED, "target_error", "max_turns", None)
    rows, report = exported_with_report(run.folder)
    assert len(rows) == 1
    assert report.left_out_items == {"failed: target_error": 1, "failed: worker_error": 1}
    rows, report = exported_with_report(run.folder, states="completed,failed", keep="truncated")
    assert len(rows) == 2
    assert report.left_out_items == {"without a conversation": 1}


async def test_answers_of_another_run_are_conversations_too(tmp_path: Path) -> None:
    first = await performed(tmp_path, {"agent": AGENT}, [asking(input=ASKED)], "first")
    again = await perform_eval(tmp_path, "again", regrade="first")
    (before,), (after,) = conversations(first.folder), conversations(again.folder)
    assert brief(after.turns[:3]) == brief(before.turns[:3])
    assert [turn.role for turn in after.turns] == [turn.role for turn in before.turns]
    assert brief(after.turns[4:])[-1] == brief(before.turns)[-1]
    assert after.tools == before.tools
    assert after.prompt_key == before.prompt_key
    assert after.usage.calls == 0


async def test_a_file_that_is_gone_does_not_matter(tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [ASKED[3], {"role": "user", "content": "Last."}]
    run = await performed(tmp_path, {"plain": SIMULATED}, [asking(input=given)])
    (before,) = conversations(run.folder)
    assert "a note" in brief(before.turns)[0][1]
    shutil.copytree(run.folder, tmp_path / "elsewhere" / "run")
    (tmp_path / "notes.txt").unlink()
    (after,) = conversations(tmp_path / "elsewhere" / "run")
    assert "notes.txt" in brief(after.turns)[0][1]
    assert brief(after.turns[1:]) == brief(before.turns[1:])


async def test_a_setting_whose_variable_is_not_set_here_hinders_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TONE", "Speak low.")
    target = {**SIMULATED, "system_prompt": "${{ MY_TONE }}"}
    run = await performed(tmp_path, {"plain": target}, [asking()])
    (found,) = conversations(run.folder)
    assert brief(found.turns[:1]) == [("system", "Speak low.")]
    monkeypatch.delenv("MY_TONE")
    (found,) = conversations(run.folder)
    assert [turn.role for turn in found.turns] == ["user", "assistant"]


async def test_of_a_run_that_goes_on_there_is_what_has_ended(tmp_path: Path) -> None:
    target = {"provider": "python", "function": "own.py:waits"}
    running = asyncio.create_task(performed(tmp_path, {"it": target}, [asking("a"), asking("b")], workers=2))
    folder = tmp_path / "data/run"
    while not (is_made(folder) and any(each.label == "a" for each in conversations(folder))):
        await asyncio.sleep(0.02)
    rows, report = exported_with_report(folder)
    assert [row["messages"][-1]["content"] for row in rows] == ["a"]
    assert report.left_out_items == {"not ended": 1}
    (tmp_path / "go").touch()
    await running
    assert len(exported(folder)) == 2


async def test_a_session_is_not_told_its_prompt_twice(tmp_path: Path) -> None:
    lines = [
        {"test_id": "t", "message_index": 0, "role": "user", "content": "My own words."},
        {"test_id": "t", "message_index": 1, "role": "assistant", "tool_calls": [{"tool": "Read", "input": {"p": 1}}]},
        {"test_id": "t", "message_index": 2, "role": "tool", "name": "Read", "content": "r"},
        {"test_id": "t", "message_index": 3, "role": "assistant", "content": "Done."},
    ]
    (tmp_path / "session.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = {"provider": "transcript", "path": "session.jsonl"}
    run = await performed(tmp_path, {"it": target}, [asking()])
    (found,) = conversations(run.folder)
    assert brief(found.turns) == [
        ("user", "My own words."),
        ("assistant", 'Read({"p": 1})'),
        ("tool", "r"),
        ("assistant", "Done."),
    ]
    assert found.turns[2].message["tool_call_id"] == found.turns[1].message["tool_calls"][0]["id"]


# --- Recorded messages


def test_an_answer_comes_behind_its_own_calls() -> None:
    done = {"tool": "a", "input": "as it is", "output": 1}
    lost = {"name": "b", "arguments": '{"x": 1}'}
    both = turns_of_output([{"role": "assistant", "content": "Done.", "tool_calls": [done, lost]}])
    assert brief(both) == [
        ("assistant", 'a({"input": "as it is"}) b({"x": 1})'),
        ("tool", "1"),
        ("tool", ""),
        ("assistant", "Done."),
    ]
    # What is said before calls stays before them, and what was under way at the end has no result.
    first = {"role": "assistant", "content": "I look.", "tool_calls": [{"tool": "a", "input": {}}]}
    second = {"role": "assistant", "tool_calls": [{"tool": "b", "error": "broke"}, {"tool": "c"}]}
    assert brief(turns_of_output([first, second])) == [
        ("assistant", "I look. a({})"),
        ("tool", ""),
        ("assistant", "b({}) c({})"),
        ("tool", "broke"),
    ]
    assert turns_of_output([first, second])[3].message["_failed"]


def test_roles_and_parts_of_other_dialects_are_understood() -> None:
    output: list[dict[str, Any]] = [
        {"role": "developer", "content": "Rules."},
        {"role": "Human", "content": [{"type": "text", "text": "a"}, "b"]},
        {"role": "ai", "content": {"decision": "yes"}},
        {"role": "status", "content": "busy"},
        {"role": "tool", "content": "nobody's"},
        {"role": "assistant", "content": None},
    ]
    assert brief(turns_of_output(output)) == [
        ("system", "Rules."),
        ("user", "a\n\nb"),
        ("assistant", '{"decision":"yes"}'),
        ("user", "@[Status]:\nbusy"),
        ("user", "@[Tool]:\nnobody's"),
        ("assistant", ""),
    ]


_text = st.text(max_size=5)
_call = st.fixed_dictionaries(
    {"tool": st.sampled_from(["a", "b"])},
    optional={
        "id": st.sampled_from(["1", "2", "", None]),
        "input": st.one_of(_text, st.dictionaries(_text, st.integers())),
        "output": st.one_of(_text, st.none(), st.lists(st.integers())),
    },
)
_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "status"])},
    optional={
        "content": st.one_of(_text, st.none(), st.lists(_text, max_size=2)),
        "tool_calls": st.lists(_call, max_size=3),
        "tool_call_id": st.sampled_from(["1", "2", "3"]),
    },
)


@given(st.lists(_message, max_size=8))
def test_whatever_is_recorded_becomes_a_conversation(output: list[dict[str, Any]]) -> None:
    """Calls have ids of their own; behind a message with calls stand their results, in order, and all of them if it goes on."""
    turns = turns_of_output(output)
    ids: list[str] = []
    position = 0
    while position < len(turns):
        message = turns[position].message
        assert isinstance(message["content"], str)
        assert message["role"] != "tool"
        position += 1
        own = [call["id"] for call in message.get("tool_calls") or ()]
        results = []
        while position < len(turns) and turns[position].role == "tool":
            results.append(turns[position].message["tool_call_id"])
            position += 1
        assert results == (own if position < len(turns) else own[: len(results)])
        ids += own
    assert len(set(ids)) == len(ids)
    assert sum(turn.role == "assistant" for turn in turns) >= sum(each["role"] == "assistant" for each in output)
