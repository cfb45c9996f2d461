"""What every sandbox backend must do with the world as a whole: the part of ``SandboxContract`` about archives, users, images, what a
command leaves behind, and worlds beside each other."""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend
from manyhands.testing.sandbox_contract_commands import count, made, said, shell, until
from manyhands.testing.sandbox_contract_recovery import RecoveryContract, killed


class WorldContract(RecoveryContract):
    """For a backend's tests, subclass ``SandboxContract``."""

    ends_trees: ClassVar[bool] = False
    other_user: ClassVar[tuple[str, int] | None] = None
    image_files: ClassVar[Mapping[str, str]] = {}
    image_path: ClassVar[str | None] = None
    image_variables: ClassVar[Mapping[str, str]] = {}

    # Archives

    async def test_put_and_get(self, sandbox: Sandbox) -> None:
        packed = _archive({"sub/file": b"\x00\xff data", "run.sh": b"#!/bin/sh\necho ran\n"}, modes={"run.sh": 0o755})
        await sandbox.put(packed, "new/folder")
        assert await sandbox.read_file("new/folder/sub/file") == b"\x00\xff data"
        assert await said(sandbox, "new/folder/run.sh; ln -s sub new/folder/link") == "ran"
        got = io.BytesIO()
        await sandbox.get("new/folder", got, max_bytes=1 << 20)
        with tarfile.open(fileobj=io.BytesIO(got.getvalue())) as unpacked:
            entries = {member.name.rstrip("/"): member for member in unpacked}
            assert set(entries) == {f"folder{rest}" for rest in ("", "/sub", "/sub/file", "/run.sh", "/link")}
            assert entries["folder/run.sh"].mode & 0o777 == 0o755
            assert entries["folder/link"].issym()
            file = unpacked.extractfile("folder/sub/file")
            assert file is not None
            assert file.read() == b"\x00\xff data"
        one = io.BytesIO()
        await sandbox.get("new/folder/run.sh", one, max_bytes=1 << 20)
        with tarfile.open(fileobj=io.BytesIO(one.getvalue())) as unpacked:
            assert unpacked.getnames() == ["run.sh"]

    async def test_what_tar_leaves_out_is_not_said_in_the_archive(self, sandbox: Sandbox) -> None:
        if not self.has_python:
            return
        bind = "import socket; socket.socket(socket.AF_UNIX).bind('served/socket')"
        await shell(sandbox, f'mkdir served; echo 1 >served/a; echo 2 >served/z; python3 -c "{bind}"')
        got = io.BytesIO()
        await sandbox.get("served", got, max_bytes=1 << 20)
        with tarfile.open(fileobj=io.BytesIO(got.getvalue())) as unpacked:
            names = {member.name.rstrip("/") for member in unpacked}
        assert {"served", "served/a", "served/z"} <= names <= {"served", "served/a", "served/z", "served/socket"}

    async def test_archives_that_cannot_be_put_or_got(self, sandbox: Sandbox) -> None:
        await shell(sandbox, "echo x >file; head -c 300000 /dev/zero >big")
        with pytest.raises(ToolError):
            await sandbox.get("nothing", io.BytesIO(), max_bytes=1 << 20)
        with pytest.raises(ToolError):
            await sandbox.get("big", io.BytesIO(), max_bytes=100_000)
        with pytest.raises(ToolError):
            await sandbox.put(_archive({"x": b"1"}), "file")
        assert await said(sandbox, "cat file") == "x"

    async def test_archives_reach_no_file_of_the_host(self, sandbox: Sandbox, tmp_path: Path) -> None:
        if not self.isolates:
            return
        await shell(sandbox, f"ln -s {tmp_path} out")
        for path, name in (("out", "escaped"), (".", f"../../../../../../{tmp_path}/escaped"), (".", "out/escaped")):
            try:  # inside it may well be a place
                await sandbox.put(_archive({name: b"1"}), path)
            except (ToolError, ItemError):
                pass
        assert not (tmp_path / "escaped").exists()
        secret = tmp_path / "secret"
        secret.write_text("host only")
        with pytest.raises(ToolError):
            await sandbox.get(f"{secret}", io.BytesIO(), max_bytes=1 << 20)

    # Users and variables

    async def test_run_with_variables(self, sandbox: Sandbox) -> None:
        values = {"ONE": "a 'b' \"c\" $d\n", "TWO": ""}
        script = 'printf "%s|%s|%s" "$ONE" "${TWO-unset}" "${THREE-unset}"'
        result = await sandbox.run(["sh", "-c", script], timeout=10, environment=values)
        assert result.output.decode() == f"{values['ONE']}||unset"
        result = await sandbox.run(["sh", "-c", 'echo "${ONE-gone}"'], timeout=10)
        assert result.output == b"gone\n"

    async def test_run_as_another_user(self, sandbox: Sandbox, run_id: str) -> None:
        with pytest.raises(ItemError) as caught:
            await sandbox.run(["id"], timeout=10, user="nobody-of-that-name")
        assert caught.value.cause == Cause.INVALID_INPUT
        assert "nobody-of-that-name" in caught.value.message
        if self.other_user is None:
            return
        name, number = self.other_user
        for user in (name, str(number)):
            result = await sandbox.run(["id", "-u"], timeout=10, user=user, environment={"ANY": "1"})
            assert result.output == b"%d\n" % number
        assert (await sandbox.run(["id", "-u"], timeout=10)).output == b"%d\n" % self.user
        began = time.monotonic()
        result = await sandbox.run(["sh", "-c", "sleep 76 & sleep 76"], timeout=0.5, user=name)
        assert result.timed_out
        assert time.monotonic() - began < 8
        assert not await self.running(run_id, "sleep 76")

    # The image

    async def test_nothing_of_the_image_is_hidden(self, sandbox: Sandbox) -> None:
        for path, content in self.image_files.items():
            assert (await sandbox.read_file(path)).decode() == content
            assert (await shell(sandbox, f"cat {path}")).output.decode() == content

    async def test_variables_of_the_image(self, sandbox: Sandbox) -> None:
        wanted = {**self.image_variables, **({} if self.image_path is None else {"PATH": self.image_path})}
        for name, value in wanted.items():
            assert (await sandbox.run(["sh", "-c", f'echo "${name}"'], timeout=10)).output.decode() == f"{value}\n"
            assert await said(sandbox, f'echo "${name}"') == value

    # What commands leave behind

    async def test_tree_that_outlives_its_time_limit(self, sandbox: Sandbox) -> None:
        if not self.ends_trees:
            return
        tree = "(setsid sh -c \"trap '' TERM HUP; sleep 77 & sleep 77\" &); sleep 77 & (sleep 77 &); sleep 77"
        await shell(sandbox, "sleep 78 >/dev/null 2>&1 &")
        for run in (sandbox.shell(tree, timeout=1), sandbox.run(["sh", "-c", tree], timeout=1)):
            result = await run
            assert result.timed_out
            assert await said(sandbox, count("sleep 77")) == "0"
        assert await said(sandbox, count("sleep 78")) == "1"

    async def test_ended_processes_are_reaped(self, sandbox: Sandbox) -> None:
        if not self.isolates:
            return
        await shell(sandbox, "for i in 1 2 3 4 5; do (sleep 0.01 &); done")
        await sandbox.run(["sh", "-c", "(sleep 0.01 &); (sleep 0.01 &)"], timeout=10)

        async def reaped() -> bool:
            return await said(sandbox, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '; true") == "0"

        await until(reaped)

    async def test_all_processes_end(self, sandbox: Sandbox, run_id: str) -> None:
        assert not await sandbox.end_processes()
        await shell(
            sandbox, "cd /tmp; export word=old; cat() { echo planted; }; trap 'echo trapped' EXIT; echo kept >/tmp/file"
        )
        background = await sandbox.spawn("sleep 76")
        await shell(sandbox, "(trap '' TERM HUP; exec setsid sh -c 'sleep 76; sleep 76') >/dev/null 2>&1 &")
        await until(lambda: self._some(run_id, "sleep 76"))
        assert await sandbox.end_processes()
        assert not await self.running(run_id, "sleep 76")
        assert await background.wait(10) is not None
        assert (
            await said(sandbox, 'cat /tmp/file; echo "[$word]"; [ "$PWD" = /tmp ] || echo elsewhere')
            == "kept\n[]\nelsewhere"
        )
        await sandbox.begin_step("main/1")
        assert not await sandbox.end_processes()

    async def _some(self, run_id: str, command: str) -> bool:
        return bool(await self.running(run_id, command))

    async def test_output_that_is_not_text(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 300
        await sandbox.write_file("bytes", data)
        assert (await sandbox.shell("cat bytes", timeout=10)).output == data
        assert (await sandbox.run(["cat", "bytes"], timeout=10)).output == data
        process = await sandbox.spawn("cat bytes")
        assert await process.wait(10) == 0
        assert process.output(max_output=1 << 20)[0] == data

    # Worlds beside each other

    async def test_worlds_of_equal_items_share_nothing(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        first = self.request(tmp_path / "one" / "7-1", run_id, name="one-7-1")
        second = self.request(tmp_path / "two" / "7-1", f"{run_id}b", name="two-7-1")
        places = ("$HOME/mine", "/tmp/mine", "mine")
        async with made(backend, first) as one, made(backend, second) as two:
            await shell(one, "; ".join(f"echo one >{place}" for place in places))
            await one.spawn("sleep 79")
            if self.isolates:
                assert await said(two, f"cat {' '.join(places)} 2>/dev/null; {count('sleep 79')}") == "0"
            assert await said(two, "cat mine 2>/dev/null || echo nothing") == "nothing"
        async with made(backend, self.request(tmp_path / "three" / "7-1", run_id, name="three-7-1")) as three:
            assert await said(three, "cat mine 2>/dev/null || echo nothing") == "nothing"

    # Steps

    async def test_step_that_ended_is_the_state_to_return_to(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        folder = tmp_path / "box"
        lines = ["begin main/1", "shell echo first >file; export word=first", "end", "begin main/3"]
        owner = await self._owner(folder, run_id, *lines, "start echo second >file; export word=second; sleep 72")
        await killed(owner)
        await self.swept(run_id)
        async with made(backend, self.request(folder, run_id)) as sandbox:
            assert sandbox.open_step == "main/3"
            assert await sandbox.reattach(False, "main/3")
            assert await said(sandbox, "cat file; echo $word") == "first\nfirst"
            await asyncio.wait_for(sandbox.end_step(), 1)
            await sandbox.begin_step("main/3")
            await shell(sandbox, "echo third >file")
            await sandbox.end_step()
            await sandbox.begin_step("main/5")
            assert sandbox.open_step == "main/5"


def _archive(files: Mapping[str, bytes], modes: Mapping[str, int] | None = None) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), (modes or {}).get(name, 0o644)
            archive.addfile(entry, io.BytesIO(data))
    packed.seek(0)
    return packed
