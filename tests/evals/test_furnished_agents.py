"""What the agents of evaluations find in their sandboxes, and what is collected from these: for targets and tests' workspaces alike."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedServer, chat_response
from tests.support.batches import run_command
from tests.support.eval_runs import EvalRun, perform_eval

PASSES = [{"type": "regex", "value": ".*"}]
SECRET = "f00dcafe-tricky-44"


def reply(request: RecordedRequest) -> Reply:
    if any(message["role"] == "tool" for message in request.body["messages"][-1:]):
        return chat_response("Done.")
    function = {"name": "terminal", "arguments": json.dumps({"command": "echo agent >>log"})}
    return chat_response(None, tool_calls=[{"id": "a", "type": "function", "function": function}])


def write(folder: Path, server: ScriptedServer | None, target: dict[str, Any], **more: Any) -> None:
    (folder / "template").mkdir(exist_ok=True)
    (folder / "template" / "log").write_text("template\n")
    about = {"name": "agent", "provider": "agent", "model": "m", "toolsets": ["terminal"], "sandbox": "local"}
    address = {} if server is None else {"base_url": server.base_url}
    test = {"id": "one", "input": "Work.", "metadata": {"level": "it's; high"}, "assert": PASSES}
    suite = {"targets": [{**about, **address, **target}], "tests": [test], **more}
    (folder / "suite.yaml").write_text(json.dumps(suite))


def added(changes: str) -> list[str]:
    return [line[1:] for line in changes.splitlines() if line.startswith("+") and not line.startswith("+++")]


@pytest.mark.parametrize("kind", ["local", "bubblewrap"])
async def test_a_target_gives_its_agent_files_and_collects(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", SECRET)
    target = {
        "sandbox": kind,
        "workspace": "template",
        "setup": "echo setup >>log",
        "env": {"PLAIN": "plain", "HIDDEN": None},
        "collect": "cat log; echo $PLAIN $HIDDEN {level}",
    }
    async with ScriptedServer(reply) as server:
        write(tmp_path, server, target)
        run = await perform_eval(tmp_path)
        record = run.record("one")
        assert record["status"] == "passed", record
        assert record["collected"] == "template\nsetup\nagent\nplain [redacted] it's; high\n"
        assert "collected_problem" not in record
        assert added(record["file_changes"]) == ["setup", "agent"]
        asked = len(server.requests)
    for path in run.folder.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    monkeypatch.delenv("HIDDEN")
    checked = await asyncio.to_thread(run_command, tmp_path, "check", str(run.folder))
    assert (checked.code, len(server.requests)) == (0, asked), checked


async def test_a_test_brings_the_workspace_and_its_target_the_commands(tmp_path: Path) -> None:
    async with ScriptedServer(reply) as server:
        write(tmp_path, server, {"collect": "cat log"}, workspace={"template": "template"})
        record = (await perform_eval(tmp_path)).record("one")
    assert record["collected"] == "template\nagent\n"
    assert added(record["file_changes"]) == ["agent"]


async def test_a_project_is_shown_and_told(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "known").write_text("known\n")
    target = {"sandbox": "bubblewrap", "project": "sources", "collect": "cat known; touch x 2>/dev/null || echo kept"}
    async with ScriptedServer(reply) as server:
        write(tmp_path, server, target)
        record = (await perform_eval(tmp_path)).record("one")
        assert "/project, which can be read but not changed" in server.requests[0].body["messages"][0]["content"]
    assert record["collected"] == "known\nkept\n"


async def test_what_the_turns_of_a_conversation_share_is_set_up_once(tmp_path: Path) -> None:
    turns = [{"input": "More.", "assertions": PASSES}, {"input": "And more.", "assertions": PASSES}]
    test = {"id": "one", "input": "Work.", "mode": "conversation", "turns": turns}
    async with ScriptedServer(reply) as server:
        write(tmp_path, server, {"setup": "echo setup >>log", "collect": "cat log"}, tests=[test])
        record = (await perform_eval(tmp_path)).record("one")
    assert record["status"] == "passed", record
    assert record["collected"] == "setup\nagent\nagent\n"


async def test_a_failed_setup_is_an_error_of_the_test_without_a_call(tmp_path: Path) -> None:
    async with ScriptedServer(reply) as server:
        write(tmp_path, server, {"setup": "echo no such tool; exit 3"})
        run: EvalRun = await perform_eval(tmp_path)
        assert server.requests == []
    assert run.statuses() == {"one": "error"}
    assert run.record("one")["error"] == "the setup command failed (exit code 3): no such tool"


async def test_a_failed_collection_changes_no_score(tmp_path: Path) -> None:
    async with ScriptedServer(reply) as server:
        write(tmp_path, server, {"collect": "echo partly; exit 2"})
        record = (await perform_eval(tmp_path)).record("one")
    assert (record["status"], record["collected"], record["collected_problem"]) == ("passed", "partly\n", "exit code 2")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"workspace": "nowhere"}, "there is no folder"),
        ({"project": "nowhere"}, "there is no folder"),
        ({"user": "someone"}, "--user: only containers can do that"),
        ({"env": {"API_TOKEN": SECRET}}, "API_TOKEN must be a variable of the environment"),
        ({"env": {"NOT_SET_ANYWHERE": None}}, "the environment variable NOT_SET_ANYWHERE is not set"),
        ({"provider": "openai", "toolsets": None, "setup": "true"}, "setup"),
    ],
)
async def test_what_cannot_be_given_is_refused(target: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path, None, {"model": "simulated", **target})
    with pytest.raises(UserError) as caught:
        await perform_eval(tmp_path, strict=True)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)
