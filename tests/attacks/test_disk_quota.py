"""What an agent can do with the disk: within its quota everything, over it little, far over it nothing."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import FAILURES, Cause
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.files.removing import clear_folder
from manyhands.sandboxes.files.walking import DiskUse, disk_use, filled_size
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxLimits, SandboxRequest

QUOTA = 10 << 20
LIMITS = SandboxLimits(disk=QUOTA, files=500, min_free=0)
FAR = DiskUse(1 << 40, 1 << 30)


@pytest.fixture(params=[BubblewrapBackend, LocalBackend])
def backend(request: pytest.FixtureRequest) -> SandboxBackend:
    made: SandboxBackend = request.param()
    return made


async def with_each(check: Callable[[SandboxBackend], Awaitable[None]]) -> None:
    """What waits for seconds is done with all backends at once."""
    await asyncio.gather(check(BubblewrapBackend()), check(LocalBackend()))


@asynccontextmanager
async def opened(backend: SandboxBackend, folder: Path, limits: SandboxLimits = LIMITS) -> AsyncIterator[Sandbox]:
    sandbox = await backend.create(SandboxRequest(folder, "quota", limits=limits))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def last_line(sandbox: Sandbox, command: str, timeout: float = 30) -> str:
    result = await sandbox.shell(command, timeout=timeout)
    return (result.output.decode().strip().splitlines() or [""])[-1]


async def test_over_the_quota_an_agent_is_told_and_can_remove_files(backend: SandboxBackend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "box") as sandbox:
        said = await last_line(sandbox, "head -c 9M /dev/zero >a; echo within")
        assert said == "within"
        asleep = f"sleep {secrets.randbelow(9000) + 1000}.{secrets.randbelow(9000) + 1000}"  # which nobody else does
        said = await last_line(sandbox, f"{asleep} & head -c 3M /dev/zero >b; echo over")
        assert said == "disk quota exceeded: 12.0 MiB of 10.0 MiB; remove files"
        assert await last_line(sandbox, "ls") == said, "it is still over it"
        assert await last_line(sandbox, f"rm b; ls; pgrep -fc '{asleep[:-1]}[{asleep[-1]}]'") == "0", (
            "all that ran was killed"
        )
        assert await last_line(sandbox, "echo fine") == "fine"


async def test_a_command_that_fills_the_disk_is_killed(backend: SandboxBackend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "box") as sandbox:
        result = await sandbox.shell("head -c 15M /dev/zero >a; sleep 50; echo never", timeout=60)
        assert result.exit_code == 137
        assert result.seconds < 40
        assert result.output.splitlines()[-1] == b"disk quota exceeded: 15.0 MiB of 10.0 MiB; remove files"
        assert b"never" not in result.output


async def test_a_program_that_fills_the_disk_says_so_once(backend: SandboxBackend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "box") as sandbox:
        fill = ["sh", "-c", "head -c 15M /dev/zero >a; echo done"]
        assert (await sandbox.run(fill, timeout=20)).output.startswith(b"done\ndisk quota exceeded: 15.0 MiB")
        assert (await sandbox.run(["echo", "x"], timeout=20)).output == b"x\n", "whoever reads this expects no more"
        assert await sandbox.read_file(f"{sandbox.workspace}/a", max_bytes=20 << 20) == bytes(15 << 20)


FILLS = {
    "one": "head -c 30M /dev/zero >a; sleep 30",
    "nameless": "exec 8>c; rm c; head -c 30M /dev/zero >&8; sleep 30",
    "files": "touch $(seq 1100); sleep 30",
    "folders": "mkdir $(seq 1100); sleep 30",
    "deep": "d=.; for i in $(seq 60); do d=$d/d; mkdir $d; head -c 500k /dev/zero >$d/f; done; sleep 30",
    "unreadable": "head -c 30M /dev/zero >.hidden; chmod 0 .hidden; sleep 30",
    "closed": "mkdir closed; head -c 30M /dev/zero >closed/f; chmod 0 closed; sleep 30",
    "late": "setsid sh -c 'sleep 1; head -c 30M /dev/zero >late; sleep 30' & sleep 30",
}


async def test_far_over_the_quota_the_item_fails_and_its_files_are_gone(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    """All ways of filling at once, each in a sandbox of its own, as each waits for a count."""
    async with asyncio.TaskGroup() as ways:
        for name, fill in FILLS.items():
            ways.create_task(_filled(backend, tmp_path / name, fill), name=name)
    assert not FAILURES[Cause.SANDBOX_LIMIT].retried


async def _filled(backend: SandboxBackend, folder: Path, fill: str) -> None:
    async with opened(backend, folder) as sandbox:
        for attempt in range(2):
            with pytest.raises(
                ItemError, match=r"^disk quota exceeded: (more than )?[\d.,]+ .*; its files were removed$"
            ) as caught:
                await sandbox.shell(fill if attempt == 0 else "echo again", timeout=60)
            assert caught.value.cause is Cause.SANDBOX_LIMIT
        async with asyncio.timeout(20):  # there is room for others while the sandbox is still open
            while list((folder / "workspace").iterdir()):
                await asyncio.sleep(0.05)
        with pytest.raises(ItemError, match="disk quota exceeded"):
            await sandbox.write_file("a", b"more")


async def test_going_over_the_quota_again_and_again_fails_the_item(backend: SandboxBackend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "box") as sandbox:
        for _ in range(2):
            assert "disk quota exceeded: 12.0 MiB" in await last_line(sandbox, "head -c 12M /dev/zero >a")
            assert await last_line(sandbox, "rm a; echo removed") == "removed"
        with pytest.raises(ItemError, match=r"12.0 MiB of 10.0 MiB \(found 3 times\)"):
            await sandbox.shell("head -c 12M /dev/zero >a", timeout=20)


async def test_growing_while_over_the_quota_counts_too(backend: SandboxBackend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "box") as sandbox:
        for size in ("11.0", "12.0"):
            said = await last_line(sandbox, f"head -c {11 if size == '11.0' else 1}M /dev/zero >>a")
            assert said == f"disk quota exceeded: {size} MiB of 10.0 MiB; remove files"
        with pytest.raises(ItemError, match=r"13.0 MiB of 10.0 MiB \(found 3 times\)"):
            await sandbox.shell("head -c 1M /dev/zero >>a", timeout=60)


async def test_what_takes_no_room_counts_for_nothing(backend: SandboxBackend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "box") as sandbox:
        said = await last_line(
            sandbox, "truncate -s 1G sparse; head -c 9M /dev/zero >a; for i in 1 2 3; do ln a $i; done; echo ok"
        )
        assert said == "ok"
        assert await last_line(sandbox, "ln -s / root; ln -s . here; ln -s /dev/zero z; ls | wc -l") == "8"


async def test_a_short_lived_excess_between_two_counts_is_no_excess(backend: SandboxBackend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "box") as sandbox:
        assert await last_line(sandbox, "head -c 15M /dev/zero >a; rm a; echo ok") == "ok"


async def test_one_sandbox_over_its_quota_is_no_other_ones_business(tmp_path: Path) -> None:
    async def none(backend: SandboxBackend) -> None:
        folder = tmp_path / type(backend).__name__
        async with opened(backend, folder / "1-1") as bad, opened(backend, folder / "2-1") as good:
            waiting = asyncio.ensure_future(good.shell("sleep 3; echo still here", timeout=30))
            with pytest.raises(ItemError):
                await bad.shell("head -c 40M /dev/zero >a; sleep 20", timeout=30)
            assert (await waiting).output == b"still here\n"

    await with_each(none)


async def test_temporary_files_count(tmp_path: Path) -> None:
    async with opened(BubblewrapBackend(), tmp_path / "box") as sandbox:
        with pytest.raises(ItemError, match="disk quota exceeded"):
            await sandbox.shell("head -c 30M /dev/zero >/tmp/a", timeout=20)
        assert not list((tmp_path / "box" / "tmp").iterdir())


async def test_nothing_of_a_sandbox_that_was_ended_is_gone_on_with(tmp_path: Path) -> None:
    async with opened(LocalBackend(), tmp_path / "box") as sandbox:
        await sandbox.begin_step("main/1")
        await sandbox.shell("export A=1", timeout=20)
        with pytest.raises(ItemError):
            await sandbox.shell("head -c 30M /dev/zero >a", timeout=20)
    async with opened(LocalBackend(), tmp_path / "box") as sandbox:
        assert sandbox.open_step is None
        assert await last_line(sandbox, "ls; echo A=$A") == "A="


async def test_device_nodes_can_not_be_made(tmp_path: Path) -> None:
    async with opened(BubblewrapBackend(), tmp_path / "box") as sandbox:
        assert await last_line(sandbox, "mknod sda b 8 0 2>/dev/null; mknod zero c 1 5 2>/dev/null; ls | wc -l") == "0"


# --- The count


def test_a_tree_that_changes_all_the_time_is_counted_or_called_uncounted(tmp_path: Path) -> None:
    deep = tmp_path / "/".join("d" * 50)
    deep.mkdir(parents=True)
    (tmp_path / "big").write_bytes(bytes(1 << 20))
    stopped = threading.Event()

    def move() -> None:
        while not stopped.is_set():
            os.rename(tmp_path / "d", tmp_path / "e")
            os.rename(tmp_path / "e", tmp_path / "d")

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for _ in range(50):
            use = disk_use([tmp_path], limit=FAR, seconds=5)
            assert use.size >= 1 << 20 or not use.whole
    finally:
        stopped.set()
        mover.join()
    assert disk_use([tmp_path], limit=FAR, seconds=5).entries == 51


def test_links_out_of_the_tree_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "big").write_bytes(bytes(5 << 20))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("../outside")
    use = disk_use([tmp_path / "tree"], limit=FAR, seconds=5)
    assert use.entries == 1
    assert use.size < 1 << 20


def test_a_folder_is_as_closed_after_the_count_as_before(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "file").write_bytes(bytes(5 << 20))
    (tmp_path / "closed").chmod(0)
    use = disk_use([tmp_path], limit=FAR, seconds=5)
    assert use.whole
    assert use.size >= 5 << 20
    assert stat.S_IMODE((tmp_path / "closed").stat().st_mode) == 0
    (tmp_path / "closed").chmod(0o700)


def test_deep_trees_need_few_descriptors_and_a_count_ends_at_its_bounds(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    assert disk_use([tmp_path], limit=FAR, seconds=30) == DiskUse(
        disk_use([tmp_path], limit=FAR, seconds=30).size, 3000, whole=True
    )
    stopped = disk_use([tmp_path], limit=DiskUse(1 << 40, 100), seconds=30)
    assert (stopped.entries, stopped.whole) == (101, False)
    began = time.monotonic()
    assert not disk_use([tmp_path], limit=FAR, seconds=0).whole
    assert time.monotonic() - began < 20
    clear_folder(tmp_path)


HIDDEN = """
import array, os, socket, sys, time
sender, receiver = socket.socketpair()
for number in range(3):
    file = os.open("f", os.O_CREAT | os.O_RDWR)
    os.unlink("f")
    os.write(file, b"x" * (6 << 20))
    sender.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])
    os.close(file)
    if sys.argv[1:]:
        receiver.recv(1)
time.sleep(30 if not sys.argv[1:] else 5)
print("never found")
"""


async def test_files_that_only_a_socket_holds(tmp_path: Path) -> None:
    async def found(backend: SandboxBackend) -> None:
        async with opened(backend, tmp_path / type(backend).__name__) as sandbox:
            result = await sandbox.run(["/usr/bin/python3", "-c", HIDDEN], timeout=40)
            assert result.exit_code == 137
            assert "never found" not in result.output.decode()
            assert await last_line(sandbox, "echo fine") == "fine"

    await with_each(found)


async def test_descriptors_may_be_sent(tmp_path: Path) -> None:
    async def received(backend: SandboxBackend) -> None:
        async with opened(backend, tmp_path / type(backend).__name__) as sandbox:
            result = await sandbox.run(["/usr/bin/python3", "-c", HIDDEN, "received"], timeout=40)
            assert result.output.decode().strip() == "never found"

    await with_each(received)


def test_what_would_be_in_a_snapshot_is_counted_by_descriptors(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.write_bytes(bytes(1 << 20))
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(tmp_path)
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 19)
    here = os.open(tree, os.O_RDONLY)
    for _ in range(50):  # deeper than any path can say
        os.mkdir("d" * 100, dir_fd=here)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("deep", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
    found = filled_size(tree, 20)
    assert found is not None
    assert 1 << 19 <= found < 1 << 20
    assert filled_size(tmp_path / "missing", 20) is None
