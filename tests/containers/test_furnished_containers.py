"""Files for agents in containers: the command line that also serves bubblewrap, and tests' workspaces, which lie elsewhere there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import BatchFolder, ServerThread, run_command
from tests.support.engines import Engine


def reply(request: RecordedRequest) -> Reply:
    if any(message["role"] == "tool" for message in request.body["messages"]):
        return chat_response("Done.", reasoning="I think so.")
    function = {
        "name": "terminal",
        "arguments": json.dumps({"command": "echo agent >>log; mkdir new; id -un >new/who"}),
    }
    return chat_response(None, reasoning="Look.", tool_calls=[{"id": "a", "type": "function", "function": function}])


@pytest.fixture
def folder(tmp_path: Path, docker_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> BatchFolder:
    for name, value in docker_engine.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "log").write_text("template\n")
    (tmp_path / "template" / "prepare").write_text("#!/bin/sh\necho prepared $1 >>log\n")
    (tmp_path / "template" / "prepare").chmod(0o755)
    return BatchFolder(tmp_path, [{"prompt": "one", "base": "it's; b", "given": {"d/f": "row\n"}}])


def test_the_same_command_line_serves_containers(folder: BatchFolder, docker_engine: Engine) -> None:
    words = ["--workspace=template", "--setup=./prepare {base}", "--files_field=given", "--container_env=WHERE=here"]
    words += [
        "--collect=cat log d/f new/who; echo $WHERE; ls -ld d/f log | cut -d' ' -f3",
        "--user=tester",
        "--memory=1",
    ]
    with ServerThread(reply) as server:
        image = f"--image={docker_engine.full}"
        ran = folder.batch(f"--base_url={server.base_url}", *words, "--sandbox=docker", image)
    assert ran.code == 0, ran
    collected = folder.lines()[0]["metadata"]["collected"]
    assert collected == "template\nprepared it's; b\nagent\nrow\ntester\nhere\ntester\ntester\n"


@pytest.mark.slow
def test_a_user_and_a_folder_that_the_image_lacks_cost_no_model_call(
    folder: BatchFolder, docker_engine: Engine
) -> None:
    image = f"--image={docker_engine.full}"
    with ServerThread(reply) as server:
        for word, said in (
            ("--user=nobody-here", "has no user nobody-here"),
            ("--cwd=/nope", "cwd '/nope' is no folder"),
        ):
            name = f"--run_name=lacks{word.partition('=')[0]}"
            ran = folder.batch(f"--base_url={server.base_url}", "--sandbox=docker", image, word, name)
            assert ran.code == 1, ran
            (failure,) = folder.lines("failures.jsonl", name.partition("=")[2])
            assert (failure["cause"], said in failure["message"]) == ("invalid_input", True)
        assert server.requests == []


def test_a_tests_workspace_goes_into_the_container_and_comes_back(folder: BatchFolder, docker_engine: Engine) -> None:
    with ServerThread(reply) as server:
        target = {
            "name": "agent",
            "provider": "agent",
            "model": "m",
            "base_url": server.base_url,
            "toolsets": ["terminal"],
            "sandbox": "docker",
            "image": docker_engine.full,
            "collect": "cat log",
        }
        test = {"id": "one", "input": "Work.", "assert": [{"type": "regex", "value": "Done"}]}
        suite = {"targets": [target], "workspace": {"template": "template"}, "tests": [test]}
        (folder.path / "e.yaml").write_text(json.dumps(suite))
        ran = run_command(folder.path, "eval", "e.yaml", "--run_name=e", "--quiet")
    assert ran.code == 0, ran
    record = folder.lines("results.jsonl", "e")[0]
    assert record["collected"] == "template\nagent\n"
    changes = record["file_changes"].splitlines()
    assert "+agent" in changes
    assert "+++ b/new/who" in changes
