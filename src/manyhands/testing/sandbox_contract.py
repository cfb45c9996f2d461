"""What every sandbox backend must do, as a suite of tests.

Use it from a test file of your own::

    class TestMyBackend(SandboxContract):
        make_backend = "from my_package import MyBackend; backend = MyBackend()"

``make_backend`` is Python source that leaves the backend in a variable named ``backend``: it runs here, and in other
processes that are killed to see what survives. Needs pytest with pytest-asyncio in auto mode, and Linux.

What the tests expect is said by further class variables:

======================================================  ========================================================
``isolates``                                            commands can't reach the host's files and network
``image``                                               the image that all sandboxes are requested with
``root_is_own``                                         the root file system is the sandbox's own
``host_workspace``                                      the workspace is ``workspace/`` in the request's folder
``home_is_workspace``                                   commands' home folder is the workspace
``takes_projects``                                      a project of this machine can be shown inside
``user``, ``capabilities``                              who runs commands, and their ``CapEff`` as a mask
``has_bash``, ``has_python``                            whether the image has these programs
``limits_memory``, ``limits_processes``                 whether these limits hold; None: as this machine's cgroups say
``finds_hidden``                                        processes that hid from their shell are found; None: the same
``ends_trees``                                          a time limit ends also processes in sessions of their own
``other_user``                                          name and number of another user of the image
``image_files``, ``image_path``, ``image_variables``    what the image holds: contents by path, ``PATH``, variables
``quick``                                               names of tests; all others are marked ``slow``. None marks none
======================================================  ========================================================

A backend whose processes can't be seen on this machine has a coroutine ``processes(run_id)``, which gives the command lines of what runs in
all of a run's sandboxes; ``RemoteBackend`` has one. If it has a coroutine ``close()``, that is called after each test. So the suite of a
driver is::

    class TestMyDriver(SandboxContract):
        make_backend = "from my_package import MyDriver; from manyhands.sandboxes.remote.backend import RemoteBackend; " \\
            "backend = RemoteBackend(MyDriver())"
        image, root_is_own, host_workspace, home_is_workspace = "name", True, False, False
        user, capabilities, finds_hidden, ends_trees = 0, 0x4FB, True, True

Where what a killed owner left is ended by a sweep of yours, override ``swept``.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.processes.strays import MARK
from manyhands.sandboxes.commands.cgroups import usable_hierarchies
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxLimits
from manyhands.testing.sandbox_contract_commands import (
    made,
    said,
    shell,
)
from manyhands.testing.sandbox_contract_recovery import killed
from manyhands.testing.sandbox_contract_worlds import WorldContract


class SandboxContract(WorldContract):
    """The suite. Subclass it and set the class variables."""

    # Files

    async def test_files(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 10
        await sandbox.write_file("new/dir/file.bin", data)
        assert await sandbox.read_file(f"{sandbox.workspace}/new/dir/file.bin") == data
        assert (await sandbox.run(["cat", "new/dir/file.bin"], timeout=10)).output == data
        await shell(sandbox, "printf 'a b' >'odd name '; chmod 755 'odd name '; ln -s 'odd name ' link; mkfifo pipe")
        await sandbox.write_file("odd name ", b"- changed")
        assert await said(sandbox, "stat -c %a 'odd name '; cat 'odd name '") == "755\n- changed"
        assert await sandbox.read_file("link") == b"- changed"
        assert (await sandbox.run(["cat"], input=b"-n", timeout=10)).output == b"-n"
        await sandbox.write_file("link", b"through")
        assert await said(sandbox, "cat 'odd name '; test -L link && echo still") == "throughstill"
        assert await sandbox.read_file("/etc/passwd")

    async def test_files_that_cannot_be_read_or_written(self, sandbox: Sandbox) -> None:
        await shell(
            sandbox, "mkdir dir; mkfifo pipe; echo x >file; head -c 5000 /dev/zero >big; ln -s nowhere dangling"
        )
        for path in ("missing", "dir", "pipe", "file/below", "dangling", "/dev/zero", "", "a\0b", "/no/such"):
            with pytest.raises(ToolError):
                await sandbox.read_file(path)
        with pytest.raises(ToolError):
            await sandbox.read_file("big", max_bytes=4999)
        assert len(await sandbox.read_file("big", max_bytes=5000)) == 5000
        for path in ("dir", "file/below", "/proc/nothing/x", "pipe", "/dev/null"):
            with pytest.raises(ToolError):
                await sandbox.write_file(path, b"x")
        assert await said(sandbox, "ls -A; echo; ls -A dir") == "big\ndangling\ndir\nfile\npipe"

    # Isolation

    async def test_environment_is_scrubbed(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        name, secret = "CONTRACT_API_KEY", secrets.token_hex(16)
        os.environ[name] = secret
        try:
            request = self.request(tmp_path / "box", run_id, environment={"GIVEN": "yes"})
            async with made(backend, request) as sandbox:
                seen = await said(sandbox, "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'" if self.isolates else "env")
                assert secret not in seen
                assert "GIVEN=yes" in seen
                if self.isolates:  # what commands print must not depend on the run
                    assert MARK not in (await said(sandbox, "env"))
                assert secret.encode() not in (await sandbox.run(["env"], timeout=10)).output
                process = await sandbox.spawn("env")
                await process.wait(10)
                assert secret.encode() not in process.output()[0]
        finally:
            del os.environ[name]

    async def test_made_ahead(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        for used in (True, False):
            async with made(backend, self.request(tmp_path / f"box-{used}", run_id, ahead=True)) as sandbox:
                if used:
                    assert await said(sandbox, "cd /; echo begun") == "begun"
                    assert await said(sandbox, "pwd") == "/"
            assert await self.running(run_id, "bash") == []

    async def test_host_files_are_out_of_reach(self, sandbox: Sandbox, tmp_path: Path) -> None:
        if not self.isolates:
            return
        secret = tmp_path / "secret"
        secret.write_text("host only")
        await shell(sandbox, f"ln -s {secret} link; ln -s {tmp_path} folder; ln -s /etc/shadow shadow")
        for path in (
            "link",
            "folder/secret",
            str(secret),
            "../../secret",
            *(() if self.root_is_own else ("shadow", "/etc/shadow", str(Path.home() / ".bashrc"))),
        ):
            with pytest.raises(ToolError):
                await sandbox.read_file(path)
        for path in ("link", "folder/new", "folder/secret", "../../new"):
            try:
                await sandbox.write_file(path, b"overwritten")
            except ToolError:
                pass
        assert secret.read_text() == "host only"
        assert not (tmp_path / "new").exists()
        name = f"contract-{secrets.token_hex(6)}"
        places = [f"/usr/{name}", f"/etc/{name}", f"/{name}"]
        result = await shell(sandbox, f"cat {secret}; touch {' '.join(places)}")
        assert b"host only" not in result.output
        assert self.root_is_own or result.exit_code != 0
        assert not any(Path(place).exists() for place in places)
        assert "box" not in await said(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")

    async def test_no_rights_and_no_other_processes(self, sandbox: Sandbox) -> None:
        if not self.isolates:
            return
        mask = f"{self.capabilities:016x}"
        assert await said(sandbox, f"id -u; grep -c 'CapEff:.{mask}' /proc/self/status") == f"{self.user}\n1"
        assert await said(sandbox, "grep NoNewPrivs /proc/self/status | cut -f2") == "1"
        assert int(await said(sandbox, "ls -d /proc/[0-9]* | wc -l")) < 10

    async def test_network(self, sandbox: Sandbox) -> None:
        if not self.isolates:
            return
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            result = await shell(
                sandbox, f"exec 3<>/dev/tcp/127.0.0.1/{port}" if self.has_bash else f"nc 127.0.0.1 {port}"
            )
            assert result.exit_code != 0
        assert await said(sandbox, "tail -n +3 /proc/net/dev | grep -vc lo:", last=True) == "0"

    # Limits

    async def test_memory_limit(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        if not (self.has_python and self.limits_memory):
            return
        limits = SandboxLimits(memory=256 << 20)
        async with made(backend, self.request(tmp_path / "box", run_id, limits=limits)) as sandbox:
            bomb = "data = bytearray(600 << 20)\nprint(len(data))"
            result = await sandbox.run(["python3", "-c", bomb], timeout=60)
            assert result.exit_code not in (0, None)
            assert await said(sandbox, "echo still here") == "still here"

    async def test_process_limit(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        limits = SandboxLimits(processes=40)
        async with made(backend, self.request(tmp_path / "box", run_id, limits=limits)) as sandbox:
            if not (
                _processes_can_be_limited(self.isolates) if self.limits_processes is None else self.limits_processes
            ):
                return
            await sandbox.shell("for i in $(seq 200); do sleep 69 & done", timeout=2)
            assert len(await self.running(run_id, "sleep 69")) <= 40

    async def test_file_size_limit(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        limits = SandboxLimits(file_size=1 << 20)
        async with made(backend, self.request(tmp_path / "box", run_id, limits=limits)) as sandbox:
            result = await shell(sandbox, "head -c 5000000 /dev/zero >big")
            assert result.exit_code != 0
            assert len(await sandbox.read_file("big")) == 1 << 20

    async def test_processor_limit(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        limits = SandboxLimits(cpu_seconds=1)
        async with made(backend, self.request(tmp_path / "box", run_id, limits=limits)) as sandbox:
            result = await sandbox.run(["sh", "-c", "while :; do :; done"], timeout=20)
            assert not result.timed_out
            assert result.exit_code is not None
            assert result.exit_code > 128

    # The row's directory

    async def test_relative_cwd(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        async with made(backend, self.request(tmp_path / "box", run_id, cwd="some/where")) as sandbox:
            assert await said(sandbox, "pwd") == f"{sandbox.workspace}/some/where"
            assert (await sandbox.run(["pwd"], timeout=10)).output.decode().strip().endswith("/some/where")
            await sandbox.write_file("x", b"1")
            assert await said(sandbox, f"cat {sandbox.workspace}/some/where/x") == "1"

    async def test_cwd_that_leads_out(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        beyond = ("/", "/usr/lib", "/etc", "/proc", "/tmp") if self.isolates and not self.root_is_own else ()
        missing = ("/no/such/folder",) if self.root_is_own else ()  # elsewhere the workspace is seen at any path
        for cwd in ("../out", "a/../../out", *missing, *beyond):
            with pytest.raises(ItemError) as caught:
                await backend.create(self.request(tmp_path / "box", run_id, cwd=cwd))
            assert caught.value.cause == Cause.INVALID_INPUT

    # The project

    async def test_project_is_read_and_started_in(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        if not self.takes_projects:
            return
        project = _project(tmp_path)
        async with made(backend, self.request(tmp_path / "box", run_id, project)) as sandbox:
            assert sandbox.project is not None
            assert sandbox.project != sandbox.workspace
            folder = f"{sandbox.project}/inner"
            assert await said(sandbox, "pwd; cat inner/file") == f"{sandbox.project}\nof the project"
            assert (await sandbox.run(["cat", "inner/file"], timeout=10)).output == b"of the project\n"
            assert (await sandbox.run(["pwd"], timeout=10, cwd="inner")).output.decode() == f"{folder}\n"
            process = await sandbox.spawn("pwd")
            await process.wait(10)
            assert process.output()[0].decode() == f"{sandbox.project}\n"
            assert await sandbox.read_file("inner/file") == b"of the project\n"
            assert await sandbox.read_file(f"{folder}/file") == b"of the project\n"
            assert await said(sandbox, 'echo "$PROJECT $WORKSPACE"') == f"{sandbox.project} {sandbox.workspace}"
            for path in ("nothing", "inner", "inner/nothing"):
                with pytest.raises(ToolError):
                    await sandbox.read_file(path)

    async def test_project_leaves_the_workspace_as_it_is(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        if not self.takes_projects:
            return
        async with made(backend, self.request(tmp_path / "box", run_id, _project(tmp_path))) as sandbox:
            await sandbox.write_file(f"{sandbox.workspace}/new/file", b"mine")
            home = "~" if self.home_is_workspace else "$WORKSPACE"
            assert (
                await said(sandbox, f"cd {home}; cat new/file; echo more >>new/file; cat {home}/new/file")
                == "mineminemore"
            )

    async def test_project_can_not_be_changed(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        if not self.isolates:
            return
        project = _project(tmp_path)
        async with made(backend, self.request(tmp_path / "box", run_id, project)) as sandbox:
            await shell(sandbox, "ln -s $PROJECT/inner $WORKSPACE/way; ln -s $WORKSPACE/target $WORKSPACE/own")
            command = (
                "touch new; echo x >inner/file; rm inner/file; mv inner other; chmod 777 inner; mkdir made; ln -s a b"
            )
            assert b"Read-only file system" in (await shell(sandbox, command)).output
            within = f"{sandbox.workspace}/way/new"
            for path in ("new", "inner/file", "made/below/new", f"{sandbox.project}/new", within, "inner/../new"):
                with pytest.raises(ToolError) as caught:
                    await sandbox.write_file(path, b"changed")
                assert sandbox.workspace in str(caught.value), path
                assert "read-only" in str(caught.value), path
            await sandbox.write_file("to the workspace", b"through a link of the project")
            assert await said(sandbox, "cat $WORKSPACE/through") == "through a link of the project"
        names = sorted(entry.relative_to(project).as_posix() for entry in project.rglob("*"))
        assert names == ["inner", "inner/file", "out", "secret", "to the workspace"]
        assert (project / "inner" / "file").read_text() == "of the project\n"

    async def test_links_out_of_the_project_lead_nowhere(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        if not self.isolates:
            return
        async with made(backend, self.request(tmp_path / "box", run_id, _project(tmp_path))) as sandbox:
            for path in ("secret", "out/secret", "../secret", "inner/../../secret", str(tmp_path / "secret")):
                with pytest.raises(ToolError):
                    await sandbox.read_file(path)
                assert (await sandbox.run(["cat", path], timeout=10)).exit_code != 0
            for path in ("secret", "out/new"):
                try:  # a link that leads to nothing inside may be a place inside
                    await sandbox.write_file(path, b"changed")
                except ToolError:
                    pass
        assert (tmp_path / "secret").read_text() == "host only"
        assert not (tmp_path / "new").exists()

    async def test_hidden_folders_of_the_project(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        if not self.isolates:
            return
        project = _project(tmp_path)
        (project / "data" / "run").mkdir(parents=True)
        (project / "data" / "run.db").write_text("journal")
        hidden = (project / "data", project / "data" / "run", project / "nowhere", tmp_path, tmp_path / "elsewhere")
        request = self.request(project / "data" / "run" / "box", run_id, project=project, hidden=hidden)
        async with made(backend, request) as sandbox:
            assert await said(sandbox, "ls data; ls inner; touch data/x 2>&1 || echo no", last=True) == "no"
            assert await said(sandbox, "ls -A data") == ""
            with pytest.raises(ToolError):
                await sandbox.read_file("data/run.db")
            await sandbox.write_file(f"{sandbox.workspace}/x", b"1")
            assert await said(sandbox, "cat $WORKSPACE/x") == "1"
        if self.host_workspace:
            assert (project / "data" / "run" / "box" / "workspace" / "x").exists()

    async def test_cwd_beside_a_project(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        if not self.takes_projects:
            return
        project = _project(tmp_path)
        folder = "/project/inner" if self.isolates else str(project / "inner")
        for number, (cwd, started) in enumerate((("sub", "{workspace}/sub"), (folder, folder))):
            request = self.request(tmp_path / f"box {number}", run_id, cwd=cwd, project=project)
            async with made(backend, request) as sandbox:
                assert await said(sandbox, "pwd") == started.format(workspace=sandbox.workspace)
        with pytest.raises(ItemError) as caught:
            await backend.create(self.request(tmp_path / "box", run_id, cwd=f"{folder}/none", project=project))
        assert caught.value.cause == Cause.INVALID_INPUT

    async def test_project_that_can_not_be_used(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        (tmp_path / "file").touch()
        for folder in (tmp_path / "nowhere", tmp_path / "file", *((Path("/"), Path("/proc")) if self.isolates else ())):
            with pytest.raises(ItemError) as caught:
                await backend.create(self.request(tmp_path / "box", run_id, folder))
            assert caught.value.cause == Cause.INVALID_INPUT
            assert str(folder) in caught.value.message

    async def test_project_after_a_crash(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        if not self.takes_projects:
            return
        project, folder = _project(tmp_path), tmp_path / "box"
        before = ("shell cd inner; echo old >$WORKSPACE/mine", "begin main/1")
        owner = await self._owner(folder, run_id, *before, "start echo new >$WORKSPACE/mine; sleep 74", project=project)
        await killed(owner)
        await self.swept(run_id)
        assert not (folder / "checkpoint" / "project").exists()
        # Where commands may change the project, it is not known what a step that was cut off did there.
        async with made(backend, self.request(folder, run_id, project)) as sandbox:
            assert await sandbox.reattach(False, "main/1") is self.isolates
        async with made(backend, self.request(folder, run_id, project)) as sandbox:
            assert await sandbox.reattach(True, "main/1")
            seen = await said(sandbox, "pwd; cat file; cat $WORKSPACE/mine")
            mine = "old" if self.isolates else "new"
            assert seen == f"{sandbox.project}/inner\nof the project\n{mine}"


def _project(folder: Path) -> Path:
    """A project with links that lead out of it: to a file and its folder, and to the workspace of isolated sandboxes."""
    (folder / "secret").write_text("host only")
    project = folder / "of the person"
    (project / "inner").mkdir(parents=True)
    (project / "inner" / "file").write_text("of the project\n")
    (project / "secret").symlink_to(folder / "secret")
    (project / "out").symlink_to(folder)
    (project / "to the workspace").symlink_to("/workspace/through")
    return project


def _processes_can_be_limited(isolates: bool) -> bool:
    """Without control groups, the kernel does not count root's processes, nor those of one sandbox of several on the same host."""
    return usable_hierarchies() is not None or (isolates and os.geteuid() != 0)
