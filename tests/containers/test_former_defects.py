"""What containers of agents are known to go wrong with elsewhere, and must not here."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.containers.client import EngineClient
from manyhands.sandboxes.containers.driver import ContainerDriver
from manyhands.sandboxes.containers.images import EngineImages
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.sandboxes.remote.driver import RUN, WorldSpec
from manyhands.sandboxes.remote.kept import discard_world, read_world
from tests.support.engines import Engine


@pytest.fixture(scope="module", params=["docker", pytest.param("podman", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(f"{request.param}_engine")
    return found


@dataclass
class Made:
    """A backend over an engine, and a folder for its sandboxes."""

    backend: RemoteBackend
    driver: ContainerDriver
    engine: Engine
    folder: Path
    run: str

    def request(self, name: str = "item", image: str | None = None, **more: Any) -> SandboxRequest:
        return SandboxRequest(
            self.folder / name, self.run, name=f"{self.run}-{name}", image=image or self.engine.full, **more
        )

    async def sandbox(self, name: str = "item", image: str | None = None, **more: Any) -> Sandbox:
        return await self.backend.create(self.request(name, image, **more))


@pytest_asyncio.fixture
async def made(engine: Engine, tmp_path: Path) -> AsyncIterator[Made]:
    driver = ContainerDriver(engine.kind, engine.host)
    found = Made(RemoteBackend(driver), driver, engine, tmp_path, f"defects{secrets.token_hex(5)}")
    yield found
    for each in await driver.listed({RUN: found.run}):
        await (driver.delete_snapshot(each.id) if each.snapshot else driver.delete(each.id))
    await driver.close()


async def _shell(sandbox: Sandbox, command: str, timeout: float = 20) -> str:
    result = await sandbox.shell(command, timeout=timeout)
    assert result.exit_code == 0, result
    return result.output.decode()


async def test_items_of_the_same_number_share_no_file(made: Made) -> None:
    places = "/root/left /workspace/left /tmp/left /home/tester/left"
    first = await made.sandbox("run-1/item-7")
    await _shell(first, f"touch {places}")
    second = await made.sandbox("run-2/item-7")
    assert await _shell(second, f"ls {places} 2>/dev/null; true") == ""
    await first.close()
    await second.close()
    third = await made.sandbox("run-3/item-7")
    assert await _shell(third, f"ls {places} 2>/dev/null; true") == ""
    await third.close()


async def test_nothing_lies_over_the_folders_of_the_image(made: Made) -> None:
    sandbox = await made.sandbox()
    assert await _shell(sandbox, "cat /home/tester/kept /root//.bashrc") == "of the image\nexport FROM_BASHRC=yes\n"
    mounts = await _shell(sandbox, "cut -d' ' -f2 /proc/mounts")
    assert {"/root", "/home", "/tmp", "/workspace", "/var/tmp", "/run"}.isdisjoint(mounts.split())
    await sandbox.close()


async def test_a_time_limit_ends_the_whole_tree(made: Made) -> None:
    sandbox = await made.sandbox()
    result = await sandbox.shell(
        "sleep 301 & (setsid sleep 302 &) ; sh -c 'trap \"\" TERM; sleep 303; sleep 304'", timeout=1
    )
    assert result.timed_out
    assert await _shell(sandbox, "sleep 0.5; ps -eo args | grep -E '^sleep 30[34]' || echo none") == "none\n"
    for _ in range(5):
        assert (await sandbox.run(["sh", "-c", "sleep 305 & setsid sleep 306 & sleep 307"], timeout=0.5)).timed_out
    assert await _shell(sandbox, "ps -eo args | grep -E '^sleep 30[567]' || date >/dev/null && echo none") == "none\n"
    await sandbox.close()


async def test_containers_do_not_pile_up(made: Made) -> None:
    spec = WorldSpec(f"m-{made.run}", {RUN: made.run}, made.engine.full)
    world = await made.driver.create(spec)
    with pytest.raises(ItemError):
        await made.driver.create(WorldSpec(f"x-{made.run}", {RUN: made.run}, made.engine.full, directory="/not/there"))
    with pytest.raises(ItemError):
        await made.driver.create(WorldSpec(f"y-{made.run}", {RUN: made.run}, made.engine.full, user="not-there"))
    assert [each.id for each in await made.driver.listed({RUN: made.run})] == [world.id]
    made.engine.client("create", "--label", f"{RUN}={made.run}", "--network", "none", made.engine.bare, "sh")
    for each in await made.driver.listed({RUN: made.run}):
        await made.driver.delete(each.id)
    assert made.engine.client("ps", "-aq", "--filter", f"label={RUN}={made.run}") == ""


async def test_a_container_that_is_gone_is_a_lost_sandbox_and_no_output(made: Made) -> None:
    sandbox = await made.sandbox()
    await _shell(sandbox, "true")
    (world,) = await made.driver.listed({RUN: made.run})
    made.engine.client("rm", "-f", world.id)
    for call in (
        sandbox.shell("date", timeout=10),
        sandbox.run(["date"], timeout=10),
        sandbox.read_file("/etc/passwd"),
    ):
        with pytest.raises(ItemError) as caught:
            await call
        assert caught.value.cause is Cause.SANDBOX_LOST
    await sandbox.close()


async def test_package_managers_and_su_can_change_users(made: Made) -> None:
    sandbox = await made.sandbox()
    code = (
        "import os; os.chown('file', 1000, 1000); os.setgroups([]); os.setgid(1000); os.setuid(1000); "
        "print(os.getuid(), os.stat('file').st_uid)"
    )
    assert (
        await _shell(sandbox, f'touch file; python3 -c "{code}"; setpriv --reuid 1000 --clear-groups id -u')
        == "1000 1000\n1000\n"
    )
    assert (await sandbox.run(["mount", "-t", "tmpfs", "x", "/tmp"], timeout=10)).exit_code != 0
    await sandbox.close()


@pytest.mark.slow
async def test_limits_that_can_not_be_enforced_are_named(rootless_podman_engine: Engine) -> None:
    driver = ContainerDriver("podman", rootless_podman_engine.host)
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        assert set(await driver.unenforced()) == {"memory", "processes", "cpus"}
    await driver.close()


async def test_many_that_wait_for_an_image_share_one_pull(made: Made) -> None:
    if made.engine.kind != "docker":  # whose events tell
        return
    container = made.engine.client("create", "--network", "none", made.engine.bare, "sh").strip()
    reference = made.engine.pushed(f"pulled-{made.run}:1", made.engine.client("commit", container).strip())
    made.engine.client("rm", container)
    images = EngineImages(EngineClient("docker", made.engine.host))
    found = await images.find(reference)
    assert found is not None
    began = time.time() - 1
    await asyncio.gather(*(images.pull(found, lambda progress: None) for _ in range(16)))
    filters = ("--filter", "type=image", "--filter", "event=pull")
    said = made.engine.client("events", "--since", f"{began:.3f}", "--until", f"{time.time() + 0.1:.3f}", *filters)
    assert len([line for line in said.splitlines() if reference.removesuffix(":1") in line]) == 1
    await images.remove(found.pin)
    await images.close()


async def test_the_path_is_the_images_own(made: Made) -> None:
    sandbox = await made.sandbox()
    assert (
        await _shell(sandbox, "own-tool; echo $PATH")
        == f"own\n{(await sandbox.run(['printenv', 'PATH'], timeout=10)).output.decode()}"
    )
    assert (await sandbox.run(["own-tool"], timeout=10)).output == b"own\n"
    await sandbox.close()


async def test_an_image_without_bash_serves(made: Made) -> None:
    sandbox = await made.sandbox(image=made.engine.bare)
    await _shell(sandbox, "mkdir sub; cd sub; export KEPT=yes")
    assert await _shell(sandbox, "pwd; echo $KEPT; command -v bash || echo none") == "/workspace/sub\nyes\nnone\n"
    await sandbox.write_file("file", b"written")
    assert await sandbox.read_file("/workspace/file") == b"written"
    await sandbox.close()


async def test_output_that_is_no_text_harms_nothing(made: Made) -> None:
    sandbox = await made.sandbox()
    result = await sandbox.shell(
        "printf '\\377\\376\\000\\200'; head -c 300000 /dev/urandom | od -v -An -tx1 >/dev/null", timeout=20
    )
    assert result.output == b"\xff\xfe\x00\x80"
    flood = await sandbox.shell("head -c 5000000 /dev/urandom", timeout=30, max_output=1000)
    assert flood.omitted >= 4_900_000
    assert await _shell(sandbox, "echo goes on") == "goes on\n"
    await sandbox.close()


async def test_an_engine_that_is_gone_is_said_at_once(tmp_path: Path, made: Made) -> None:
    driver = ContainerDriver(made.engine.kind, f"unix://{tmp_path}/none.sock")
    assert "does not answer" in (driver.unavailable() or "")
    began = time.monotonic()
    with pytest.raises(ItemError) as caught:
        await driver.create(WorldSpec("x", {}, made.engine.full))
    assert caught.value.cause is Cause.SANDBOX_LOST
    assert time.monotonic() - began < 5
    await driver.close()


async def test_shared_memory_is_large_enough_for_browsers(made: Made) -> None:
    sandbox = await made.sandbox()
    assert int(await _shell(sandbox, "df -k --output=size /dev/shm | tail -1")) == (256 << 20) // 1024
    await sandbox.close()


async def test_values_of_variables_are_in_no_command_line(made: Made) -> None:
    secret = f"secret-{secrets.token_hex(12)}"
    seen: set[str] = set()
    ended = asyncio.Event()

    async def watch() -> None:
        while not ended.is_set():
            seen.update(await asyncio.to_thread(_command_lines, secret))

    watching = asyncio.create_task(watch())
    sandbox = await made.sandbox(environment={"TOKEN": secret})
    assert await _shell(sandbox, "printenv TOKEN; sleep 0.3") == f"{secret}\n"
    assert (
        await sandbox.run(["printenv", "OTHER"], timeout=10, environment={"OTHER": secret})
    ).output.decode() == f"{secret}\n"
    await sandbox.close()
    ended.set()
    await watching
    assert seen == set()


def _command_lines(word: str) -> set[str]:
    """The command lines on this machine that hold a word."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if word.encode() in line:
            found.add(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


async def test_checkpoints_of_both_kinds_follow_each_other(made: Made, tmp_path: Path) -> None:
    """A copy of the container's own layer where that can be had, else a snapshot at the engine."""

    async def step(sandbox: Sandbox, address: str, command: str) -> tuple[bool, bool]:
        await sandbox.begin_step(address)
        await _shell(sandbox, command)
        await sandbox.end_step()
        await sandbox.begin_step(f"{address}/next")
        kept = read_world(made.folder / "item")
        assert kept is not None
        return kept.copy is not None, kept.snapshot is not None

    async def torn(sandbox: Sandbox, address: str, command: str) -> Sandbox:
        """The sandbox after its next step was cut off."""
        await _shell(sandbox, command)
        await sandbox.close()
        again = await made.sandbox()
        assert await again.reattach(False, f"{address}/next")
        return again

    deep = "/".join("d" * 70)
    kinds = (True, False) if os.geteuid() == 0 else (False, True)
    sandbox = await made.sandbox()
    assert await step(sandbox, "1", "echo 1 >/root/n; rm /home/tester/kept") == kinds
    sandbox = await torn(sandbox, "1", "rm /root/n; touch /home/tester/kept")
    assert await _shell(sandbox, "cat /root/n; test ! -e /home/tester/kept && echo well") == "1\nwell\n"
    assert await step(sandbox, "2", f"echo 2 >/root/n; mkdir -p /root/{deep}") == (False, True)
    sandbox = await torn(sandbox, "2", "rm -r /root/n /root/d")
    assert await _shell(sandbox, f"cat /root/n; test -d /root/{deep} && echo well") == "2\nwell\n"
    assert await step(sandbox, "3", "rm -r /root/d; echo 3 >/root/n") == kinds  # beyond the snapshot
    sandbox = await torn(sandbox, "3", "rm /root/n; mkdir /root/d")
    assert await _shell(sandbox, "cat /root/n; test ! -e /root/d && echo well") == "3\nwell\n"
    assert await step(sandbox, "4", "echo 4 >/root/n") == kinds
    sandbox = await torn(sandbox, "4", "rm /root/n")
    assert await _shell(sandbox, "cat /root/n; test ! -e /home/tester/kept && echo well") == "4\nwell\n"
    await sandbox.close()
    await discard_world(made.folder / "item", made.driver)
    assert await made.driver.listed({RUN: made.run}) == []
    assert not list((made.folder / "item").glob("copy-*"))


async def test_a_chain_of_processes_that_no_look_finds_is_no_quiet_world(made: Made) -> None:
    """What is changed while it is copied is no checkpoint."""
    sandbox = await made.sandbox()
    await sandbox.begin_step("1")
    chain = "import os\nwhile True:\n if os.fork(): os._exit(0)\n open('now', 'w').write(str(os.getpid()))\n"
    await sandbox.write_file("chain.py", chain.encode())
    await _shell(sandbox, "setsid python3 chain.py </dev/null >/dev/null 2>&1 &")
    await sandbox.end_step()
    await sandbox.begin_step("2")
    kept = read_world(made.folder / "item")
    assert kept is not None
    assert not kept.has_checkpoint
    assert (made.folder / "item" / "live").exists()
    await sandbox.close()
