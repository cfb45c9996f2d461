"""However a command comes into a sandbox, it is as confined; and what it leaves behind ends with the sandbox."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError, ToolError
from tests.attacks.held_sandbox import PYTHON, HeldSandbox
from tests.attacks.outside import CANARY, Outside, key_in_the_environment, own_folder

CONFINED = "grep -E '^(NoNewPrivs|Seccomp|CapEff|CapPrm|CapAmb):' /proc/self/status | tr -d '\\t\\n'"
AS_CONFINED = b"CapPrm:0000000000000000CapEff:0000000000000000CapAmb:0000000000000000NoNewPrivs:1Seccomp:2"
DESCRIPTORS = """\
import os
for name in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        print(name, os.readlink("/proc/self/fd/" + name).split("[")[0])
    except OSError:
        pass
"""
WAYS = ("run", "shell", "shell beside", "spawn")


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with own_folder() as folder, key_in_the_environment(), Outside(folder / "outside") as outside:
        yield outside


@pytest.fixture
def box() -> Iterator[HeldSandbox]:
    with own_folder() as folder, HeldSandbox("bubblewrap", folder / "box") as sandbox:
        yield sandbox


def said(sandbox: HeldSandbox, way: str, command: str) -> bytes:
    """What a command prints that comes in by one of the ways."""
    if way == "run":
        return sandbox.wait(sandbox.sandbox.run(["sh", "-c", command], timeout=10)).output
    if way == "spawn":

        async def spawned() -> bytes:
            process = await sandbox.sandbox.spawn(command)
            await process.wait(10)
            return process.output()[0]

        return sandbox.wait(spawned())
    if way == "shell beside":

        async def beside() -> bytes:
            first = asyncio.ensure_future(sandbox.sandbox.shell("sleep 0.5", timeout=10))
            await asyncio.sleep(0.1)
            second = await sandbox.sandbox.shell(command, timeout=10)
            await first
            return second.output

        return sandbox.wait(beside())
    return sandbox.shell(command).output


@pytest.mark.parametrize("way", WAYS)
def test_every_command_is_confined(way: str, box: HeldSandbox) -> None:
    assert said(box, way, CONFINED) == AS_CONFINED


@pytest.mark.parametrize("way", WAYS)
def test_a_command_inherits_nothing_but_its_streams(way: str, box: HeldSandbox) -> None:
    """A command of the shell also has the pipes of the shell itself, which lead to whoever reads its own output and report."""
    box.wait(box.sandbox.write_file("show.py", DESCRIPTORS.encode()))
    lines = said(box, way, f"{PYTHON} -I show.py").decode().splitlines()
    found = {int(number): target for number, target in (line.split(" ", 1) for line in lines)}
    assert {0, 1, 2} <= found.keys()
    assert found.keys() == {0, 1, 2} or way.startswith("shell")
    assert {target for number, target in found.items() if number} == {"pipe:"}
    assert found[0] in ("pipe:", "/dev/null")


@pytest.mark.parametrize("way", WAYS)
def test_a_command_sees_no_key(way: str, box: HeldSandbox, outside: Outside) -> None:
    shown = said(box, way, "env; cat /proc/*/environ 2>/dev/null; cat /proc/*/cmdline 2>/dev/null")
    assert b"PATH=" in shown
    assert CANARY.encode() not in shown


def test_no_command_has_the_id_of_root(box: HeldSandbox) -> None:
    """As the host counts: commands as root have somebody else's id, those of an ordinary user their own."""
    number = f"{secrets.randbelow(9000) + 1000}.{secrets.randbelow(9000) + 1000}"
    box.wait(box.sandbox.spawn(f"sleep {number}"))
    assert until(lambda: process_of(number))
    status = Path(f"/proc/{process_of(number)}/status").read_text()
    users = {
        int(word) for line in status.splitlines() if line.startswith(("Uid:", "Gid:")) for word in line.split()[1:]
    }
    assert 0 not in users
    assert os.getuid() == 0 or users == {os.getuid()}


@pytest.mark.parametrize(
    "start",
    [
        "sleep {number} &",
        "setsid sleep {number} </dev/null >/dev/null 2>&1 &",
        "env -i setsid sh -c 'sleep {number} & exit' &",
        "(setsid nohup env -i sleep {number} &) &",
        "python3 -c 'import os; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0);"
        ' os.execlp("sleep", "sleep", "{number}")\'',
    ],
)
def test_what_a_command_leaves_behind_ends_with_the_sandbox(start: str) -> None:
    number = f"{secrets.randbelow(9000) + 1000}.{secrets.randbelow(9000) + 1000}"
    with own_folder() as folder, HeldSandbox("bubblewrap", folder / "box") as sandbox:
        sandbox.shell(start.format(number=number))
        assert until(lambda: process_of(number))
    assert until(lambda: not process_of(number)), "a process outlived its sandbox"


def test_files_are_read_and_written_inside_only(box: HeldSandbox, outside: Outside) -> None:
    """By ``..``, by links that stand still, and by links that are put in a file's place meanwhile."""
    target = outside.files[0]
    before = outside.state()
    box.shell(f"ln -s {target} link; ln -s {Path(target).parent} folder; ln -s / root")
    up = "../" * 12
    ways = (target, f"{up}{target[1:]}", "link", "folder/secret", f"root{target}", f"/proc/1/root{target}")
    for path in (*ways, f"/tmp/{up}{target}"):
        with suppress(ToolError):
            assert box.wait(box.sandbox.read_file(path)) == b"overwritten"  # by a way before, at that path inside
        with suppress(ToolError, ItemError):
            box.wait(box.sandbox.write_file(path, b"overwritten"))
        assert outside.state() == before
    link = f"ln -sfn {Path(target).parent} swap; rm swap"
    swap = f"while :; do {link}; mkdir swap; echo mine > swap/secret; rm -r swap; done"
    box.wait(box.sandbox.spawn(swap))
    for _ in range(150):
        with suppress(ToolError):
            assert CANARY.encode() not in box.wait(box.sandbox.read_file("swap/secret"))
        with suppress(ToolError):
            box.wait(box.sandbox.write_file("swap/secret", b"overwritten"))
    assert outside.state() == before


def test_a_neighbour_is_not_seen() -> None:
    """Two sandboxes of one run share neither files nor processes nor ports."""
    with (
        own_folder() as folder,
        HeldSandbox("bubblewrap", folder / "one") as one,
        HeldSandbox("bubblewrap", folder / "two") as two,
    ):
        number = f"{secrets.randbelow(9000) + 1000}.{secrets.randbelow(9000) + 1000}"
        one.shell(f"echo {CANARY} | tee secret /tmp/secret /dev/shm/secret; sleep {number} &")
        one.shell("python3 -m http.server 8123 >/dev/null 2>&1 &")
        looked = two.shell(
            "cat secret /tmp/secret /dev/shm/secret; ls -la / /tmp /workspace /dev/shm; ps aux || cat /proc/*/cmdline;"
            f" ls {folder}; cat {folder}/one/workspace/secret; curl -sm2 127.0.0.1:8123/secret"
        ).output
        assert CANARY.encode() not in looked
        assert number.encode() not in looked


def until(condition: Callable[[], object]) -> bool:
    """Whether something comes to hold within some seconds."""
    end = time.monotonic() + 20.0
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def process_of(number: str) -> int | None:
    """The process that sleeps for so long, which nobody else does."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{name}/cmdline").read_bytes() == f"sleep\0{number}\0".encode():
                return int(name)
    return None
