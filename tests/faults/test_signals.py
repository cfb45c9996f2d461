"""Ctrl-C, SIGTERM, and a worker that is killed: through the command line."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import REASONED, ServerThread
from tests.support.commands import (
    Command,
    SimulatedProcess,
    batch_words,
    ledger,
    marked_processes,
    run,
    trajectories,
    write_prompts,
)

ITEMS = 10
SLEEP = f"sleep 5.{os.getpid()}"
"""A command that takes longer than anyone waits for a stop, and that no other test runs."""
SIGNALS = pytest.mark.parametrize(
    ("executor", "number"),
    [
        ("local", signal.SIGTERM),
        ("processes", signal.SIGINT),
        pytest.param("local", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("processes", signal.SIGTERM, marks=pytest.mark.slow),
    ],
    ids=["local-SIGTERM", "processes-SIGINT", "local-SIGINT", "processes-SIGTERM"],
)
FIRST = "stopping: the calls in flight are finished first (press Ctrl-C again to stop at once)"


def prompts(folder: Path) -> None:
    rows = (f"Question {number} [simulate: tools=1]" for number in range(ITEMS))
    write_prompts(folder / "prompts.jsonl", rows)


def run_id(folder: Path) -> str:
    reader = JournalReader(folder)
    try:
        return str(reader.meta("run_id"))
    finally:
        reader.close()


def recorded_steps(folder: Path) -> list[str]:
    """The kinds of the steps that the first item's first attempt has taken."""
    with closing(JournalReader(folder)) as reader:
        return [step.kind for step in reader.steps(1, 1)]


def recorded_calls(folder: Path) -> int:
    reader = JournalReader(folder)
    try:
        return reader.usage().calls
    finally:
        reader.close()


@SIGNALS
def test_one_signal_finishes_the_calls_in_flight(tmp_path: Path, executor: str, number: signal.Signals) -> None:
    prompts(tmp_path)
    with SimulatedProcess(tmp_path, latency=0.15) as server:
        words = batch_words(tmp_path, base_url=server.base_url, executor=executor, num_workers=2, concurrency=2, seed=1)
        with Command(*words) as command:
            assert command.wait_until(lambda: server.count() >= 5)
            with server.held():
                command.interrupt(number)
                assert command.wait_until(lambda: FIRST in command.said)
            ended = command.wait(20)
        assert ended.code == 130
        assert ended.errors == [FIRST, "manyhands: stopped: interrupted"]
        assert server.stats()["ok"] == server.count() == recorded_calls(tmp_path / "r"), "a call in flight was lost"
        assert 0 < ledger(tmp_path / "r")["pending"] < ITEMS + 1
        assert not marked_processes(run_id(tmp_path / "r"))
        resumed = run("--quiet", "--concurrency=10", program=ended.to_go_on)
        assert (resumed.code, resumed.err) == (0, "")
        assert server.stats()["duplicates"] == 0
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == ITEMS


@SIGNALS
def test_a_second_signal_stops_at_once(tmp_path: Path, executor: str, number: signal.Signals) -> None:
    prompts(tmp_path)
    with SimulatedProcess(tmp_path, latency=30) as server:
        port = int(server.base_url.rpartition(":")[2].removesuffix("/v1"))
        words = batch_words(tmp_path, base_url=server.base_url, executor=executor, num_workers=2, concurrency=2)
        with Command(*words) as command:
            assert command.wait_until(lambda: server.count() >= 4)
            command.interrupt(number)
            assert not command.ends_within(0.5)
            command.interrupt(number)
            began = time.monotonic()
            ended = command.wait(20)
            assert time.monotonic() - began < 15.0
    assert ended.code == 130
    assert ended.errors == [FIRST, "stopping at once", "manyhands: stopped: interrupted"]
    assert ledger(tmp_path / "r")["pending"] == ITEMS
    assert not marked_processes(run_id(tmp_path / "r"))
    with SimulatedProcess(tmp_path, port=port):
        resumed = run(*ended.to_go_on[-2:], "--quiet")
    assert (resumed.code, resumed.err) == (0, "")
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == ITEMS


@pytest.mark.parametrize("executor", [pytest.param("local", marks=pytest.mark.slow), "processes"])
def test_a_second_signal_stops_commands_in_sandboxes_too(tmp_path: Path, executor: str) -> None:
    write_prompts(tmp_path / "prompts.jsonl", ["one"])
    with ServerThread(_sleeper) as server:
        words = batch_words(tmp_path, base_url=server.base_url, model="some/model", executor=executor, num_workers=1)
        with Command(*words) as command:
            assert command.wait_until(_sleeping)
            command.interrupt()
            assert not command.ends_within(0.5)
            command.interrupt()
            ended = command.wait(20)
        assert ended.code == 130
        assert not marked_processes(run_id(tmp_path / "r"))
        assert not _sleeping()
        assert recorded_steps(tmp_path / "r") == ["model"], "the end of the command was waited for"
        resumed = run(*ended.to_go_on[-2:], "--quiet")
        assert (resumed.code, resumed.err) == (0, "")
        assert len(server.requests) == 2, "the model was asked again for the command"
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == 1
    assert run("check", str(tmp_path / "r")).code == 0


def _sleeper(request: RecordedRequest) -> Reply:
    """A model that wants one command, which takes long."""
    if any(message["role"] == "tool" for message in request.body["messages"]):
        return REASONED
    function = {"name": "terminal", "arguments": f'{{"command": "{SLEEP}"}}'}
    return chat_response(
        None, reasoning="Wait.", tool_calls=[{"id": "call_1", "type": "function", "function": function}]
    )


def _sleeping() -> bool:
    """Whether the command runs somewhere on this machine."""
    wanted = SLEEP.replace(" ", "\0").encode()
    return any(_command_line(path).startswith(wanted) for path in Path("/proc").glob("[0-9]*/cmdline"))


def _command_line(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    prompts(tmp_path)
    with SimulatedProcess(tmp_path, latency=0.2) as server:
        words = batch_words(tmp_path, base_url=server.base_url, num_workers=2, concurrency=2, seed=1)
        with Command(*words) as command:
            assert command.wait_until(lambda: server.count() >= 6)
            workers = command.workers()
            assert len(workers) == 2
            os.kill(workers[0], signal.SIGKILL)
            ended = command.wait(60)
        assert ended.code == 0
        assert "note: workers were lost in the middle of " in ended.err
        assert server.stats()["duplicates"] <= 2
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == ITEMS
