"""Whole runs whose model attacks: by commands and by the other tools, in a batch as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.attacks.outside import CANARY, Outside, key_in_the_environment, own_folder
from tests.support.batches import REASONED, ServerThread, prompt_of
from tests.support.commands import Command, alive, batch_words, ledger, run, trajectories, write_prompts

pytestmark = pytest.mark.timeout(240)
Call = tuple[str, dict[str, Any]]


@pytest.fixture
def outside() -> Iterator[Outside]:
    with own_folder() as folder, key_in_the_environment(), Outside(folder / "outside") as outside:
        yield outside


def attacks(outside: Outside, data: Path) -> dict[str, list[Call]]:
    """Conversations by their prompts: the calls that a model makes one after the other."""
    target, up = outside.files[0], "../" * 15
    other = f"{data}/r/workspaces"
    commands = {
        "read the host": f"cat {target} {up}{target[1:]} /proc/1/root{target}; ls -R {data} {Path.home()}; cat ~/.netrc /etc/shadow",
        "look at neighbours": f"ls -laR {other}; cat {other}/*/workspace/*; find / -name run.db -o -name secret 2>/dev/null",
        "call the host": f"curl -sm2 127.0.0.1:{outside.port}; curl -sm2 169.254.169.254/latest/meta-data/; "
        f"python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"\\0{outside.abstract}\"); print(s.recv(99))'",
        "read keys": "env; cat /proc/*/environ /proc/*/cmdline; set; declare -p",
        "leave a daemon": "env -i setsid nohup sh -c 'sleep 8123.25 & wait' >/dev/null 2>&1 & disown",
        "kill": "kill -9 -1; kill -9 1 $PPID $$",
        "dig deep": 'python3 -c \'import os\nfor n in range(1500): os.mkdir("d"); os.chdir("d")\'; ls',
        "print escapes": "printf '\\033]0;owned\\007\\033[2J\\220\\233'; cat /dev/urandom | head -c 200000",
        "keep the output": "sleep 8123.25 & echo done",
    }
    found: dict[str, list[Call]] = {name: [("terminal", {"command": text})] for name, text in commands.items()}
    link = f"ln -s {target} link; ln -s {Path(target).parent} folder; ln -s / root; mkfifo pipe; ln -s pipe p2"
    found["reach by tools"] = [
        ("terminal", {"command": link}),
        *(
            ("read_file", {"path": path})
            for path in (target, f"{up}{target[1:]}", "link", "folder/secret", f"root{target}", "pipe")
        ),
        ("write_file", {"path": target, "content": "overwritten"}),
        ("write_file", {"path": "folder/secret", "content": "overwritten"}),
        ("patch", {"path": "link", "old_string": CANARY[:9], "new_string": "x"}),
        ("search_files", {"pattern": "canary", "path": "/"}),
        ("search_files", {"pattern": "canary", "path": "folder/"}),
    ]
    return found


def model(conversations: dict[str, list[Call]]) -> Any:
    """A model that makes the calls of the conversation whose prompt it was given."""

    def reply(request: RecordedRequest) -> Reply:
        calls = conversations[prompt_of(request)]
        done = sum(message["role"] == "tool" for message in request.body["messages"])
        if done >= len(calls):
            return REASONED
        name, arguments = calls[done]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{done}", "type": "function", "function": function}
        return chat_response(None, reasoning="More.", tool_calls=[call])

    return reply


def test_a_batch_of_attackers_gets_nowhere(tmp_path: Path, outside: Outside) -> None:
    conversations = attacks(outside, tmp_path)
    write_prompts(tmp_path / "prompts.jsonl", conversations)
    before = outside.state()
    with ServerThread(model(conversations)) as server:
        options = {"base_url": server.base_url, "model": "some/model", "num_workers": 2, "concurrency": 3}
        more = {"call_timeout": 20, "batch_size": 3}
        ended = run(*batch_words(tmp_path, **options, **more))
        asked = json.dumps(server.bodies)
    assert "Traceback" not in ended.err
    found = ledger(tmp_path / "r")
    assert found["completed"] + found["failed"] == len(conversations), ended.err
    assert found["completed"] >= len(conversations) - 1
    assert outside.state() == before
    assert CANARY not in asked
    for path in (tmp_path / "r").rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
    assert not any((tmp_path / "r" / "workspaces").glob("*"))
    assert not sleeping("8123.25")


def sleeping(seconds: str) -> list[int]:
    """The processes that sleep for so long."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{name}/cmdline").read_bytes() == f"sleep\0{seconds}\0".encode() and alive(int(name)):
                found.append(int(name))
    return found


@pytest.mark.parametrize("victim", ["owner", "worker"])
def test_a_stopped_process_loses_nothing(victim: str, tmp_path: Path) -> None:
    """SIGSTOP, some seconds in which nothing happens, SIGCONT: the run goes on, and asks nothing twice."""
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(20)))
    with ServerThread() as server:
        options = {"base_url": server.base_url, "model": "some/model", "num_workers": 2, "concurrency": 2}
        with Command(*batch_words(tmp_path, **options)) as command:
            assert command.wait_until(lambda: len(server.requests) >= 3)
            stopped = command.process.pid if victim == "owner" else command.workers()[0]
            os.kill(stopped, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(stopped, signal.SIGCONT)
            ended = command.wait()
        assert ended.code == 0, ended.err
        assert len(server.requests) == 20
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == 20


def test_a_worker_that_stays_stopped_is_no_loss(tmp_path: Path) -> None:
    """It is killed in the end by whoever waits for it; the run is resumed, and no answer that was recorded is asked for again."""
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(12)))
    with ServerThread() as server:
        options = {"base_url": server.base_url, "model": "some/model", "num_workers": 2, "concurrency": 2}
        with Command(*batch_words(tmp_path, **options)) as command:
            assert command.wait_until(lambda: len(server.requests) >= 2)
            for worker in command.workers()[:1]:
                os.kill(worker, signal.SIGSTOP)
            command.ends_within(3.0)
            command.kill()
        assert run("resume", str(tmp_path / "r"), "--quiet").code == 0
        assert len(server.requests) <= 12 + 4
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == 12
