"""The worlds behind sandboxes: when they are made, checkpointed, lost, found again and removed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import signal
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.sandboxes.protocol import Sandbox, SandboxLimits, SandboxRequest
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.sandboxes.remote.disk import WorldWatch
from manyhands.sandboxes.remote.driver import FOLDER, OWNER, RUN, VERSION, WorldOptions
from manyhands.sandboxes.remote.kept import Notes, discard_world, read_world
from manyhands.sandboxes.remote.sandbox import RemoteSandbox
from manyhands.testing.fake_worlds.driver import FakeDriver, fake_service


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[str]:
    with fake_service() as address:
        yield address


@pytest.fixture
async def driver() -> AsyncIterator[FakeDriver]:
    driver = FakeDriver()
    yield driver
    await driver.control(latency=0, refuse=0, drop=0, snapshot_seconds=0)
    await driver.close()


@pytest.fixture
def run_id() -> str:
    return f"run-{secrets.token_hex(6)}"


async def made(driver: FakeDriver, folder: Path, run_id: str, **more: object) -> RemoteSandbox:
    options = cast(WorldOptions, more.pop("options", WorldOptions()))
    request = SandboxRequest(folder, run_id, **more)  # type: ignore[arg-type]
    return cast(RemoteSandbox, await RemoteBackend(driver, options).create(request))


async def said(sandbox: Sandbox, command: str) -> str:
    return (await sandbox.shell(command, timeout=20)).output.decode().strip()


async def snapshots(driver: FakeDriver, folder: Path) -> list[str]:
    return [each.id for each in await driver.listed({FOLDER: str(folder)}) if each.snapshot]


def world_of(folder: Path) -> str:
    kept = read_world(folder)
    assert kept is not None
    return kept.world.id


# What is noted


async def test_worlds_are_found_by_their_labels_and_removed(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    folder = tmp_path / "box"
    sandbox = await made(driver, folder, run_id, name="run-3-1", environment={"KEY": "secret value"})
    assert await said(sandbox, "echo $KEY; touch x") == "secret value"
    await sandbox.begin_step("main/1")
    (found,) = [each for each in await driver.listed({RUN: run_id}) if not each.snapshot]
    assert found.running
    assert set(found.labels) == {RUN, FOLDER, OWNER, VERSION}
    assert found.labels[FOLDER] == str(folder)
    assert str(os.getpid()) in found.labels[OWNER].split()
    kept = read_world(folder)
    assert kept is not None
    assert kept.world.id == found.id
    assert kept.name.startswith("manyhands-run-3-1-")
    assert "secret value" not in (folder / "world.json").read_text().replace(json.dumps(kept.to_json()["shell"]), "")
    await sandbox.close()
    (found,) = [each for each in await driver.listed({RUN: run_id}) if not each.snapshot]
    assert not found.running
    await discard_world(folder, driver)
    assert await driver.listed({RUN: run_id}) == []
    assert read_world(folder) is None
    await discard_world(folder, driver)


async def test_a_world_from_before_a_restart_of_the_machine_is_removed_by_its_labels(
    driver: FakeDriver, tmp_path: Path, run_id: str
) -> None:
    folder, other = tmp_path / "box", tmp_path / "other"
    for each in (folder, other):
        sandbox = await made(driver, each, run_id)
        await said(sandbox, "touch x")
        await sandbox.close()
    await driver.control(identity=True)
    await discard_world(folder, driver)
    assert await driver.listed({FOLDER: str(folder)}) == []
    assert len(await driver.listed({FOLDER: str(other)})) == 1
    await discard_world(other, driver)


# Checkpoints


async def test_checkpoints_are_taken_after_steps_and_replace_each_other(
    driver: FakeDriver, tmp_path: Path, run_id: str
) -> None:
    folder = tmp_path / "box"
    sandbox = await made(driver, folder, run_id)
    await sandbox.begin_step("main/1")
    assert await snapshots(driver, folder) == []  # the image is the world before it
    await said(sandbox, "echo 1 >file")
    await sandbox.end_step()
    await sandbox.begin_step("main/3")
    (first,) = await snapshots(driver, folder)
    await said(sandbox, "echo 2 >file")
    await sandbox.end_step()
    assert await sandbox.read_file("file") == b"2\n"  # what only looks is no change
    await sandbox.run(["cat", "file"], timeout=10)
    await sandbox.begin_step("main/5")
    (second,) = await snapshots(driver, folder)
    assert second != first
    await sandbox.end_step()
    await sandbox.close()
    assert len(await snapshots(driver, folder)) == 1


async def test_checkpoint_is_taken_beside_what_follows(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    sandbox = await made(driver, tmp_path / "box", run_id)
    await sandbox.begin_step("main/1")
    await driver.control(snapshot_seconds=0.6)
    await sandbox.end_step()
    assert await snapshots(driver, tmp_path / "box") == []
    await sandbox.begin_step("main/3")
    assert len(await snapshots(driver, tmp_path / "box")) == 1
    await sandbox.close()


async def test_no_checkpoint_of_what_is_live_too_large_or_not_wanted(
    driver: FakeDriver, tmp_path: Path, run_id: str
) -> None:
    sandbox = await made(driver, tmp_path / "live", run_id)
    await sandbox.begin_step("main/1")
    await said(sandbox, "sleep 300 & echo")
    await sandbox.end_step()
    await sandbox.begin_step("main/3")
    assert await snapshots(driver, tmp_path / "live") == []
    assert (tmp_path / "live" / "live").exists()
    await said(sandbox, "kill %1; wait")
    await sandbox.end_step()
    await sandbox.begin_step("main/5")
    assert not (tmp_path / "live" / "live").exists()
    assert len(await snapshots(driver, tmp_path / "live")) == 1
    await sandbox.close()
    for name, options in (("large", WorldOptions(checkpoint_limit=3 << 20)), ("off", WorldOptions(checkpoints=False))):
        sandbox = await made(driver, tmp_path / name, run_id, options=options)
        await said(sandbox, "head -c 4000000 /dev/zero >large")
        await sandbox.begin_step("main/1")
        assert await snapshots(driver, tmp_path / name) == []
        await sandbox.close()
        again = await made(driver, tmp_path / name, run_id, options=options)
        assert not await again.reattach(False, "main/1")
        assert again.lost_because is not None
        assert "checkpoint" in again.lost_because
        await again.close()


async def test_a_second_crash_finds_the_same_checkpoint(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    folder = tmp_path / "box"
    sandbox = await made(driver, folder, run_id)
    await said(sandbox, "echo old >file; cd /tmp")
    await sandbox.begin_step("main/1")
    for _ in range(2):
        await said(sandbox, "echo new >/workspace/file; cd /")
        await sandbox.close()
        sandbox = await made(driver, folder, run_id)
        assert await sandbox.reattach(False, "main/1")
        assert await said(sandbox, "pwd; cat /workspace/file") == "/tmp\nold"
    await sandbox.begin_step("main/1")
    await said(sandbox, "echo done >/workspace/file")
    await sandbox.end_step()
    await sandbox.begin_step("main/3")
    await sandbox.close()
    await discard_world(folder, driver)
    assert await driver.listed({FOLDER: str(folder)}) == []


# Worlds that are gone, stopped, or of another engine


async def test_a_world_stopped_under_us_is_started_again(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    sandbox = await made(driver, tmp_path / "box", run_id)
    await said(sandbox, "echo kept >file; cd /tmp; export word=kept; sleep 300 &")
    task = asyncio.ensure_future(sandbox.shell("echo begun; sleep 300", timeout=60))
    await asyncio.sleep(0.5)
    await driver.control(kill=world_of(tmp_path / "box"))
    result = await task
    assert (result.exit_code, result.timed_out) == (137, False)
    assert result.output.startswith(b"begun\n")
    assert b"started anew" in result.output
    assert (
        await said(sandbox, "pwd; echo $word; cat /workspace/file; ps ax | grep -c '[s]leep 300'")
        == "/tmp\nkept\nkept\n0"
    )
    await driver.control(kill=world_of(tmp_path / "box"))
    await asyncio.sleep(0.5)
    assert await sandbox.read_file("file") == b"kept\n"
    await sandbox.close()


async def test_a_world_removed_under_us_is_lost(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    folder = tmp_path / "box"
    sandbox = await made(driver, folder, run_id)
    await said(sandbox, "echo x >file")
    await sandbox.begin_step("main/1")
    await driver.delete(world_of(folder))
    for call in (sandbox.shell("true", timeout=5), sandbox.run(["true"], timeout=5), sandbox.read_file("file")):
        with pytest.raises(ItemError) as caught:
            await call
        assert caught.value.cause == Cause.SANDBOX_LOST
    await sandbox.close()
    again = await made(driver, folder, run_id)
    assert not await again.reattach(True, "main/1")
    assert again.lost_because == "its world is gone"
    await again.close()
    again = await made(driver, folder, run_id)
    assert await again.reattach(False, "main/1")  # the checkpoint is still there
    assert await said(again, "cat file") == "x"
    await again.close()


async def test_broken_connections_are_no_output(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    sandbox = await made(driver, tmp_path / "box", run_id)
    await said(sandbox, "word=kept; export word")
    calls = [
        asyncio.ensure_future(sandbox.shell("sleep 20", timeout=30)),
        asyncio.ensure_future(sandbox.run(["sleep", "20"], timeout=30)),
    ]
    await asyncio.sleep(0.5)
    await driver.control(break_streams=True)
    for call in calls:
        with pytest.raises(ItemError) as caught:
            await call
        assert caught.value.cause == Cause.SANDBOX_LOST
    assert await said(sandbox, "echo $word") == "kept"
    await sandbox.close()


async def test_another_engine_or_start_of_the_machine(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    sandbox = await made(driver, tmp_path / "box", run_id)
    await sandbox.begin_step("main/1")
    await sandbox.close()
    await driver.control(identity=True)
    again = await made(driver, tmp_path / "box", run_id)
    assert not await again.reattach(True, "main/1")
    assert again.lost_because is not None
    assert "another engine" in again.lost_because
    await again.close()


async def test_durable_worlds_go_on_from_their_checkpoints(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    durable = WorldOptions(durable=True)
    for recorded, expected in ((True, "2"), (False, "1")):
        folder = tmp_path / f"box-{recorded}"
        sandbox = await made(driver, folder, run_id, options=durable)
        await said(sandbox, "echo 1 >file")
        await sandbox.begin_step("main/1")
        await said(sandbox, "echo 2 >file")
        if recorded:
            (before,) = await snapshots(driver, folder)
            await sandbox.end_step()
            async with asyncio.timeout(20):
                while await snapshots(driver, folder) in ([], [before]) or len(await snapshots(driver, folder)) > 1:
                    await asyncio.sleep(0.05)
        await sandbox.close()
        await driver.control(identity=True)
        again = await made(driver, folder, run_id, options=durable)
        assert await again.reattach(recorded, "main/1"), again.lost_because
        assert await said(again, "cat file") == expected
        await again.close()


async def test_what_outlived_its_owner_is_ended_before_a_world_goes_on(
    tmp_path: Path, run_id: str, driver: FakeDriver
) -> None:
    """A service's worlds may go on after their owner's death."""
    folder = tmp_path / "box"
    code = f"""
import asyncio, os, signal
from pathlib import Path
from manyhands.sandboxes.protocol import SandboxRequest
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.testing.fake_worlds.driver import FakeDriver
async def main():
    sandbox = await RemoteBackend(FakeDriver(ends_with_owner=False)).create(SandboxRequest(Path({str(folder)!r}), {run_id!r}))
    await sandbox.begin_step("main/1")
    await sandbox.shell("cd /tmp; echo first >file", timeout=10)
    asyncio.ensure_future(sandbox.shell("while :; do date +%N >now; sleep 0.05; done", timeout=50))
    await asyncio.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await asyncio.wait_for(owner.wait(), 30) == -signal.SIGKILL
    lasting = FakeDriver(ends_with_owner=False)
    assert [each.running for each in await lasting.listed({FOLDER: str(folder)})] == [True]
    sandbox = await made(lasting, folder, run_id)
    assert await sandbox.reattach(True, "main/1")
    assert (
        await said(sandbox, "pwd; cat file; cat now >before; sleep 0.3; cmp now before && echo still")
        == "/tmp\nfirst\nstill"
    )
    await sandbox.close()
    assert [each.running for each in await lasting.listed({FOLDER: str(folder)})] == [False]
    await lasting.close()


# A service that is slow, busy, or drops connections


async def test_a_busy_and_slow_service(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    await driver.control(latency=0.02, refuse=3)
    sandbox = await made(driver, tmp_path / "box", run_id)
    assert await said(sandbox, "echo well") == "well"
    await driver.control(refuse=2)
    await sandbox.begin_step("main/1")
    await sandbox.close()


async def test_a_dropped_request_is_a_lost_sandbox(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    await driver.control(drop=2)  # the client tries again once by itself
    with pytest.raises(ItemError) as caught:
        await made(driver, tmp_path / "box", run_id)
    assert caught.value.cause == Cause.SANDBOX_LOST
    sandbox = await made(driver, tmp_path / "box", run_id)
    assert await said(sandbox, "echo well") == "well"
    await sandbox.close()


# Bounds


async def test_a_world_that_holds_too_much_is_ended(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    sandbox = await made(driver, tmp_path / "box", run_id, limits=SandboxLimits(disk=8 << 20))
    await sandbox.begin_step("main/1")
    await said(sandbox, "head -c 9000000 /dev/zero >large")
    await sandbox.end_step()
    with pytest.raises(ItemError) as caught:
        await sandbox.begin_step("main/3")
    assert caught.value.cause == Cause.SANDBOX_LIMIT
    assert "disk quota exceeded" in caught.value.message
    with pytest.raises(ItemError) as caught:
        await sandbox.shell("true", timeout=5)
    assert caught.value.cause == Cause.SANDBOX_LIMIT
    await sandbox.close()
    assert await driver.listed({FOLDER: str(tmp_path / "box")}) == []


@pytest.mark.slow
@pytest.mark.parametrize("job", ["&", "spawned"])
async def test_what_writes_in_the_background_is_ended_too(
    driver: FakeDriver, tmp_path: Path, run_id: str, job: str
) -> None:
    sandbox = await made(driver, tmp_path / "box", run_id, limits=SandboxLimits(disk=8 << 20))
    writing = "for i in $(seq 60); do head -c 1000000 /dev/zero >large-$i; sleep 0.2; done"
    if job == "&":
        await said(sandbox, f"({writing}) >/dev/null 2>&1 &")
    else:
        await sandbox.spawn(writing)
    async with asyncio.timeout(30):
        while await driver.listed({FOLDER: str(tmp_path / "box")}):
            await asyncio.sleep(0.2)
    with pytest.raises(ItemError, match="disk quota exceeded"):
        await sandbox.shell("true", timeout=5)
    await sandbox.close()


async def test_a_world_is_looked_at_as_long_as_anything_runs() -> None:
    sizes, ended, busy = iter([1, 5, 9]), [], [True]

    async def size() -> int:
        return next(sizes, 9)

    async def end() -> None:
        ended.append(True)

    watch = WorldWatch(8, size=size, end=end, busy=lambda: busy[0], every=0.01)
    watch.watch()
    async with asyncio.timeout(10):
        while not ended:
            await asyncio.sleep(0.01)
    with pytest.raises(ItemError, match="disk quota exceeded"):
        watch.check()
    await watch.close()


async def test_a_note_that_can_not_be_written_changes_nothing(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    """Else a checkpoint would be written over the one that the disk names."""
    folder = tmp_path / "box"
    await (await made(driver, folder, run_id)).close()
    notes = Notes(folder)
    before = notes.world
    assert before is not None
    (folder / ".world.json.new").mkdir()  # in the way of what is written aside
    with pytest.raises(ItemError):
        notes.note_world(replace(before, copy="copy-1"))
    assert notes.world == before == read_world(folder)


@pytest.mark.parametrize("copy", ["../../other", "/etc", "copy-2", ""])
async def test_only_its_own_copies_are_a_worlds(driver: FakeDriver, tmp_path: Path, run_id: str, copy: str) -> None:
    folder = tmp_path / "box"
    sandbox = await made(driver, folder, run_id)
    await sandbox.close()
    noted = json.loads((folder / "world.json").read_bytes())
    assert read_world(folder) is not None
    (folder / "world.json").write_text(json.dumps({**noted, "copy": copy}))
    assert read_world(folder) is None


async def test_more_at_once_than_there_are_shells(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    sandbox = await made(driver, tmp_path / "box", run_id)
    large = os.urandom(300_000)
    calls = [sandbox.run(["sh", "-c", f"sleep 1; echo {number}"], timeout=20) for number in range(8)]
    await sandbox.write_file("large", large)
    files = asyncio.gather(sandbox.read_file("large"), sandbox.write_file("small", b"\x00%s\\\n'"))
    results = await asyncio.gather(*calls)
    assert [result.output for result in results] == [b"%d\n" % number for number in range(8)]
    assert (await files)[0] == large
    assert await sandbox.read_file("small") == b"\x00%s\\\n'"
    result = await sandbox.run(["wc", "-c"], timeout=10, input=large)
    assert result.output.strip() == b"300000"
    words = ["x" * 100_000] * 3
    assert len((await sandbox.run(["echo", *words], timeout=10, max_output=1 << 20)).output) == 300_003
    await sandbox.close()


async def test_commands_that_write_to_our_shells_spoil_only_their_own(
    driver: FakeDriver, tmp_path: Path, run_id: str
) -> None:
    sandbox = await made(driver, tmp_path / "box", run_id)
    await said(sandbox, "word=kept")
    fake = r"for d in 1 2 8 9 201 202 203 204; do for p in /proc/[0-9]*/fd/$d; do printf '\0x end 0\0junk' >$p; done; done 2>/dev/null"
    await sandbox.shell(f"({fake})", timeout=5)
    await sandbox.run(["sh", "-c", fake], timeout=5)
    assert (await sandbox.run(["echo", "well"], timeout=5)).output.endswith(b"well\n")
    assert (await sandbox.shell("echo well", timeout=5)).output.endswith(b"well\n")
    assert await said(sandbox, "echo well $word") == "well kept"
    killing = await sandbox.run(["sh", "-c", "kill -9 -1"], timeout=10)
    assert killing.exit_code == 137
    assert await said(sandbox, "echo well") == "well"
    await sandbox.close()


# Images with next to nothing in them


async def test_an_image_with_only_a_plain_shell(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    sandbox = await made(driver, tmp_path / "box", run_id, image="small")
    assert await said(sandbox, "export word=hi; cd /tmp; bash 2>&1 | head -c 100; pwd")
    assert await said(sandbox, "pwd; echo $word; echo $0") == "/tmp\nhi\n/bin/sh"
    assert (await sandbox.shell("cd /; exit 3", timeout=5)).exit_code == 3
    assert await said(sandbox, "pwd; echo $word") == "/\nhi"
    assert (await sandbox.shell("if true", timeout=5)).exit_code not in (0, None)
    assert (await sandbox.shell("echo begun; sleep 30 & sleep 30", timeout=0.5)).timed_out
    assert await said(sandbox, "ps | grep -c '[s]leep 30'; echo $word") == "0\nhi"
    data = bytes(range(256)) * 300
    for path in ("one", "sub/two"):
        await sandbox.write_file(path, data)
        await sandbox.write_file(path, data[:1000])
        assert await sandbox.read_file(path) == data[:1000]
    assert (await sandbox.run(["cat"], timeout=5, input=data)).output == data
    with pytest.raises(ToolError):
        await sandbox.read_file("nothing")
    process = await sandbox.spawn('read line; echo "$word $line"; sleep 30')
    await process.write(b"there\n")
    await process.close_input()
    assert await process.wait(0.5) is None
    assert process.output()[0] == b"hi there\n"
    await process.kill()
    assert process.exit_code is not None
    await said(sandbox, "echo before >/workspace/file")
    await sandbox.begin_step("main/1")
    await sandbox.close()
    again = await made(driver, tmp_path / "box", run_id, image="small")
    assert await again.reattach(False, "main/1"), again.lost_because
    assert await said(again, "cat /workspace/file; pwd; echo $word") == "before\n/\nhi"
    await again.freeze()
    await again.thaw()
    await again.close()


async def test_images_users_and_directories_that_are_not_there(driver: FakeDriver, tmp_path: Path, run_id: str) -> None:
    for number, more in enumerate(({"image": "none"}, {"user": "nobody-there"}, {"cwd": "/none"})):
        with pytest.raises(ItemError) as caught:
            await made(driver, tmp_path / f"box-{number}", run_id, **more)
        assert caught.value.cause == Cause.INVALID_INPUT
        assert next(iter(more.values())) in caught.value.message
    sandbox = await made(driver, tmp_path / "box", run_id, user="user", cwd="/tmp")
    assert await said(sandbox, "id -u; pwd; echo $HOME") == "1000\n/tmp\n/home/user"
    assert (await sandbox.run(["id", "-u"], timeout=5, user="root")).output == b"0\n"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("file"), io.BytesIO())
    packed.seek(0)
    await sandbox.put(packed, "/tmp/mine")
    assert await said(sandbox, "stat -c %u /tmp/mine/file") == "1000"
    assert (await sandbox.run(["sleep", "30"], timeout=0.5, user="root")).timed_out
    assert await said(sandbox, "ps ax | grep -c '[s]leep 30'") == "0"
    await sandbox.close()
