"""Processes of sandboxes are killed from outside while the run goes on: no recorded model call is made again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from manyhands.processes.strays import process_mark
from manyhands.processes.system import children
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest
from tests.support.commands import (
    Command,
    SimulatedProcess,
    batch_words,
    ledger,
    trajectories,
    write_prompts,
)

ITEMS = 8
KINDS = ("bwrap", "nsenter", "bash", "sh", "cat", "setpriv")


def below(pid: int) -> list[int]:
    """All descendants of a process, parents first."""
    found = [pid]
    for parent in found:
        found += children(parent)
    return found[1:]


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


@pytest.mark.parametrize("executor", [pytest.param("local", marks=pytest.mark.slow), "processes"])
def test_random_processes_of_sandboxes(tmp_path: Path, executor: str) -> None:
    chance, kills = random.Random(executor), 0
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number} [simulate: tools=4]" for number in range(ITEMS)))
    with SimulatedProcess(tmp_path, latency=0.1) as server:
        words = batch_words(tmp_path, base_url=server.base_url, executor=executor, num_workers=1, concurrency=4)
        with Command(*words) as command:
            assert command.wait_until(server.count)  # before, it looks whether bubblewrap can be used
            while command.running:
                victims = [pid for pid in below(command.process.pid) if name_of(pid) in KINDS]
                if victims:
                    with suppress(ProcessLookupError):
                        os.kill(chance.choice(victims), signal.SIGKILL)
                        kills += 1
                time.sleep(0.1)
            ended = command.wait()
        counts = server.stats()
    assert ended.code == 0, ended
    assert kills > 5
    assert counts["duplicates"] == 0, f"paid twice after {kills} kills: {counts}"
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == ITEMS


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    made = await BubblewrapBackend().create(SandboxRequest(tmp_path / "box", process_mark("killed")))
    try:
        yield made
    finally:
        await made.close()


def kill_anchor() -> None:
    for pid in reversed(below(os.getpid())):
        if name_of(pid) == "bwrap":
            os.kill(pid, signal.SIGKILL)


async def test_between_two_commands(sandbox: Sandbox) -> None:
    await sandbox.shell("cd /tmp; word=kept; echo old >/workspace/file", timeout=20)
    kill_anchor()
    await asyncio.sleep(0.5)
    result = await sandbox.shell("echo $PWD $word; cat /workspace/file", timeout=20)
    assert (result.exit_code, result.output) == (0, b"/tmp kept\nold\n")


async def test_during_a_command(sandbox: Sandbox) -> None:
    for command in (
        sandbox.shell("echo begun; sleep 30", timeout=60),
        sandbox.run(["sh", "-c", "echo begun; sleep 30"], timeout=60),
    ):
        running = asyncio.ensure_future(command)
        await asyncio.sleep(1.0)
        kill_anchor()
        result = await asyncio.wait_for(running, 20)
        assert result.exit_code == 137
        assert b"begun" in result.output
        assert b"All processes of the sandbox were killed" in result.output
        assert (await sandbox.run(["echo", "on"], timeout=20)).output == b"on\n"


async def test_while_it_starts(tmp_path: Path) -> None:
    """One that is killed before it has said anything is started again."""

    async def kill_first() -> None:
        while not any(name_of(pid) == "bwrap" for pid in below(os.getpid())):
            await asyncio.sleep(0)
        kill_anchor()

    killer = asyncio.ensure_future(kill_first())
    made = await BubblewrapBackend().create(SandboxRequest(tmp_path / "box", process_mark("killed")))
    try:
        await asyncio.wait_for(killer, 20)
        assert (await made.run(["echo", "on"], timeout=20)).output == b"on\n"
    finally:
        await made.close()


async def test_a_command_that_fails_says_nothing_of_that(sandbox: Sandbox) -> None:
    for result in (await sandbox.shell("false", timeout=20), await sandbox.run(["false"], timeout=20)):
        assert (result.exit_code, result.output) == (1, b"")
