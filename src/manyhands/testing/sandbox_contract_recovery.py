"""What every sandbox backend must do at its end and after a crash: the part of ``SandboxContract`` about what survives."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.commands.cgroups import usable_hierarchies
from manyhands.sandboxes.protocol import SandboxBackend
from manyhands.testing.sandbox_contract_commands import (
    CommandContract,
    made,
    said,
    shell,
    until,
)

_OWNER = """
import asyncio, os, sys
from pathlib import Path
from manyhands.processes.strays import process_mark
from manyhands.sandboxes.protocol import SandboxRequest
{make_backend}

async def main():
    project = Path(os.environ["CONTRACT_PROJECT"]) if os.environ["CONTRACT_PROJECT"] else None
    seen = dict(CONTRACT_RUN=sys.argv[2])
    mark = process_mark(sys.argv[2])
    sandbox = await backend.create(SandboxRequest(Path(sys.argv[1]), mark, environment=seen, project=project,
                                                  image=os.environ["CONTRACT_IMAGE"] or None))
    for line in sys.argv[3:]:
        verb, _, rest = line.partition(" ")
        if verb == "begin":
            await sandbox.begin_step(rest)
        elif verb == "spawn":
            await sandbox.spawn(rest)
        elif verb == "end":
            await sandbox.end_step()
        elif verb == "freeze":
            await sandbox.freeze()
        elif verb == "start":
            asyncio.ensure_future(sandbox.shell(rest, timeout=60))
            await asyncio.sleep(0.3)
        else:
            await sandbox.shell(rest, timeout=60)
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


class RecoveryContract(CommandContract):
    """The end, standing still, and undoing a step that was cut off. For a backend's tests, subclass ``SandboxContract``."""

    # The end

    async def test_close_leaves_nothing(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        sandbox = await backend.create(self.request(tmp_path / "box", run_id))
        await shell(sandbox, "sleep 70 & setsid sleep 70 & (setsid nohup sleep 70 >/dev/null 2>&1 &)")
        await sandbox.spawn("trap '' TERM; sleep 70 & sleep 70")
        task = asyncio.ensure_future(sandbox.run(["sleep", "70"], timeout=60))
        await until(lambda: self.running(run_id, "sleep 70"))
        await asyncio.sleep(0.2)
        closing = [asyncio.ensure_future(sandbox.close()) for _ in range(3)]
        await asyncio.sleep(0)
        closing[0].cancel()
        await asyncio.wait(closing)
        assert not await self.running(run_id, "")
        await asyncio.wait([task], timeout=5)
        assert task.done()
        await sandbox.close()
        for call in (shell(sandbox, "true"), sandbox.run(["true"], timeout=5), sandbox.spawn("true")):
            with pytest.raises(ItemError) as caught:
                await call
            assert caught.value.cause == Cause.SANDBOX_LOST

    async def test_killed_owner_leaves_nothing_after_a_sweep(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        owner = await self._owner(tmp_path / "box", run_id, "shell sleep 71 & setsid sleep 71 &", "spawn sleep 71")
        assert await self.running(run_id, "sleep 71")
        await killed(owner)
        await self.swept(run_id)
        await until(lambda: self._none(run_id))

    # Standing still

    async def test_frozen_and_thawed_all_goes_on(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        async with made(backend, self.request(tmp_path / "box", run_id)) as sandbox:
            await shell(sandbox, "word=kept; (while :; do date +%N >one; done) & (setsid sh -c 'sleep 0.3; exit' &)")
            writing = await sandbox.spawn("while :; do date +%N >two; read -t 0.1 x && exit 7; done")

            async def times() -> list[float | None]:
                return [await self.modified(sandbox, tmp_path / "box", name) for name in ("one", "two")]

            async def differ(before: list[float | None]) -> bool:
                return all(now not in (then, None) for now, then in zip(await times(), before, strict=True))

            await until(lambda: differ([None, None]))
            for _ in range(3):
                await sandbox.freeze()
                await sandbox.freeze()
                before = await times()
                await asyncio.sleep(0.2)
                assert before == await times()
                await sandbox.thaw()
                await until(lambda: differ(before))  # noqa: B023
            await sandbox.thaw()
            assert await said(sandbox, "echo $word; kill %1") == "kept"
            for _ in range(10):  # a shell loses the line with which its time to read runs out
                await writing.write(b"\n")
                if (code := await writing.wait(2)) is not None:
                    break
            assert code == 7

    async def test_what_runs_away_from_being_frozen_is_ended(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        """A chain of processes, each of which is gone by the time it is stopped."""
        if not self.has_python:
            return
        chain = "import os\nwhile True:\n if os.fork(): os._exit(0)\n open('now', 'w').write(str(os.getpid()))\n"
        async with made(backend, self.request(tmp_path / "box", run_id)) as sandbox:
            await sandbox.write_file("chain.py", chain.encode())
            await shell(sandbox, "for i in 1 2 3; do python3 chain.py & done")

            async def written() -> float | None:
                return await self.modified(sandbox, tmp_path / "box", "now")

            await until(written)
            await sandbox.freeze()
            before = await written()
            await asyncio.sleep(0.3)
            assert await written() == before
            await sandbox.thaw()
            assert await said(sandbox, "echo well") == "well"

    async def test_owner_killed_while_all_stands_still_leaves_nothing(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        owner = await self._owner(tmp_path / "box", run_id, "shell sleep 74 &", "spawn sleep 74", "freeze")
        assert await self.running(run_id, "sleep 74")
        await killed(owner)
        await self.swept(run_id)
        await until(lambda: self._none(run_id))

    # Undoing an open step

    async def test_step_cut_off_is_undone(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "box"
        before = [
            "begin main/1",
            "shell mkdir -p d/e; echo old >d/file; ln -s /etc/passwd link; chmod 640 d/file; touch -d '2001-01-01 00:00:00' d/file",
            "shell cd d; export word=old; f() { echo old; }; touch gone",
            "begin main/3",
        ]
        torn = "start echo new >>file; rm gone; rm ../link; mkdir -p ../x/y; export word=new; chmod 600 file; sleep 72"
        owner = await self._owner(folder, run_id, *before, torn)
        await killed(owner)
        await self.swept(run_id)
        async with made(backend, self.request(folder, run_id)) as sandbox:
            assert sandbox.open_step == "main/3"
            assert await sandbox.reattach(False, "main/3")
            seen = await said(
                sandbox, "basename $PWD; echo $word; cat file; stat -c '%a %Y' file; ls -A . ..; readlink ../link"
            )
            assert not self.has_bash or await said(sandbox, "f") == "old"
            assert seen == "d\nold\nold\n640 978307200\n.:\ne\nfile\ngone\n\n..:\nd\nlink\n/etc/passwd"
            await sandbox.begin_step("main/3")
            assert sandbox.open_step == "main/3"

    async def test_recorded_step_stands(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "box"
        owner = await self._owner(folder, run_id, "begin main/1", "shell echo new >file; cd /tmp; export v=7")
        await killed(owner)
        await self.swept(run_id)
        async with made(backend, self.request(folder, run_id)) as sandbox:
            assert await sandbox.reattach(True, "main/1")
            assert await sandbox.read_file(f"{sandbox.workspace}/file") == b"new\n"
            assert await said(sandbox, "pwd; echo $v") == "/tmp\n7"

    async def test_nothing_begun(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        async with made(backend, self.request(tmp_path / "box", run_id)) as sandbox:
            assert sandbox.open_step is None
            assert await sandbox.reattach(False, "main/1")

    @pytest.mark.parametrize(
        "command",
        ["spawn sleep 73", "shell sleep 73 >/dev/null 2>&1 &", "shell (sleep 73 &)", "shell (setsid sleep 73 &)"],
    )
    async def test_lost_background_means_a_lost_world(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str, command: str
    ) -> None:
        hidden = "(" in command or "setsid" in command
        # Else only by its control group can a process that hid from its shell be known.
        found = usable_hierarchies() is not None if self.finds_hidden is None else self.finds_hidden
        if hidden and not found:
            return
        for name, begun, recorded, brought_back in (
            ("recorded", (), True, False),
            ("before", ("begin main/3",), False, False),
            ("within", (), False, True),  # it is undone with its step
        ):
            folder = tmp_path / f"box-{name}"
            owner = await self._owner(folder, run_id, "begin main/1", command, *begun)
            await killed(owner)
            await self.swept(run_id)
            async with made(backend, self.request(folder, run_id)) as sandbox:
                assert sandbox.can_undo is brought_back or recorded
                assert await sandbox.reattach(recorded, "main/3" if begun else "main/1") is brought_back, name

    async def test_ended_background_is_no_loss(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "box"
        owner = await self._owner(folder, run_id, "begin main/1", "spawn echo quick", "shell sleep 0.3")
        await killed(owner)
        await self.swept(run_id)
        async with made(backend, self.request(folder, run_id)) as sandbox:
            assert await sandbox.reattach(True, "main/1")

    async def test_world_too_large_to_copy(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "box"
        large = "shell truncate -s 100M large"
        owner = await self._owner(folder, run_id, large, "begin main/1", "shell echo x >file")
        await killed(owner)
        await self.swept(run_id)
        async with made(backend, self.request(folder, run_id)) as sandbox:
            assert sandbox.open_step == "main/1"
            assert not await sandbox.reattach(False, "main/1")
        async with made(backend, self.request(folder, run_id)) as sandbox:
            assert await sandbox.reattach(True, "main/1")

    async def _none(self, run_id: str) -> bool:
        return not await self.running(run_id, "")

    async def _owner(
        self, folder: Path, run_id: str, *lines: str, project: Path | None = None
    ) -> asyncio.subprocess.Process:
        """A process that made a sandbox, did what the lines say, and waits."""
        owner = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _OWNER.format(make_backend=self.make_backend),
            str(folder),
            run_id,
            *lines,
            stdout=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "CONTRACT_PROJECT": str(project or ""),
                "CONTRACT_IMAGE": self.image or "",
            },
        )
        assert owner.stdout is not None
        line = await asyncio.wait_for(owner.stdout.readline(), 30)
        assert line == b"ready\n"
        return owner


async def killed(owner: asyncio.subprocess.Process) -> None:
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
