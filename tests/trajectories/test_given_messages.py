"""Batches of rows that bring a system prompt or messages, and what is recorded of the prompt that was sent."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from manyhands import BatchRunner
from manyhands.agents.task import BASE_PROMPT, TOOLS_PROMPT
from manyhands.export.sharegpt import HERMES, SystemTurns
from manyhands.testing.scripted_server import Handler, RecordedRequest, Reply, chat_response
from manyhands.workloads.trajectories.lines.entry import system_digest
from tests.support.batches import REASONED, BatchFolder, Ran, ServerThread, run_command

OURS = f"{BASE_PROMPT}\n\n{TOOLS_PROMPT}"
USER = {"role": "user", "content": "Hi."}
ANSWER = {"role": "assistant", "content": "Hello."}
CALL = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "echo hello"}'}}
STARTED = [
    USER,
    {"role": "assistant", "content": None, "reasoning_content": "Look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": '{"output": "hello"}'},
]


def batch(
    folder: BatchFolder, *words: str, responses: Handler | tuple[Reply, ...] = (REASONED,)
) -> tuple[Ran, list[list[dict[str, Any]]]]:
    with ServerThread(responses) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--num_workers=1", *words)
        return ran, [body["messages"] for body in server.bodies]


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_rows_system_prompt_is_sent_in_place_of_ours(tmp_path: Path, executor: str) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "a", "system": "Be brief."}, "b", {"prompt": "a", "system": "Be long."}])
    ran, asked = batch(folder, f"--executor={executor}")
    assert ran.code == 0, ran
    assert "2 rows with a system prompt of their own: it is sent in place of ours" in ran.err
    sent = {(messages[0]["content"], messages[-1]["content"]) for messages in asked}
    assert sent == {("Be brief.", "a"), (OURS, "b"), ("Be long.", "a")}
    first, second, third = folder.lines()
    assert first["metadata"]["item"] != third["metadata"]["item"]
    assert [json.loads(each["metadata"]["given"]) for each in (first, second, third)] == [
        {"system": "Be brief."},
        {},
        {"system": "Be long."},
    ]
    assert [each["metadata"]["system_prompt"] for each in (first, second)] == [
        system_digest("Be brief."),
        system_digest(OURS),
    ]
    # It is part of what the model was told, so it is saved in front of the tools.
    assert first["conversations"][0]["value"] == "Be brief.\n\n" + second["conversations"][0]["value"]


def test_system_prompts_of_another_column(tmp_path: Path) -> None:
    row = {"question": "a", "system_prompt": "Be brief.", "system": "kept as it is"}
    folder = BatchFolder(tmp_path, [row, {"question": "b", "system_prompt": None}])
    words = ("--prompt_column=question", "--system_column=system_prompt")
    _, asked = batch(folder, *words)
    assert [message["content"] for message in asked[0]] == ["Be brief.", "a"]
    assert asked[1][0]["content"] == OURS
    (line, _) = folder.lines()
    assert json.loads(line["metadata"]["given"]) == {"system": "Be brief."}
    assert json.loads(line["metadata"]["source"]) == {"system": "kept as it is"}
    ran = folder.batch("--run_name=typo", "--model=simulated", "--prompt_column=question", "--system_column=sytem")
    assert ran.code == 2
    assert 'd.jsonl: no row has a system prompt in "sytem", which --system_column names' in ran.err


def test_an_ephemeral_prompt_stands_behind_it_and_is_saved_in_no_conversation(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "a", "system": "Be brief."}, "b"])
    ran, asked = batch(folder, "--ephemeral_system_prompt=Whisper.")
    assert "with --ephemeral_system_prompt behind it" in ran.err
    assert {messages[0]["content"] for messages in asked} == {"Be brief.\n\nWhisper.", f"{OURS}\n\nWhisper."}
    for name in ("trajectories.jsonl", "batch_0.jsonl"):
        assert "Whisper" not in (folder.run() / name).read_text()
    rows, run = sorted(folder.json("statistics.json")["made_by"], key=lambda maker: maker["system_prompt_of"])
    assert (rows["system_prompt_of"], rows["system_prompt"], rows["trajectories"]) == ("rows", None, 1)
    assert (run["system_prompt_of"], run["system_prompt"]) == ("run", f"{OURS}\n\nWhisper.")
    assert run["system_prompt_digest"] == folder.lines()[1]["metadata"]["system_prompt"]
    shown = json.loads(run_command(tmp_path, "show", "r", "--json").out.splitlines()[0])
    assert shown["record"]["system_prompt"] == "Be brief.\n\nWhisper."
    assert "Be brief.\n  \n  Whisper." in run_command(tmp_path, "show", "r", "1").out


def test_a_conversation_begins_with_the_rows_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, USER, ANSWER, {"role": "user", "content": "And now?"}]
    folder = BatchFolder(tmp_path, [{"messages": messages, "label": 1}])
    ran, (asked,) = batch(folder)
    assert ran.code == 0, ran
    assert "1 row with messages: the conversation begins with them" in ran.err
    assert asked == messages
    (line,) = folder.lines()
    assert [(turn["from"], turn["value"]) for turn in line["conversations"][1:]] == [
        ("human", "Hi."),
        ("gpt", "<think>\n</think>\nHello."),
        ("human", "And now?"),
        ("gpt", "<think>\nI think so.\n</think>\nDone."),
    ]
    assert json.loads(line["metadata"]["given"]) == {"system": "Be brief.", "turns": 3}
    assert json.loads(line["metadata"]["source"]) == {"label": 1}
    assert folder.json("statistics.json")["reasoning_statistics"]["total_assistant_turns"] == 1
    assert "user (given):\n  Hi." in run_command(tmp_path, "show", "r", "1").out
    assert run_command(tmp_path, "check", "r").code == 0


def test_a_conversation_goes_on_from_given_tool_results(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"messages": STARTED}])
    again = {**CALL, "id": "c1"}  # a model that takes the same id again

    def reply(request: RecordedRequest) -> Reply:
        results = [message for message in request.body["messages"] if message["role"] == "tool"]
        return REASONED if len(results) > 1 else chat_response(None, reasoning="More.", tool_calls=[again])

    ran, asked = batch(folder, responses=reply)
    assert ran.code == 0, ran
    assert [message["role"] for message in asked[0]] == ["system", "user", "assistant", "tool"]
    assert asked[0][2]["tool_calls"][0]["function"]["name"] == "terminal"
    ids = [message["tool_call_id"] for message in asked[1] if message["role"] == "tool"]
    assert len(set(ids)) == 2
    (line,) = folder.lines()
    assert [turn["from"] for turn in line["conversations"]] == ["system", "human", "gpt", "tool", "gpt", "tool", "gpt"]
    assert line["conversations"][2]["value"].startswith("<think>\nLook.\n</think>\n<tool_call>\n")
    assert json.loads(line["metadata"]["given"]) == {"turns": 3}
    # What was given is not counted as done here.
    assert line["tool_stats"]["terminal"]["count"] == 1
    assert line["api_calls"] == 2
    assert run_command(tmp_path, "check", "r").code == 0


def test_a_think_block_that_opens_a_given_answer_is_its_reasoning_and_is_sent_as_it_was_given(tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = [
        {"role": "assistant", "content": "<think>\nSo.\n</think>\n\nYes, </think>."},
        {"role": "assistant", "content": "<think>Text</think> here.", "reasoning_content": "Own."},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "P."}, {"type": "text", "text": "Parts."}]},
        {"role": "assistant", "content": "<think>Go.</think>", "tool_calls": [CALL]},
    ]
    given: list[dict[str, Any]] = [message for answer in answers[:3] for message in (USER, answer)]
    given += [USER, answers[3], {"role": "tool", "tool_call_id": "c1", "content": "hello"}]
    folder = BatchFolder(tmp_path, [{"messages": given}])
    ran, (asked,) = batch(folder)
    assert ran.code == 0, ran
    assert [message["content"] for message in asked if message["role"] == "assistant"] == [
        answer["content"] for answer in answers
    ]
    (line,) = folder.lines()
    assert [turn["value"].partition("<tool_call>")[0] for turn in line["conversations"] if turn["from"] == "gpt"] == [
        "<think>\nSo.\n</think>\nYes, <\\/think>.",
        "<think>\nOwn.\n</think>\n<\\think>Text<\\/think> here.",
        "<think>\nP.\n</think>\nParts.",
        "<think>\nGo.\n</think>\n",
        "<think>\nI think so.\n</think>\nDone.",
    ]
    assert json.loads(line["metadata"]["given"])["turns"] == 9
    assert folder.json("statistics.json")["reasoning_statistics"]["total_assistant_turns"] == 1


def test_reasoning_that_was_given_does_not_keep_a_trajectory_without(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"messages": STARTED}])
    batch(folder, responses=(chat_response("Quick."),))
    (failure,) = folder.lines("failures.jsonl")
    assert (failure["cause"], failure["prompt"]) == ("no_reasoning", "Hi.")
    assert [message["role"] for message in failure["messages"]] == ["user", "assistant", "tool"]


def test_graders_see_what_was_given_as_input_and_not_as_output(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"messages": [USER, ANSWER, USER], "system": "Be brief."}])
    program = (
        "import json, pathlib, sys; pathlib.Path('seen.json').write_text(sys.stdin.read()); print('{\"score\": 1}')"
    )
    (tmp_path / "judge.py").write_text(program)
    (tmp_path / "checks.yaml").write_text("- {name: own, type: code_judge, script: [python3, judge.py]}\n")
    ran, _ = batch(folder, "--grade=checks.yaml")
    assert ran.code == 0, ran
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert [message["role"] for message in seen["input"]] == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in seen["output"]] == ["Done."]


def test_a_bad_row_is_named_with_file_line_and_field_and_the_others_run(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "a"}, {"prompt": "b", "messages": [{"role": "robot", "content": "x"}]}])
    ran, asked = batch(folder)
    assert (ran.code, len(asked)) == (0, 1)
    assert 'd.jsonl, line 2: message 1 of "messages" has no "role" out of' in ran.err
    assert folder.lines("failures.jsonl")[0]["line"] == 2


def test_another_system_prompt_is_other_work_and_the_same_is_none(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"id": 1, "prompt": "a", "system": "A"}, {"prompt": "b", "system": "A"}])
    batch(folder)
    folder.write_rows([{"id": 1, "prompt": "a", "system": "B"}, {"prompt": "b", "system": "A"}])
    ran, asked = batch(folder, "--resume")
    assert ran.code == 0
    assert [messages[0]["content"] for messages in asked] == ["B"]
    assert [json.loads(line["metadata"]["given"])["system"] for line in folder.lines()] == ["B", "A"]


def test_a_row_that_brings_something_is_not_matched_with_what_the_original_did_without(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "a", "system": "Be brief."}, "a"])
    folder.run().mkdir(parents=True)
    turns = [{"from": "system", "value": "S"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "x"}]
    (folder.run() / "batch_0.jsonl").write_text(json.dumps({"prompt_index": 0, "conversations": turns}) + "\n")
    ran, asked = batch(folder, "--resume")
    assert [messages[0]["content"] for messages in asked] == ["Be brief."]
    assert [line["metadata"]["adopted"] for line in folder.lines()] == [False, True]
    assert "1 row with a system prompt or messages of their own is run anew" in ran.err
    assert "--system_template=hermes" in ran.err


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_bring_messages_too(tmp_path: Path, kind: str) -> None:
    """A cell of CSV holds them as JSON; a column of Parquet has all fields of all messages in each, null where there are none."""
    messages = [*STARTED, {"role": "assistant", "content": "It says hello."}, {"role": "user", "content": "Sure?"}]
    values = [{"prompt": None, "system": None, "messages": messages}, {"prompt": "b", "system": "B", "messages": None}]
    if kind == "csv":
        with (tmp_path / "d.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["prompt", "system", "messages"])
            writer.writerows([["", "", json.dumps(messages)], ["b", "B", ""]])
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(values), tmp_path / "d.parquet")
    ran, asked = batch(BatchFolder(tmp_path), f"--dataset_file=d.{kind}")
    assert ran.code == 0, ran
    first, second = sorted(asked, key=len, reverse=True)
    assert [message["role"] for message in first] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert first[2]["tool_calls"] == [CALL]
    assert set(first[1]) == {"role", "content"}
    assert [message["content"] for message in second] == ["B", "b"]


def test_python_takes_such_rows_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    BatchFolder(tmp_path, [{"prompt": "a", "system": "Be brief."}, {"messages": [USER, ANSWER, USER]}])
    runner = BatchRunner("d.jsonl", 2, "r", "terminal_only", model="simulated", executor="local", sandbox="local")
    assert [row.get("system") for row in runner.dataset] == ["Be brief.", None]
    assert runner.dataset[1]["messages"] == [USER, ANSWER, USER]
    assert runner.run().exit_code == 0


# --- The wording of the saved system turn


def test_hermes_is_the_wording_of_the_original_to_the_byte(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["a"])
    (tmp_path / "hermes").write_text("A file of that name: {tools}")
    _, (asked,) = batch(folder, "--system_template=hermes")
    assert asked[0]["content"] == OURS
    (line,) = folder.lines()
    value = line["conversations"][0]["value"]
    before, _, rest = value.partition("<tools>\n[")
    tools, _, behind = rest.partition("\n</tools>\n")
    assert json.loads("[" + tools)[0]["name"] == "patch"
    assert hashlib.sha256(before.encode()).hexdigest() == ORIGINAL_BEFORE
    assert hashlib.sha256(behind.encode()).hexdigest() == ORIGINAL_BEHIND
    assert line["metadata"]["system_template"] == "hermes"
    _, _ = batch(folder, "--system_template=./hermes", "--run_name=file")
    assert folder.lines(name="file")[0]["conversations"][0]["value"].startswith("A file of that name: [")
    assert folder.lines(name="file")[0]["metadata"]["system_template"] == "file"
    ran, _ = batch(folder, "--system_template=herms", "--run_name=wrong")
    assert ran.code == 2
    assert "built in: hermes" in ran.err


def test_a_resume_keeps_the_wording_and_another_one_has_to_be_accepted(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, ["a"])
    batch(folder, "--system_template=hermes")
    folder.write_rows(["a", "b"])
    batch(folder, "--resume")
    assert {line["metadata"]["system_template"] for line in folder.lines()} == {"hermes"}
    expected = SystemTurns(HERMES)
    assert all(line["conversations"][0]["value"][:80] == HERMES[:80] for line in folder.lines())
    assert expected.text(()).count("[]") == 1


ORIGINAL_BEFORE = "50f11eb112667884ed22686574769f865407dcb09ca967ef0385819945e8c72c"
ORIGINAL_BEHIND = "085321ec40488c0bae6c20db42c7c1edcba50fd7a656c864fb4d17c3cf0ebaff"
"""Of a line that the original wrote: what stands before and behind the tools."""
