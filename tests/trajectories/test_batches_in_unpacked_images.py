"""Batches whose commands run in bubblewrap, in images from files and from a container engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import BatchFolder, ServerThread
from tests.support.engines import Engine, docker_engine, image_registry
from tests.support.image_tars import full_image

__all__ = ["docker_engine", "image_registry"]


def _asks(request: RecordedRequest) -> Reply:
    """An agent that looks where it is, changes that, and says what it saw."""
    if request.body["messages"][-1]["role"] == "tool":
        return chat_response(str(request.body["messages"][-1]["content"]), reasoning="so it is")
    command = "cat ~tester/kept; id -u; touch /usr/changed && ls /usr/changed; ls /home"
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "terminal", "arguments": json.dumps({"command": command})},
    }
    return chat_response(None, reasoning="Let me see.", tool_calls=[call])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    monkeypatch.setenv("MANYHANDS_IMAGE_CACHE", str(tmp_path / "cache"))
    with ServerThread(_asks) as running:
        yield running


def test_an_image_from_a_file(tmp_path: Path, server: ServerThread) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "one"}, {"prompt": "two"}])
    words = [f"--base_url={server.base_url}", "--model=m", "--sandbox=bubblewrap", f"--image=tar:{full_image()}"]
    ran = folder.batch(*words)
    assert ran.code == 0, ran
    answers = [line["conversations"][-1]["value"] for line in folder.lines()]
    assert len(answers) == 2
    assert all("of the image\\n0\\n/usr/changed\\ntester" in answer for answer in answers)
    assert len(list((tmp_path / "cache").rglob("rootfs"))) == 1
    assert not Path("/usr/changed").exists()
    assert not list((folder.run() / "workspaces").glob("*"))


def test_where_commands_start_is_checked_before_a_model_is_called(tmp_path: Path, server: ServerThread) -> None:
    rows = [{"prompt": "one", "cwd": "/nope"}, {"prompt": "two", "cwd": "/usr"}, {"prompt": "out", "cwd": "../.."}]
    folder = BatchFolder(tmp_path, rows)
    words = [f"--base_url={server.base_url}", "--model=m", "--sandbox=bubblewrap", f"--image=tar:{full_image()}"]
    ran = folder.batch(*words)
    assert '"cwd" leads out of the workspace: ../..' in ran.err
    failure, bad_row = folder.lines("failures.jsonl")
    assert (failure["cause"], "'/nope' is no folder" in failure["message"]) == ("invalid_input", True)
    assert "leads out" in bad_row["message"]
    assert {request.body["messages"][1]["content"] for request in server.requests} == {"two"}
    before = len(server.requests)
    assert folder.batch(*words, "--run_name=all", "--cwd=../..").code == 2
    folder.write_rows([{"prompt": "one"}])
    assert folder.batch(*words, "--run_name=none", "--cwd=/nope").code == 1
    assert len(server.requests) == before


def test_a_row_names_no_file(tmp_path: Path, server: ServerThread) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "one"}, {"prompt": "two", "image": f"tar:{full_image()}"}])
    ran = folder.batch(f"--base_url={server.base_url}", "--model=m", "--sandbox=bubblewrap")
    assert "rows can't name (--image and --image_template can); the row is skipped" in ran.err
    assert len(folder.lines()) == 1
    assert not (tmp_path / "cache").exists()


def test_a_file_that_is_not_there(tmp_path: Path, server: ServerThread) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "one"}])
    for image, problem in ((f"tar:{tmp_path}/none.tar", "does not exist"), (f"oci:{tmp_path}", "has no index.json")):
        ran = folder.batch(f"--base_url={server.base_url}", "--model=m", "--sandbox=bubblewrap", f"--image={image}")
        assert ran.code == 2
        assert problem in ran.err
        assert len(ran.err.splitlines()) == 1
        assert server.requests == []


@pytest.mark.slow
def test_an_image_of_an_engine(
    tmp_path: Path, server: ServerThread, docker_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in docker_engine.environment.items():
        monkeypatch.setenv(name, value)
    folder = BatchFolder(tmp_path, [{"prompt": "one", "image": docker_engine.full}, {"prompt": "two"}])
    ran = folder.batch(f"--base_url={server.base_url}", "--model=m", "--sandbox=bubblewrap")
    assert ran.code == 0, ran.err
    one, two = (line["conversations"][-1]["value"] for line in folder.lines())
    assert "of the image" in one
    assert "of the image" not in two
    assert docker_engine.client("ps", "-aq") == ""
