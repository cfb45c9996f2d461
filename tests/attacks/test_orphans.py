"""Processes that leave their session, their parents and their environment end with what started them, also without control groups."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.processes.commands import CommandRunner
from manyhands.processes.scripts import Scripts
from manyhands.processes.strays import Tags, kill_left, process_table, tagged_words
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import SandboxRequest
from manyhands.workloads.memory.agents.connections import ProgramConnection

DAEMON = """\
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
os.closerange(0, 100)
os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], {})
"""
"""A daemon by the book, and with an empty environment."""
WAYS = {
    "env -i setsid": "env -i setsid sleep 600.{word} </dev/null >/dev/null 2>&1 &",
    "setsid -f": "env -i setsid -f sleep 600.{word} </dev/null >/dev/null 2>&1",
    "nohup": "nohup env -i sh -c 'setsid sleep 600.{word} & exit' </dev/null >/dev/null 2>&1",
    "daemon": "{python} daemon.py {word}",
    "a daemon's daemon": "env -i setsid sh -c '(setsid sh -c \"exec sleep 600.{word}\" &) & sleep 0.1' </dev/null >/dev/null 2>&1",
}


@pytest.fixture
def word() -> str:
    """In the command line of the process that must end, and of no other."""
    return str(1_000_000_000 + secrets.randbelow(1_000_000_000))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path, word: str) -> str:
    """A shell's command line that starts such a process."""
    (tmp_path / "daemon.py").write_text(DAEMON)
    line: str = WAYS[request.param].format(word=word, python=sys.executable)
    return f"cd {tmp_path}; {line}"


def alive(word: str) -> list[int]:
    found = []
    for pid, line in process_table().items():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        sleeps = command.startswith(b"sleep") or b"time.sleep(600)" in command
        if sleeps and word.encode() in command and line.state not in "ZX":
            found.append(pid)
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


async def test_a_local_sandbox_leaves_nothing(tmp_path: Path, way: str, word: str) -> None:
    backend, others = LocalBackend(control_groups=False), str(secrets.randbelow(1_000_000_000))
    sandbox = await backend.create(SandboxRequest(tmp_path / "box", "orphans"))
    other = await backend.create(SandboxRequest(tmp_path / "other", "orphans"))
    try:
        await other.shell(f"env -i setsid -f sleep 601.{others} </dev/null >/dev/null 2>&1", timeout=20)
        await sandbox.shell(way, timeout=20)
        await until(lambda: bool(alive(word)))
        await sandbox.close()
        assert not alive(word)
        assert len(alive(f"601.{others}")) == 1, "those of other sandboxes go on"
    finally:
        await sandbox.close()
        await other.close()
    assert not alive(f"601.{others}")


async def test_a_worker_command_leaves_nothing(tmp_path: Path, way: str, word: str) -> None:
    async with CommandRunner.opened("orphans", dict(os.environ)) as runner:
        end = await runner.run(["sh", "-c", f"{way}\nsleep 0.5"], folder=tmp_path, additions={}, timeout=20)
        assert end.exit_code == 0
        assert not await asyncio.to_thread(alive, word)


async def test_a_graders_script_leaves_nothing(tmp_path: Path, word: str) -> None:
    script = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        {_exec(word)}\n    os._exit(0)\ntime.sleep(0.5)\n"
    )
    (tmp_path / "grader.py").write_text(script)
    async with Scripts.opened("orphans", dict(os.environ)) as scripts:
        for command in (["python3", "grader.py"], "true; python3 grader.py"):
            await scripts.run(command, b"", folder=tmp_path, seconds=20, environment={})
        await until(lambda: bool(alive(word)))
    assert not await asyncio.to_thread(alive, word)


async def test_an_agent_of_the_memory_benchmark_leaves_nothing(tmp_path: Path, way: str, word: str) -> None:
    (tmp_path / "agent.sh").write_text(f"{way}\nwhile read line; do echo '{{}}'; done\n")
    line = ProgramConnection(
        ["sh", str(tmp_path / "agent.sh")],
        folder=tmp_path,
        mark="orphans",
        seconds=20,
        errors=tmp_path / "errors",
        started_at=0.0,
    )
    await line.open()
    await line.send({"type": "message"})
    await until(lambda: bool(alive(word)))
    await line.close()
    assert not await asyncio.to_thread(alive, word)


@pytest.mark.parametrize("control_groups", [False, True])
async def test_a_killed_owner_leaves_nothing(tmp_path: Path, way: str, word: str, control_groups: bool) -> None:
    owner = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from manyhands.sandboxes.local import LocalBackend\nfrom manyhands.sandboxes.protocol import SandboxRequest\n"
        "async def main():\n"
        f"    backend = LocalBackend(control_groups={control_groups})\n"
        "    sandbox = await backend.create(SandboxRequest(Path(sys.argv[1]), 'orphans'))\n"
        "    await sandbox.shell(sys.argv[2], timeout=20)\n"
        "    print('ready', flush=True)\n    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        owner,
        str(tmp_path / "box"),
        way,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 30) == b"ready\n"
    await until(lambda: bool(alive(word)))
    process.kill()
    await process.wait()
    await until(lambda: not alive(word))


async def test_tags_of_one_family_do_not_touch_another(tmp_path: Path) -> None:
    ours, theirs = Tags(), Tags()
    tags = [ours.new(), ours.new(), theirs.new()]
    processes = []
    for tag in tags:
        words = tagged_words(["sleep", "600"], tag, os.environ, tmp_path)
        processes.append(await asyncio.create_subprocess_exec(*words))
    await asyncio.sleep(0.2)
    try:
        assert kill_left({"no mark of theirs": tags[0]}) == 1
        assert ours.kill_all() == 1
        assert await processes[0].wait() == await processes[1].wait() == -9
        assert processes[2].returncode is None
        assert kill_left({"no mark of theirs": None}) == 0
    finally:
        processes[2].kill()
        await processes[2].wait()


def _exec(word: str) -> str:
    return f"os.execve('/bin/sleep', ['sleep', '600.{word}'], {{}})"
