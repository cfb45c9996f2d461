"""What exports get of jobs: a conversation for each row that an agent worked on, or for each of its stages, and what commands reported."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.outcomes import ItemState
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL
from tests.support.batches import ServerThread, run_command
from tests.support.exported import brief, conversations, exported, exported_with_report, own_keys, summed, used
from tests.support.forked import forked_runners
from tests.support.job_folders import FUNCTION, JobFolder, report, text_of

SCHEMA = {"type": "object", "properties": {"length": {"type": "integer"}}, "required": ["length"]}
COMMAND = """
import json, sys
prompt = sys.stdin.read()
row = json.load(open(sys.argv[1]))
if row["text"] == "broken":
    sys.exit("no luck")
print("I look.")
print(json.dumps({"length": len(row["text"]) if "was refused" in prompt else "long"}))
"""


@pytest.fixture(scope="module", autouse=True)
def _runners() -> Iterator[None]:
    with forked_runners():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    with JobFolder(tmp_path, ["one", "three"]) as made:
        yield made


def spawned(folder: JobFolder, *options: str, code: int = 0) -> None:
    """A job ``j`` over the table, to its end."""
    ended = run_command(folder.path, "jobs", *folder.spawn_words("--quiet", "--executor=local", *options))
    assert ended.code == code, ended


def asked(request: RecordedRequest) -> str:
    return next(text_of(message) for message in request.body["messages"] if message["role"] == "user")


def measuring(request: RecordedRequest) -> Reply:
    """A model that looks at its list of things to do, then reports something that does not fit, and then the length."""
    results = sum(message["role"] == "tool" for message in request.body["messages"])
    if not results:
        call = {"name": "todo", "arguments": '{"todos": []}'}
        return chat_response("", tool_calls=[{"id": "look", "type": "function", "function": call}])
    return report(request, {"length": "long" if results == 1 else 3})


def test_an_agent_has_one_conversation_a_row(folder: JobFolder) -> None:
    (folder.path / "schema.json").write_text(json.dumps(SCHEMA))
    with ServerThread(measuring) as server:
        spawned(
            folder, f"--base_url={server.base_url}", "--model=m", "--toolsets=todo", "--output_schema=schema.json",
            "--ephemeral_system_prompt=Not kept.", "--system_column=text", "--seed=3",
        )  # fmt: skip
        sent = server.bodies
    found = conversations(folder.folder())
    assert [each.label for each in found] == ["row-1", "row-2"]
    assert [each.source for each in found] == [{"name": "a", "text": "one"}, {"name": "b", "text": "three"}]
    assert [each.result for each in found] == [{"length": 3}] * 2
    first = found[0]
    own = next(body for body in sent if "Say one." in text_of(body["messages"][1]))
    system, prompt = (message["content"] for message in own["messages"])
    assert system == f"{first.turns[0].message['content']}\n\nNot kept."
    assert system.split("\n\n")[-2:] == ["one", "Not kept."]
    assert first.ephemeral == "Not kept."
    call = 'report_agent_job_result({{"job_id": "{0}", "item_id": "row-1", "result": {{"length": {1}}}}})'
    assert brief(first.turns[1:3]) == [("user", prompt), ("assistant", 'todo({"todos": []})')]
    assert [turn.role for turn in first.turns[3:]] == ["tool", "assistant", "tool", "assistant", "tool"]
    assert brief(first.turns[4:5]) == [("assistant", "I report. " + call.format(first.run_id, '"long"'))]
    assert brief(first.turns[6:7]) == [("assistant", "I report. " + call.format(first.run_id, 3))]
    assert [turn.message["_failed"] for turn in first.turns if turn.role == "tool"] == [False, True, False]
    assert [turn.train for turn in first.turns] == [turn.role == "assistant" for turn in first.turns]
    assert list(first.tools) == own["tools"]
    assert [tool["function"]["name"] for tool in first.tools] == [REPORT_TOOL, "todo"]
    assert not first.tools_changed
    assert (first.model, first.seed, first.stop_reason) == ("m", own["seed"], "answered")
    assert summed(found) == used(folder.folder())
    rows = exported(folder.folder())
    assert [row["messages"][-1]["role"] for row in rows] == ["assistant"] * 2
    assert all(row["tools"] == own["tools"] for row in rows)
    assert own_keys(rows) == []


def test_the_same_row_has_the_same_prompt_in_every_job(folder: JobFolder) -> None:
    folder.write_rows(["one", "three", "three"])
    for name in ("j", "k"):
        spawned(folder, f"--job_name={name}", f"--output_csv_path={name}.csv", "--model=simulated", "--toolsets=none")
    first, second = (conversations(folder.folder(name)) for name in ("j", "k"))
    assert [each.prompt_key for each in first] == [each.prompt_key for each in second]
    assert len({each.prompt_key for each in first}) == 3  # their names differ
    assert all(each.simulated for each in first)


def staged(request: RecordedRequest) -> Reply:
    prompt = asked(request)
    name = "mood" if "The mood" in prompt else "gist"
    return report(request, {name: f"the {name}"})


STAGES = ("--column=gist=Gist of {text}?", "--column", "mood=The mood of {gist}?")


def spawn_staged(folder: JobFolder, server: ServerThread, *options: str) -> int:
    words = ("--job_name=j", "--output_csv_path=out.csv", "--quiet", "--toolsets=none", "--executor=local", *options)
    return run_command(
        folder.path, "jobs", "spawn", "rows.csv", *STAGES, *words, f"--base_url={server.base_url}"
    ).code  # fmt: skip


def test_each_stage_is_a_conversation(folder: JobFolder) -> None:
    with ServerThread(staged) as server:
        assert spawn_staged(folder, server) == 0
    found = conversations(folder.folder())
    assert [(each.label, each.name) for each in found] == [
        ("row-1", "stage gist"),
        ("row-1", "stage mood"),
        ("row-2", "stage gist"),
        ("row-2", "stage mood"),
    ]
    assert [each.result for each in found[:2]] == [{"gist": "the gist"}, {"mood": "the mood"}]
    assert "The mood of the gist?\n" in brief(found[1].turns)[1][1]
    of_stage = [each.tools[0]["function"]["parameters"]["properties"]["result"] for each in found[:2]]
    assert [list(each["properties"]) for each in of_stage] == [["gist"], ["mood"]]
    assert not any(each.tools_changed for each in found)
    assert [each.usage.calls for each in found] == [2, 0, 2, 0]
    assert summed(found) == used(folder.folder())
    assert len(exported(folder.folder())) == 4
    assert exported(folder.folder(), min_score=0.5) == []


def test_what_an_earlier_attempt_had_done_is_its_conversation(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    is_mended = False

    def reply(request: RecordedRequest) -> Reply:
        return staged(request) if is_mended or "Gist" in asked(request) else chat_response("No tool for me.")

    with ServerThread(reply) as server:
        assert spawn_staged(folder, server) == 1
        gist, mood = conversations(folder.folder())
        assert (gist.state, gist.stop_reason) == (ItemState.FAILED, "answered")
        assert (mood.state, mood.reason, mood.result) == (ItemState.FAILED, "invalid_output", None)
        assert sum("_synthetic" in turn.message for turn in mood.turns) == 2  # it was reminded
        is_mended = True
        assert run_command(folder.path, "jobs", "retry", "j", "--failed", "--quiet").code == 0
    again = conversations(folder.folder())
    assert [each.name for each in again] == ["stage gist", "stage mood"]
    assert again[0].attempt > gist.attempt
    assert again[0].turns == gist.turns
    assert brief(again[1].turns)[-2][1].startswith("I report.")
    assert summed(again) == used(folder.folder())  # with what was given up


def test_of_a_command_there_are_its_prompt_and_its_result(folder: JobFolder) -> None:
    folder.write_rows(["one", "broken"])
    (folder.path / "work_on.py").write_text(COMMAND)
    (folder.path / "schema.json").write_text(json.dumps(SCHEMA))
    command = f"--worker_command={sys.executable} work_on.py {{row_file}}"
    spawned(folder, command, "--output_schema=schema.json", code=1)
    (found,) = conversations(folder.folder())  # one broke
    (user, said), reply = (turn.message for turn in found.turns), '{"length": 3}'
    assert user["role"] == "user"
    assert "\nSay one.\n" in user["content"]
    assert "was refused" not in user["content"]
    assert (said["role"], said["content"], found.turns[1].train) == ("assistant", reply, True)
    assert (found.result, found.stop_reason, found.tools) == ({"length": 3}, "answered", ())
    assert exported(folder.folder())[0]["messages"][1]["content"] == reply


def test_a_function_has_no_conversation(folder: JobFolder) -> None:
    spawned(folder, FUNCTION)
    rows, report = exported_with_report(folder.folder(), "jsonl")
    assert rows == []
    assert report.left_out_items == {"without a conversation": 2}


def test_rows_that_have_not_ended_or_are_bad_are_left_out(folder: JobFolder) -> None:
    (folder.path / "rows.csv").write_text('name,text\na,one\n"b"b,two\nc,three\n')
    spawned(folder, "--model=simulated", "--toolsets=none", "--on_bad_row=skip", "--limit=2", code=1)
    rows, report = exported_with_report(folder.folder(), "jsonl")
    assert [row["label"] for row in rows] == ["row-1"]
    assert report.left_out_items == {"discarded: bad_row": 1, "not ended": 1}
    assert [each.label for each in conversations(folder.folder())] == ["row-1"]


def change_spec(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the spec in a journal."""
    with closing(sqlite3.connect(folder / "run.db")) as journal, journal:
        (text,) = journal.execute("SELECT value FROM meta WHERE name = 'spec'").fetchone()
        spec = json.loads(text)
        change(spec)
        journal.execute("UPDATE meta SET value = ? WHERE name = 'spec'", (json.dumps(spec),))


def without_toolset(spec: dict[str, Any]) -> None:
    spec["options"]["toolsets"] = ["of_a_package_that_is_gone"]


def test_toolsets_that_are_gone_are_said_and_hinder_nothing(folder: JobFolder) -> None:
    """A journal of a job whose toolset a package brought that is not installed here."""
    spawned(folder, "--model=simulated", "--toolsets=todo")
    before = conversations(folder.folder())
    change_spec(folder.folder(), without_toolset)
    after = conversations(folder.folder())
    assert [each.turns for each in after] == [each.turns for each in before]
    assert all(each.tools_changed for each in after)
    assert [tool["function"]["name"] for tool in after[0].tools] == [REPORT_TOOL]
