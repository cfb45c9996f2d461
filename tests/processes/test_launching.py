"""Commands are launched by a process of its own: how it finds programs, and what happens when there is much to launch or it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.commands import CommandEnd, CommandRunner
from manyhands.processes.strays import process_mark, started
from manyhands.processes.templates import MAX_ARGUMENT


@pytest.fixture
async def runner(tmp_path: Path) -> AsyncIterator[CommandRunner]:
    environ = {"PATH": f"{tmp_path}/none:{tmp_path}:{os.environ['PATH']}", "WORD": os.fsdecode(b"\xff\xc3\xa9")}
    async with CommandRunner.opened(process_mark(secrets.token_hex(8)), environ) as made:
        yield made


async def run(runner: CommandRunner, *words: str, folder: Path, input: bytes = b"") -> CommandEnd:
    return await runner.run(words, folder=folder, additions={}, input=input, timeout=20.0)


def script(path: Path, text: str, mode: int = 0o755) -> None:
    path.write_text(text)
    path.chmod(mode)


async def test_a_script_that_names_no_interpreter_is_run_by_the_shell(runner: CommandRunner, tmp_path: Path) -> None:
    script(tmp_path / "plain", 'echo "$0 $1"; exit 3\n')
    end = await run(runner, "plain", "a b", folder=Path("/"))
    assert (end.exit_code, end.output.decode()) == (3, f"{tmp_path}/plain a b\n")


@pytest.mark.parametrize(
    ("mode", "interpreter", "reason"),
    [(0o644, "/bin/sh", "No such file"), (0o755, "/no/such/program", "No such file")],
)
async def test_what_can_not_be_run_is_said(
    runner: CommandRunner, tmp_path: Path, mode: int, interpreter: str, reason: str
) -> None:
    script(tmp_path / "broken", f"#!{interpreter}\n", mode)
    with pytest.raises(ItemError, match=rf"^broken can't be started: {reason}") as caught:
        await run(runner, "broken", folder=tmp_path)
    assert caught.value.cause is Cause.WORKER_ERROR
    assert (await run(runner, "true", folder=tmp_path)).exit_code == 0


async def test_a_folder_that_is_gone_is_said(runner: CommandRunner, tmp_path: Path) -> None:
    with pytest.raises(ItemError, match=r"^true can't be started: No such file"):
        await run(runner, "true", folder=tmp_path / "gone")


async def test_what_is_no_text_reaches_a_command_as_it_is(runner: CommandRunner, tmp_path: Path) -> None:
    end = await run(runner, "sh", "-c", 'printf %s "$1$WORD"', "sh", os.fsdecode(b"\xfe"), folder=tmp_path)
    assert end.output == b"\xfe\xff\xc3\xa9"


async def test_signals_that_the_launcher_ignores_end_a_command(runner: CommandRunner, tmp_path: Path) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        end = await run(runner, "sh", "-c", f"kill -{number.value} $$; sleep 20", folder=tmp_path)
        assert end.exit_code == 128 + number


async def test_more_is_ordered_at_once_than_a_socket_takes(runner: CommandRunner, tmp_path: Path) -> None:
    """Each command has its own streams nevertheless."""
    words = ["x" * (MAX_ARGUMENT - 1)] * 8
    line = 'read -r word; echo "$word $#"'
    runs = [
        run(runner, "sh", "-c", line, "sh", *words, folder=tmp_path, input=b"%d\n" % number) for number in range(20)
    ]
    ends = await asyncio.gather(*runs)
    assert [end.output for end in ends] == [b"%d 8\n" % number for number in range(20)]


async def test_a_command_that_kills_the_launcher_ends_alone(runner: CommandRunner, tmp_path: Path) -> None:
    line = "setsid sleep 97 >/dev/null 2>&1 & echo $!; sleep 0.2; kill -KILL $PPID; sleep 97"
    end = await run(runner, "sh", "-c", line, folder=tmp_path)
    assert end.exit_code == 128 + signal.SIGKILL
    assert started(int(end.output)) is None
    assert (await run(runner, "echo", "on", folder=tmp_path)).output == b"on\n"


async def test_what_stays_in_the_session_of_a_command_that_kills_the_launcher_ends(
    runner: CommandRunner, tmp_path: Path
) -> None:
    line = "exec env -i prlimit --rttime=1000:1000 sh -c 'sleep 0.2; kill -KILL $PPID; echo $$; exec sleep 96'"
    end = await run(runner, "sh", "-c", line, folder=tmp_path)
    assert end.exit_code == 128 + signal.SIGKILL
    assert not [words for words in command_lines() if words == ["sleep", "96"]]


async def test_a_command_that_stops_the_launcher_delays_others_by_seconds_only(
    runner: CommandRunner, tmp_path: Path
) -> None:
    other = asyncio.create_task(run(runner, "sh", "-c", "sleep 1; echo fine", folder=tmp_path))
    await asyncio.sleep(0.3)
    await run(runner, "sh", "-c", "kill -STOP $PPID", folder=tmp_path)
    end = await other
    assert (end.exit_code, end.output) == (0, b"fine\n")


async def test_a_command_that_lowers_the_launcher_s_limit_is_the_last_that_is_launched(
    runner: CommandRunner, tmp_path: Path
) -> None:
    other = asyncio.create_task(run(runner, "sh", "-c", "sleep 1; echo fine", folder=tmp_path))
    await asyncio.sleep(0.3)
    await run(runner, "sh", "-c", "prlimit --pid $PPID --rttime=5:5", folder=tmp_path)
    with pytest.raises(ItemError, match="Operation not permitted"):
        await run(runner, "true", folder=tmp_path)
    assert (await other).output == b"fine\n"


OWNER = """
import asyncio, os, sys, threading, time
from pathlib import Path
from manyhands.processes.commands import CommandRunner
from manyhands.processes.strays import process_mark

async def main():
    async with CommandRunner.opened(process_mark(sys.argv[1]), dict(os.environ)) as runner:
        await asyncio.sleep(0.2)
        kill = lambda: (time.sleep(float(sys.argv[2])), os.kill(os.getpid(), 9))
        threading.Thread(target=kill, daemon=True).start()
        await (await runner.start(["sleep", sys.argv[3]], folder=Path("/"), additions={})).wait()

asyncio.run(main())
"""


def command_lines() -> list[list[str]]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(process.read_text(errors="replace").rstrip("\0").split("\0"))
    return found


@pytest.mark.parametrize("delay", [0.003, 0.02, 0.035])
def test_nothing_is_launched_for_an_owner_that_was_killed(delay: float) -> None:
    seconds = f"97.{secrets.randbelow(10**9)}"
    subprocess.run([sys.executable, "-c", OWNER, secrets.token_hex(8), str(delay), seconds], check=False, timeout=60)
    until = time.monotonic() + 10.0
    time.sleep(1.0)
    while ["sleep", seconds] in command_lines() and time.monotonic() < until:
        time.sleep(0.2)
    assert ["sleep", seconds] not in command_lines()


async def test_a_start_that_is_cancelled_leaves_nothing(runner: CommandRunner, tmp_path: Path) -> None:
    for pauses in range(6):
        seconds = f"97.{secrets.randbelow(10**9)}"
        start = runner.start(["sleep", seconds], folder=tmp_path, additions={})
        starting = asyncio.create_task(start)
        for _ in range(pauses):
            await asyncio.sleep(0.002)
        starting.cancel()
        try:
            await (await starting).close()
        except asyncio.CancelledError:
            pass
        await asyncio.sleep(0.3)
        assert ["sleep", seconds] not in command_lines()


async def test_a_command_has_no_files_open_but_its_streams(runner: CommandRunner, tmp_path: Path) -> None:
    line = "n=0; while [ $n -lt 40 ]; do [ ! -e /proc/$$/fd/$n ] || echo $n; n=$((n + 1)); done"
    assert (await run(runner, "bash", "-c", line, folder=tmp_path)).output == b"0\n1\n2\n"
