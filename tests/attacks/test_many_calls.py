"""An answer with hundreds of tool calls: all of them are run, a few at a time, in one attempt, or are told why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.agents.reading import MAX_CALLS
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import REASONED, BatchFolder, ServerThread
from tests.support.commands import ledger, run


def calls(number: int, name: str, arguments: str) -> Reply:
    wanted = [
        {
            "id": f"c{index}",
            "type": "function",
            "function": {"name": name, "arguments": arguments.replace("#", str(index))},
        }
        for index in range(number)
    ]
    return chat_response("All at once.", reasoning="Why not?", tool_calls=wanted)


def answers(request: RecordedRequest) -> list[str]:
    return [message["content"] for message in request.body["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("number", "sandbox"),
    [
        (300, "bubblewrap"),
        (200, "local"),
        pytest.param(5000, "bubblewrap", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_parallel_commands(tmp_path: Path, number: int, sandbox: str) -> None:
    folder = BatchFolder(tmp_path, ["go"])

    def reply(request: RecordedRequest) -> Reply:
        return REASONED if answers(request) else calls(number, "terminal", '{"command": "echo said #"}')

    with ServerThread(reply) as server:
        options = (f"--base_url={server.base_url}", "--distribution=terminal_only", f"--sandbox={sandbox}")
        ran = folder.batch(*options, "--executor=local")
        assert ran.code == 0, ran
        assert len(server.requests) == 2, "a model call was paid twice"
        said = answers(server.requests[1])
    assert ledger(folder.run())["completed"] == 1
    assert len(said) == number
    for index, text in enumerate(said):
        assert (f"said {index}" in text) == (index < MAX_CALLS), (index, text)
        assert ("in a later answer" in text) == (index >= MAX_CALLS)
    assert json.loads(run("show", str(folder.run()), "1", "--json").out.splitlines()[0])["attempt"] == 1


def test_parallel_calls_that_each_are_a_step(tmp_path: Path) -> None:
    """Reading tools have a scope and a step of their own each."""
    folder = BatchFolder(tmp_path, ["go"])

    def reply(request: RecordedRequest) -> Reply:
        return REASONED if answers(request) else calls(300, "read_file", '{"path": "none-#"}')

    with ServerThread(reply) as server:
        ran = folder.batch(f"--base_url={server.base_url}", "--distribution=default", "--executor=local")
        assert ran.code == 0, ran
        assert len(server.requests) == 2
        assert len(answers(server.requests[1])) == 300
