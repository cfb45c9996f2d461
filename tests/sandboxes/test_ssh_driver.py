"""Worlds on another machine, which is this one: a real sshd on loopback."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.protocol import SandboxLimits
from manyhands.sandboxes.remote.driver import FOLDER, RUN, ExecStream, World, WorldSpec
from manyhands.sandboxes.services.ssh.connections import SshTarget
from manyhands.sandboxes.services.ssh.driver import SshDriver, target_of
from manyhands.sandboxes.settings import SandboxSettings
from tests.support.ssh_servers import SshServer, ssh_server

LABELS = {RUN: "run.1.2.3.4", FOLDER: "/folder"}


@pytest.fixture(scope="module", params=["ordinary", pytest.param("own", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[SshServer]:
    ordinary = request.param == "ordinary" and os.geteuid() == 0
    with ssh_server(ordinary=ordinary) as server:
        yield server


@pytest.fixture
async def driver(server: SshServer) -> AsyncIterator[SshDriver]:
    driver = SshDriver(server.target)
    assert driver.unavailable() is None
    yield driver
    for each in await driver.listed({}):
        await (driver.delete_snapshot if each.snapshot else driver.delete)(each.id)
    assert await driver.listed({}) == []
    await driver.close()


class Said:
    """What a command wrote."""

    def __init__(self) -> None:
        self.output = b""
        self.errors = b""

    def out(self, data: bytes) -> None:
        self.output += data

    def err(self, data: bytes) -> None:
        self.errors += data


async def begun(driver: SshDriver, world: World, script: str, **variables: str) -> tuple[ExecStream, Said]:
    said = Said()
    stream = await driver.execute(
        world.id,
        ["sh", "-c", script],
        environment=variables,
        user=None,
        directory=None,
        output=said.out,
        errors=said.err,
    )
    return stream, said


async def ran(driver: SshDriver, world: World, script: str, **variables: str) -> str:
    stream, said = await begun(driver, world, script, **variables)
    await stream.close_input()
    assert await asyncio.wait_for(stream.wait(), 20) == 0, said.errors
    await stream.close()
    return said.output.decode()


def spec(name: str = "run-1-1", **more: object) -> WorldSpec:
    return WorldSpec(name, LABELS, None, **more)  # type: ignore[arg-type]


@asynccontextmanager
async def seen_commands() -> AsyncIterator[set[bytes]]:
    """The command lines of all processes of this machine that there were meanwhile."""
    seen: set[bytes] = set()

    async def look() -> None:
        while True:
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(entry.read_bytes())
                except OSError:
                    pass
            await asyncio.sleep(0.001)

    looking = asyncio.ensure_future(look())
    yield seen
    looking.cancel()


async def test_commands_and_their_values(driver: SshDriver) -> None:
    odd = 'it\'s "two"\nlines $HOME `x` \\ \t!'
    async with seen_commands() as seen:
        world = await driver.create(spec(environment={"ODD": odd, "SECRET": "in-the-world"}))
        stream, said = await begun(driver, world, 'printf %s "$ODD$MORE"; cat; echo bad >&2; exit 7', MORE="by-command")
        await stream.write(b"\x00\xff" * 100_000)
        await stream.close_input()
        assert await stream.wait() == 7
        assert said.output == (odd + "by-command").encode() + b"\x00\xff" * 100_000
        assert said.errors == b"bad\n"
    assert seen
    assert not [line for line in seen if b"in-the-world" in line or b"by-command" in line]
    assert await ran(driver, world, 'pwd; echo "$HOME"; ls -A ~') == f"{world.workspace}\n{world.workspace}\n"
    assert "SSH_" not in await ran(driver, world, "env")
    assert await ran(driver, world, "ulimit -t; ulimit -c") == "3600\n0\n"


async def test_two_worlds_share_no_folder(driver: SshDriver) -> None:
    """Not even those of two runs whose items have the same numbers."""
    one, other = [await driver.create(WorldSpec(f"w{run}", {**LABELS, RUN: run}, None)) for run in ("one", "other")]
    assert one.workspace != other.workspace
    await ran(driver, one, "echo mine >~/file; echo tmp >$TMPDIR/file")
    assert len((await ran(driver, one, "find ~ $TMPDIR -type f")).splitlines()) == 2
    assert await ran(driver, other, "find ~ $TMPDIR -type f") == ""


async def test_archives(driver: SshDriver) -> None:
    world = await driver.create(spec())
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("folder/a b")
        entry.size, entry.mode = 300_000, 0o751
        tar.addfile(entry, io.BytesIO(b"x" * 300_000))
    archive.seek(0)
    await driver.put(world.id, archive, world.workspace)
    assert await ran(driver, world, "stat -c '%a %s' folder/*") == "751 300000\n"
    back = io.BytesIO()
    await driver.get(world.id, f"{world.workspace}/folder", back, max_bytes=1 << 20)
    back.seek(0)
    with tarfile.open(fileobj=back) as tar:
        assert sorted(tar.getnames()) == ["folder", "folder/a b"]
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        await driver.get(world.id, "folder", io.BytesIO(), max_bytes=1000)
    with pytest.raises(FileNotFoundError):
        await driver.get(world.id, "nothing", io.BytesIO(), max_bytes=1000)
    with pytest.raises(FileNotFoundError):
        await driver.put(world.id, io.BytesIO(), "nothing")
    size = await driver.size(world.id)
    assert size is not None
    assert 300_000 <= size < 400_000


async def test_snapshots(driver: SshDriver) -> None:
    world = await driver.create(spec())
    await ran(driver, world, "mkdir d; echo 1 >d/f; ln -s f d/l; chmod 750 d; mkfifo p; chmod 400 d/f")
    before = await ran(driver, world, "find . ! -name . -printf '%p %M %l\\n' | sort; echo $PWD")
    snapshot = await driver.snapshot(world.id, {RUN: "run.1"})
    await ran(driver, world, "rm -rf d; echo more >new")
    assert [each.id for each in await driver.listed({RUN: ""}) if each.snapshot] == [snapshot]
    await driver.delete(world.id)
    again = await driver.create(WorldSpec("run-1-1", LABELS, snapshot))
    assert await ran(driver, again, "find . ! -name . -printf '%p %M %l\\n' | sort; echo $PWD") == before
    await driver.delete_snapshot(snapshot)
    await driver.delete(again.id)
    with pytest.raises(ItemError, match="gone") as caught:
        await driver.create(WorldSpec("run-1-1", LABELS, snapshot))
    assert caught.value.cause == Cause.SANDBOX_LOST


async def test_a_further_world_of_the_same_attempt(driver: SshDriver) -> None:
    """Its paths are the same, and the former one, whose process died before it could note that, is gone."""
    first = await driver.create(spec("first"))
    stream, _ = await begun(driver, first, "echo old >file; sleep 7711")
    second = await driver.create(spec("second"))
    assert second.workspace == first.workspace
    assert await stream.wait() is not None
    assert await ran(driver, second, "ls -A") == ""
    assert [each.id for each in await driver.listed({})] == ["second"]
    await driver.delete("first")
    assert await ran(driver, second, "ls -A; pwd") == f"{first.workspace}\n"
    with pytest.raises(ItemError, match="exists already"):
        await driver.create(spec("second"))


async def test_processes_end_with_their_world(driver: SshDriver, server: SshServer) -> None:
    world = await driver.create(spec())
    stream, _ = await begun(driver, world, "setsid env -i sleep 4711 & sleep 4712 & wait")
    listed = await driver.listed({RUN: "run.1.2.3.4", FOLDER: ""})
    assert [(each.id, each.running, each.labels) for each in listed] == [(world.id, True, LABELS)]
    assert await driver.listed({RUN: "run.2"}) == []
    await driver.stop(world.id)
    assert await stream.wait() is not None
    assert not running("sleep 471")
    assert [each.running for each in await driver.listed({})] == [False]
    assert await ran(driver, world, "echo again") == "again\n"


def running(words: str) -> list[str]:
    return subprocess.run(["pgrep", "-af", words], capture_output=True, text=True, check=False).stdout.splitlines()


OWNER = """
import asyncio, sys
from pathlib import Path
from manyhands.sandboxes.services.ssh.connections import SshTarget
from manyhands.sandboxes.services.ssh.driver import SshDriver
from manyhands.sandboxes.remote.driver import WorldSpec

async def main(user, port, config, folder):
    driver = SshDriver(SshTarget("127.0.0.1", user, int(port), config=Path(config), folder=folder))
    world = await driver.create(WorldSpec("owned-1-1", {"manyhands.run": "r", "manyhands.folder": "f"}, None))
    command = ["sh", "-c", "echo kept >file; setsid env -i sleep 5711 & sleep 5712 & echo ready; wait"]
    await driver.execute(world.id, command, environment={}, user=None, directory=None,
                         output=lambda data: print(data.decode(), flush=True), errors=print)
    await asyncio.sleep(100)

asyncio.run(main(*sys.argv[1:]))
"""


def started_owner(server: SshServer) -> subprocess.Popen[bytes]:
    words = [server.account, str(server.port), str(server.config), str(server.worlds)]
    return subprocess.Popen([sys.executable, "-c", OWNER, *words], stdout=subprocess.PIPE)


def break_connections(server: SshServer) -> None:
    subprocess.run(["pkill", "-KILL", "-f", f"ssh .*-M .*-p {server.port} "], check=True)


async def test_killed_owner(driver: SshDriver, server: SshServer) -> None:
    owner = started_owner(server)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    assert running("^sleep 571") != []
    owner.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    owner.wait()
    while running("^sleep 571"):
        assert time.monotonic() < killed + 5
        await asyncio.sleep(0.02)
    while running(f"-p {server.port} "):
        assert time.monotonic() < killed + 10
        await asyncio.sleep(0.05)
    await driver.start("owned-1-1")
    world = World("owned-1-1", "", "")
    assert await ran(driver, world, "cat file") == "kept\n"
    await driver.start("owned-1-1")
    with pytest.raises(ItemError, match="gone") as caught:
        await driver.start("never-1-1")
    assert caught.value.cause == Cause.SANDBOX_LOST
    with pytest.raises(ItemError, match="gone"):
        await begun(driver, World("never-1-1", "", ""), "true")


async def test_broken_connection(driver: SshDriver, server: SshServer) -> None:
    world = await driver.create(spec())
    stream, _ = await begun(driver, world, "echo kept >file; sleep 6711")
    while not running("^sleep 6711"):
        await asyncio.sleep(0.02)
    break_connections(server)
    assert await asyncio.wait_for(stream.wait(), 10) is None
    deadline = time.monotonic() + 5
    while running("^sleep 6711"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await driver.start(world.id)
    assert await ran(driver, world, "cat file") == "kept\n"


async def test_a_server_of_one_session_a_connection_is_named() -> None:
    with ssh_server(ordinary=os.geteuid() == 0, settings="MaxSessions 1") as server:
        driver = SshDriver(server.target)
        try:
            with pytest.raises(ItemError, match="takes one session a connection"):
                await driver.create(WorldSpec("one", {}, None))
        finally:
            await driver.close()


async def test_more_worlds_at_once_than_the_server_takes() -> None:
    settings = "MaxStartups 2:100:2\nMaxSessions 3"
    with ssh_server(ordinary=os.geteuid() == 0, settings=settings) as server:
        driver = SshDriver(server.target)
        try:
            worlds = await asyncio.gather(
                *(driver.create(WorldSpec(f"many-{number}", {}, None)) for number in range(12))
            )
            streams = await asyncio.gather(*(begun(driver, world, "echo $HOME; cat") for world in worlds))
            for stream, _ in streams:
                await stream.close_input()
                assert await stream.wait() == 0
            assert [said.output.decode().strip() for _, said in streams] == [world.workspace for world in worlds]
        finally:
            await driver.close()


async def test_what_an_item_can_not_have(driver: SshDriver, tmp_path: Path) -> None:
    refused = {
        "images": WorldSpec("a", LABELS, "busybox:1"),
        "project": spec("b", project=tmp_path),
        "network": spec("c", limits=SandboxLimits(network_allow=("example.com",))),
        "user": spec("d", user="somebody"),
        "no folder": spec("e", directory="/no/such"),
        "leads out": spec("f", directory="../x"),
        "name of a variable": spec("g", environment={"a-b": "x"}),
        "no name": spec("../h"),
    }
    for word, each in refused.items():
        with pytest.raises(ItemError, match=word) as caught:
            await driver.create(each)
        assert caught.value.cause == Cause.INVALID_INPUT
    assert await driver.listed({}) == []
    world = await driver.create(spec("good", directory="some/where"))
    assert await ran(driver, world, "pwd") == f"{world.workspace}/some/where\n"


def test_machines_that_can_not_be_used(server: SshServer, tmp_path: Path) -> None:
    strange = tmp_path / "strange"
    strange.write_text("UserKnownHostsFile /dev/null\nGlobalKnownHostsFile /dev/null\n")
    host, user = "127.0.0.1", server.account
    for target, word in (
        (target_of(SandboxSettings()), "needs --ssh_host"),
        (target_of(SandboxSettings(ssh_host=host, ssh_key="/no/such")), "there is no file /no/such"),
        (SshTarget("-oProxyCommand=touch x"), "no name of a machine"),
        (SshTarget(host, "-x"), "no name of an account"),
        (SshTarget(host, user, 1, config=server.config), "refused"),
        (SshTarget(host, user, server.port, config=strange), "Host key verification failed.*log in once by hand"),
        (SshTarget(host, "no-such-account", server.port, config=server.config), "Permission denied"),
    ):
        said = SshDriver(target).unavailable()
        assert said is not None
        assert "\n" not in said
        assert re.search(word, said), said
