"""Worlds that are exported to files and made anew at another engine, over a driver of fake ones."""

from __future__ import annotations

import io
import json
import secrets
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from manyhands.core.errors import ItemError
from manyhands.sandboxes.images.extraction import BadArchive
from manyhands.sandboxes.lifecycle.exporting import BegunWorld, export_world
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.sandboxes.remote.driver import FOLDER
from manyhands.sandboxes.remote.exported.applying import read_changes
from manyhands.sandboxes.remote.exported.archive import export_place, remove_exports
from manyhands.sandboxes.remote.kept import Notes
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
    await driver.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "workspaces" / "1-1"


RUN_ID = f"run-{secrets.token_hex(6)}"


async def made(driver: FakeDriver, folder: Path) -> RemoteSandbox:
    request = SandboxRequest(folder, f"{RUN_ID}.{secrets.token_hex(2)}", image="base")
    return cast(RemoteSandbox, await RemoteBackend(driver).create(request))


async def said(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.shell(command, timeout=20)
    return result.output.decode(errors="surrogateescape").strip()


async def exported(driver: FakeDriver, folder: Path, *, recorded: bool) -> Path:
    notes, place = Notes(folder), export_place(folder)
    assert notes.world is not None
    assert notes.step is not None
    assert place is not None
    world = BegunWorld(folder, place, notes.world, notes.step, recorded, notes.live)
    assert await export_world(driver, world, RUN_ID) == place.path.stat().st_size
    assert [path.name for path in place.path.parent.iterdir()] == ["1-1.tar"]
    return place.path


CHANGE = r"""
cd /workspace; echo text >file; chmod 640 file; chown 1000:1000 file; ln file hard; ln -s /etc/passwd link; mkfifo pipe
printf x >"$(printf 'n\377me')"; mkdir -m 700 deep; echo deep >deep/file; rm -r /home/user; export word=kept; cd deep
"""
LOOK = r"""
pwd; echo $word; cd /workspace; stat -c '%n %F %a %u %g %h' file hard link pipe deep; cat file deep/file n*; ls | od -c | tail -3
readlink link; ls /home; grep -c . /etc/passwd; cd deep
"""


async def test_a_world_moves_with_all_that_was_changed_in_it(driver: FakeDriver, folder: Path) -> None:
    sandbox = await made(driver, folder)
    await sandbox.begin_step("main/1")
    await said(sandbox, CHANGE)
    await sandbox.end_step()
    expected = await said(sandbox, LOOK)
    assert expected.startswith("/workspace/deep\nkept\nfile regular file 640")
    await sandbox.close()
    await exported(driver, folder, recorded=True)
    await driver.control(identity=True)
    sandbox = await made(driver, folder)
    assert await sandbox.reattach(True, "main/1"), sandbox.lost_because
    assert await said(sandbox, LOOK) == expected
    # It is a world like others: it is killed, and found again, and has checkpoints of its own.
    await sandbox.begin_step("main/3")
    await said(sandbox, "echo cut off >/workspace/file")
    await sandbox.close()
    sandbox = await made(driver, folder)
    assert await sandbox.reattach(False, "main/3"), sandbox.lost_because
    assert await said(sandbox, LOOK) == expected
    await sandbox.close()


async def test_a_step_that_was_cut_off_leaves_nothing_in_an_export(driver: FakeDriver, folder: Path) -> None:
    sandbox = await made(driver, folder)
    await sandbox.begin_step("main/1")
    await said(sandbox, "echo 1 >file; word=first")
    await sandbox.end_step()
    await sandbox.begin_step("main/3")
    await said(sandbox, "echo 3 >file; word=third")
    await sandbox.close()
    await exported(driver, folder, recorded=False)
    for _ in range(2):  # a second crash, after which the same is found at the new engine, or at a third one
        await driver.control(identity=True)
        for _ in range(2):
            sandbox = await made(driver, folder)
            assert await sandbox.reattach(False, "main/3"), sandbox.lost_because
            assert await said(sandbox, "cat file; echo $word; word=other; echo other >file") == "1\nfirst"
            await sandbox.close()


async def test_what_has_no_checkpoint_is_not_exported(driver: FakeDriver, folder: Path) -> None:
    sandbox = await made(driver, folder)
    await said(sandbox, "sleep 300 & echo")
    await sandbox.begin_step("main/1")
    await sandbox.close()
    with pytest.raises(ItemError, match="background processes"):
        await exported(driver, folder, recorded=False)
    (folder / "live").unlink()
    with pytest.raises(ItemError, match="cut off, and there is no checkpoint"):
        await exported(driver, folder, recorded=False)


async def test_an_export_of_another_step_or_world_is_not_used(driver: FakeDriver, folder: Path) -> None:
    sandbox = await made(driver, folder)
    await sandbox.begin_step("main/1")
    await sandbox.end_step()
    await sandbox.close()
    path = await exported(driver, folder, recorded=True)
    sandbox = await made(driver, folder)
    assert await sandbox.reattach(True, "main/1")
    await sandbox.begin_step("main/3")  # the run went on where it was
    await sandbox.end_step()
    await sandbox.close()
    await driver.control(identity=True)
    sandbox = await made(driver, folder)
    for recorded in (True, False):
        assert not await sandbox.reattach(recorded, "main/3")
        assert sandbox.lost_because is not None
        assert sandbox.lost_because.endswith("what was exported of it is not from this step")
    path.write_bytes(b"no archive")
    assert not await sandbox.reattach(True, "main/3")
    assert "another engine" in str(sandbox.lost_because)
    await sandbox.close()
    remove_exports(path.parent.parent, {"1-1"}.__contains__)
    assert not path.parent.exists()


def layer(*members: tuple[str, bytes, str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, link, 0o644
            archive.addfile(member)
    return content.getvalue()


@pytest.mark.parametrize(
    "member",
    [
        ("../outside", tarfile.REGTYPE, ""),
        ("/outside", tarfile.REGTYPE, ""),
        ("a/../../outside", tarfile.SYMTYPE, "x"),
        ("hard", tarfile.LNKTYPE, "../../outside"),
        ("hard", tarfile.LNKTYPE, "proc/1/root/outside"),
        ("a/.wh...", tarfile.REGTYPE, ""),
        (".wh..", tarfile.REGTYPE, ""),
        (".wh..wh..opq", tarfile.REGTYPE, ""),
    ],
)
def test_names_that_lead_out_are_refused(member: tuple[str, bytes, str]) -> None:
    with pytest.raises(BadArchive):
        read_changes(io.BytesIO(layer(member)))


async def test_a_tampered_export_does_no_harm_outside(driver: FakeDriver, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    sandbox = await made(driver, folder)
    await sandbox.begin_step("main/1")
    await sandbox.end_step()
    await sandbox.close()
    path = await exported(driver, folder, recorded=True)
    with tarfile.open(path) as archive:
        said_there = json.loads(archive.extractfile("world.json").read())  # type: ignore[union-attr]

    def tampered(*members: tuple[str, bytes, str]) -> None:
        with tarfile.open(path, "w") as archive:
            for name, data in (("world.json", json.dumps(said_there).encode()), ("1.tar", layer(*members))):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))

    await driver.control(identity=True)
    tampered(
        ("workspace/out", tarfile.SYMTYPE, str(outside)),
        ("workspace/out/written", tarfile.REGTYPE, ""),
        ("workspace/up", tarfile.SYMTYPE, "../../../../../.." + str(outside)),
        ("workspace/up/.wh.kept", tarfile.REGTYPE, ""),
        ("workspace/disk", tarfile.BLKTYPE, ""),
        ("workspace/here", tarfile.REGTYPE, ""),
        ("project/file", tarfile.REGTYPE, ""),
    )
    sandbox = await made(driver, folder)
    await sandbox.reattach(True, "main/1")
    await sandbox.close()
    assert (sorted(each.name for each in outside.iterdir()), (outside / "kept").read_text()) == (["kept"], "kept")
    tampered(("../../../outside/written", tarfile.REGTYPE, ""))
    await driver.control(identity=True)
    worlds = len(await driver.listed({FOLDER: str(folder)}))
    sandbox = await made(driver, folder)
    assert not await sandbox.reattach(True, "main/1")
    assert "can't be used: it has a name that leads out of it" in str(sandbox.lost_because)
    assert len(await driver.listed({FOLDER: str(folder)})) == worlds  # what was made for it is gone
    await sandbox.close()
    assert [each.name for each in outside.iterdir()] == ["kept"]
