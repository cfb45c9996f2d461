"""What every sandbox backend must do, as a suite of tests.

Use it from a test file of your own::

    class TestMyBackend(SandboxContract):
        make_backend = "from my_package import MyBackend; backend = MyBackend()"

``make_backend`` is Python source that leaves the backend in a variable named ``backend``: it runs here, and in other
processes that are killed to see what survives. ``isolates``: whether commands must be unable to reach the host's files
and network. Needs pytest with pytest-asyncio in auto mode, and Linux.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.processes.children import ExecResult
from manyhands.processes.strays import MARK, kill_strays, process_table
from manyhands.sandboxes.commands.cgroups import usable_hierarchies
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxLimits, SandboxRequest

SEEN = "CONTRACT_RUN"
"""In the environment of every command of a test: the run it belongs to."""

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
    sandbox = await backend.create(SandboxRequest(Path(sys.argv[1]), mark, environment=seen, project=project))
    for line in sys.argv[3:]:
        verb, _, rest = line.partition(" ")
        if verb == "begin":
            await sandbox.begin_step(rest)
        elif verb == "spawn":
            await sandbox.spawn(rest)
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


class SandboxContract:
    """The suite. Subclass it and set the class variables."""

    make_backend: ClassVar[str]
    isolates: ClassVar[bool] = True

    @pytest.fixture
    def backend(self) -> SandboxBackend:
        names: dict[str, Any] = {}
        exec(self.make_backend, names)
        backend: SandboxBackend = names["backend"]
        problem = backend.unavailable()
        if problem is not None:
            pytest.fail(problem)
        return backend

    @pytest.fixture
    def run_id(self) -> str:
        return f"contract-{secrets.token_hex(6)}"

    @pytest.fixture
    async def sandbox(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> AsyncIterator[Sandbox]:
        async with _made(backend, _request(tmp_path / "box", run_id)) as sandbox:
            yield sandbox

    # A program on its own

    async def test_run_gives_output_and_exit_code(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout=10)
        assert result.exit_code == 7
        assert result.output == b"out\nerr\n"
        assert not result.timed_out
        assert result.omitted == 0

    async def test_run_passes_input_and_arguments_untouched(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 2000
        result = await sandbox.run(["cat"], timeout=10, input=data, max_output=1_000_000)
        assert result.output == data
        odd = ["a b", "$HOME", "*", "'\"\\", "-n", "é\n"]
        result = await sandbox.run(["printf", "%s|", *odd], timeout=10)
        assert result.output.decode() == "".join(f"{word}|" for word in odd)

    async def test_run_input_that_nobody_reads(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(["true"], timeout=10, input=b"x" * 1_000_000)
        assert result.exit_code == 0

    async def test_run_without_input_reads_nothing(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(["cat"], timeout=10)
        assert (result.exit_code, result.output) == (0, b"")

    async def test_run_unknown_program(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(["no-such-program-anywhere"], timeout=10)
        assert result.exit_code == 127

    async def test_run_time_limit_ends_the_whole_group(self, sandbox: Sandbox, run_id: str) -> None:
        began = time.monotonic()
        result = await sandbox.run(["sh", "-c", "trap '' TERM; sleep 61 & echo began; sleep 61"], timeout=1.5)
        assert time.monotonic() - began < 5
        assert result.timed_out
        assert result.exit_code is None
        assert result.output == b"began\n"
        assert not await _running(run_id, "sleep 61")

    async def test_run_does_not_wait_for_what_it_leaves_behind(self, sandbox: Sandbox, run_id: str) -> None:
        began = time.monotonic()
        result = await sandbox.run(["sh", "-c", "sleep 62 & setsid sleep 62 & echo done"], timeout=20)
        assert time.monotonic() - began < 3
        assert result.output == b"done\n"

    async def test_run_keeps_head_and_tail(self, sandbox: Sandbox) -> None:
        script = "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo last"
        result = await sandbox.run(["sh", "-c", script], timeout=20, max_output=1000)
        assert len(result.output) == 1000
        assert result.output.startswith(b"first\n")
        assert result.output.endswith(b"xlast\n")
        assert result.omitted == 3_000_011 - 1000

    async def test_run_in_a_directory(self, sandbox: Sandbox) -> None:
        await sandbox.run(["mkdir", "-p", "deep/er"], timeout=10)
        result = await sandbox.run(["pwd"], timeout=10, cwd="deep/er")
        assert result.output.decode() == f"{sandbox.workspace}/deep/er\n"
        assert (await sandbox.run(["pwd"], timeout=10, cwd="nowhere")).exit_code != 0

    async def test_many_at_once(self, sandbox: Sandbox) -> None:
        results = await asyncio.gather(
            *(sandbox.run(["sh", "-c", f"sleep 0.2; echo {number}"], timeout=20) for number in range(20))
        )
        assert [result.output for result in results] == [b"%d\n" % number for number in range(20)]

    async def test_cancelling_ends_the_program(self, sandbox: Sandbox, run_id: str) -> None:
        task = asyncio.ensure_future(sandbox.run(["sleep", "63"], timeout=60))
        await _until(lambda: _running(run_id, "sleep 63"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await _running(run_id, "sleep 63")

    # The persistent shell

    async def test_shell_starts_in_the_workspace(self, sandbox: Sandbox) -> None:
        assert await _said(sandbox, "pwd") == sandbox.workspace

    async def test_shell_keeps_its_state(self, sandbox: Sandbox) -> None:
        await _shell(sandbox, "mkdir -p 'a b' && cd 'a b'")
        await _shell(sandbox, "export OUT='x  y'; inner=5; declare -A map=([k]='v w')")
        await _shell(sandbox, "greet() { echo \"hello $1\"; }; alias shout='echo LOUD'")
        assert await _said(sandbox, "pwd") == f"{sandbox.workspace}/a b"
        assert await _said(sandbox, "sh -c 'echo \"$OUT\"'; echo $inner ${map[k]}") == "x  y\n5 v w"
        assert await _said(sandbox, "greet you; shout it") == "hello you\nLOUD it"

    async def test_shell_exit_codes_and_several_lines(self, sandbox: Sandbox) -> None:
        assert (await _shell(sandbox, "false")).exit_code == 1
        assert (await _shell(sandbox, "(exit 42)")).exit_code == 42
        result = await _shell(sandbox, "for i in 1 2; do\n  echo $i\ndone\ncat <<'END'\n$x 'y'\nEND\n# the end")
        assert result.output == b"1\n2\n$x 'y'\n"
        assert (await _shell(sandbox, "sh -c 'kill -9 $$'")).exit_code == 137

    async def test_shell_survives_exit(self, sandbox: Sandbox) -> None:
        result = await _shell(sandbox, "cd /tmp; kept=yes; f() { echo fun; }; echo bye; exit 3; echo never")
        assert (result.exit_code, result.output) == (3, b"bye\n")
        assert await _said(sandbox, "pwd; echo $kept; f") == "/tmp\nyes\nfun"

    async def test_shell_survives_whatever_replaces_or_kills_it(self, sandbox: Sandbox) -> None:
        await _shell(sandbox, "kept=yes")
        assert (await _shell(sandbox, "exec sh -c 'exit 5'")).exit_code == 5
        assert (await _shell(sandbox, "kill -9 $$")).exit_code == 137
        assert (await _shell(sandbox, "set -e; false; echo never")).exit_code == 1
        assert await _said(sandbox, "break; continue; return 2>/dev/null; echo $kept", last=True) == "yes"

    async def test_shell_reports_syntax_errors(self, sandbox: Sandbox) -> None:
        for command in ("if true", "echo 'open", "echo $(", ")", "a=(1"):
            result = await _shell(sandbox, command)
            assert result.exit_code not in (0, None), command
            assert b"syntax error" in result.output or b"unexpected" in result.output, command
        assert await _said(sandbox, "echo fine") == "fine"

    async def test_shell_takes_no_input(self, sandbox: Sandbox) -> None:
        result = await _shell(sandbox, 'cat; read line; echo "[$line]"')
        assert result.output == b"[]\n"
        assert await _said(sandbox, "echo next") == "next"

    async def test_shell_time_limit_costs_only_the_command(self, sandbox: Sandbox, run_id: str) -> None:
        await _shell(sandbox, "cd /tmp; export kept=yes")
        began = time.monotonic()
        result = await sandbox.shell("echo began; sleep 64; echo never", timeout=0.5)
        assert time.monotonic() - began < 5
        assert (result.exit_code, result.timed_out, result.output) == (None, True, b"began\n")
        result = await sandbox.shell("while :; do :; done", timeout=0.3)
        assert result.timed_out
        assert await _said(sandbox, "pwd; echo $kept") == "/tmp\nyes"
        assert not await _running(run_id, "sleep 64")

    async def test_shell_background_jobs_outlive_a_time_limit(self, sandbox: Sandbox) -> None:
        result = await _shell(sandbox, "(while :; do date +%s%N >next; mv next beat; sleep 0.05; done) & echo started")
        assert result.output == b"started\n"
        await asyncio.sleep(0.1)
        assert (await sandbox.shell("sleep 65", timeout=0.3)).timed_out
        another = 'for each in $(seq 100); do [ "$(cat beat)" != "$first" ] && echo alive && break; sleep 0.1; done'
        assert await _said(sandbox, f"first=$(cat beat); {another}") == "alive"

    async def test_shell_output_is_bounded(self, sandbox: Sandbox) -> None:
        result = await sandbox.shell("echo first; yes | head -c 5000000; echo last", timeout=20, max_output=2000)
        assert len(result.output) == 2000
        assert result.output.startswith(b"first\ny\n")
        assert result.output.endswith(b"y\nlast\n")
        assert result.omitted == 5_000_011 - 2000
        result = await sandbox.shell("yes", timeout=0.5, max_output=2000)
        assert result.timed_out
        assert len(result.output) == 2000

    async def test_shell_is_binary_safe(self, sandbox: Sandbox) -> None:
        result = await _shell(sandbox, "printf '\\000\\377\\001'")
        assert result.output == b"\x00\xff\x01"
        assert await _said(sandbox, "v=$'\\xff'; echo ok") == "ok"
        assert (await _shell(sandbox, "exit 1")).exit_code == 1
        assert (await _shell(sandbox, 'printf %s "$v"')).output == b"\xff"
        with pytest.raises(ToolError):
            await _shell(sandbox, "echo \0")

    async def test_shell_takes_long_commands(self, sandbox: Sandbox) -> None:
        text = "0123456789 'quoted' $x\n" * 10_000
        await _shell(sandbox, f"cat >long <<'END'\n{text}END")
        assert await sandbox.read_file("long") == text.encode()

    async def test_shells_run_beside_each_other(self, sandbox: Sandbox) -> None:
        await _shell(sandbox, "cd /tmp; export both=1")
        slow = asyncio.ensure_future(_shell(sandbox, "sleep 0.5; mine=here; echo slow"))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        quick = await _shell(sandbox, "pwd; echo $both; theirs=lost; cd /")
        assert time.monotonic() - began < 0.4
        assert quick.output == b"/tmp\n1\n"
        assert (await slow).output == b"slow\n"
        assert await _said(sandbox, 'pwd; echo "[$mine][$theirs]"') == "/tmp\n[here][]"

    async def test_cancelling_a_shell_command(self, sandbox: Sandbox, run_id: str) -> None:
        await _shell(sandbox, "kept=yes")
        task = asyncio.ensure_future(_shell(sandbox, "sleep 66"))
        await _until(lambda: _running(run_id, "sleep 66"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await _running(run_id, "sleep 66")
        assert await _said(sandbox, "echo $kept") == "yes"

    # The background

    async def test_background_process(self, sandbox: Sandbox) -> None:
        await _shell(sandbox, "mkdir -p sub && cd sub; export word=hi")
        process = await sandbox.spawn('pwd; while read line; do echo "$word $line"; done; exit 4')
        assert process.id == "p1"
        assert process.exit_code is None
        await process.write(b"one\ntwo\n")
        await process.close_input()
        assert await process.wait(10) == 4
        output, total = process.output()
        assert output == f"{sandbox.workspace}/sub\nhi one\nhi two\n".encode()
        assert total == len(output)
        assert process.output(start=total - 4)[0] == b"two\n"
        assert dict(sandbox.background()) == {"p1": process}
        with pytest.raises(ToolError):
            await process.write(b"more")

    async def test_background_process_is_bounded_and_killed(self, sandbox: Sandbox, run_id: str) -> None:
        process = await sandbox.spawn("echo first; head -c 9000000 /dev/zero; echo last; sleep 67")
        await _until(lambda: _async(process.output()[1] >= 9_000_011))
        output, total = process.output(max_output=5000)
        assert total == 9_000_011
        assert len(output) <= 5000
        assert output.startswith(b"first\n")
        assert output.endswith(b"last\n")
        assert b"left out" in output
        assert await process.wait(0.05) is None
        await process.kill()
        assert process.exit_code is not None
        assert not await _running(run_id, "sleep 67")

    async def test_background_and_shell_share_one_world(self, sandbox: Sandbox) -> None:
        await sandbox.spawn("echo shared >/tmp/mark; sleep 68")
        await _until(lambda: _exists(sandbox, "/tmp/mark"))
        assert await _said(sandbox, "cat /tmp/mark; ps ax | grep -c '[0-9] [s]leep 68$'") == "shared\n1"
        await sandbox.run(["rm", "/tmp/mark"], timeout=10)

    async def test_background_server_is_reached_from_the_shell(self, sandbox: Sandbox) -> None:
        server = (
            "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
            "print(server.getsockname()[1], flush=True)\nserver.accept()[0].sendall(b'served')"
        )
        await sandbox.write_file("server.py", server.encode())
        process = await sandbox.spawn("python3 server.py")
        await _until(lambda: _async(process.output()[0].endswith(b"\n")))
        port = int(process.output()[0])
        assert await _said(sandbox, f"exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3") == "served"

    # Files

    async def test_files(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 10
        await sandbox.write_file("new/dir/file.bin", data)
        assert await sandbox.read_file(f"{sandbox.workspace}/new/dir/file.bin") == data
        assert (await sandbox.run(["cat", "new/dir/file.bin"], timeout=10)).output == data
        await _shell(sandbox, "printf 'a b' >'odd name '; chmod 755 'odd name '; ln -s 'odd name ' link; mkfifo pipe")
        await sandbox.write_file("odd name ", b"changed")
        assert await _said(sandbox, "stat -c %a 'odd name '; cat 'odd name '") == "755\nchanged"
        assert await sandbox.read_file("link") == b"changed"
        await sandbox.write_file("link", b"through")
        assert await _said(sandbox, "cat 'odd name '; test -L link && echo still") == "throughstill"
        assert await sandbox.read_file("/etc/passwd")

    async def test_files_that_cannot_be_read_or_written(self, sandbox: Sandbox) -> None:
        await _shell(
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
        assert await _said(sandbox, "ls -A; echo; ls -A dir") == "big\ndangling\ndir\nfile\npipe"

    # Isolation

    async def test_environment_is_scrubbed(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        name, secret = "CONTRACT_API_KEY", secrets.token_hex(16)
        os.environ[name] = secret
        try:
            request = SandboxRequest(tmp_path / "box", run_id, environment={"GIVEN": "yes"})
            async with _made(backend, request) as sandbox:
                seen = await _said(
                    sandbox, "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'" if self.isolates else "env"
                )
                assert secret not in seen
                assert "GIVEN=yes" in seen
                if self.isolates:  # what commands print must not depend on the run
                    assert MARK not in (await _said(sandbox, "env"))
                assert secret.encode() not in (await sandbox.run(["env"], timeout=10)).output
                process = await sandbox.spawn("env")
                await process.wait(10)
                assert secret.encode() not in process.output()[0]
        finally:
            del os.environ[name]

    async def test_host_files_are_out_of_reach(self, sandbox: Sandbox, tmp_path: Path) -> None:
        if not self.isolates:
            return
        secret = tmp_path / "secret"
        secret.write_text("host only")
        await _shell(sandbox, f"ln -s {secret} link; ln -s {tmp_path} folder; ln -s /etc/shadow shadow")
        for path in (
            "link",
            "folder/secret",
            str(secret),
            "../../secret",
            "shadow",
            "/etc/shadow",
            str(Path.home() / ".bashrc"),
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
        assert (await _shell(sandbox, f"cat {secret}; touch /usr/x /etc/x /x")).exit_code != 0
        assert "box" not in await _said(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")

    async def test_no_rights_and_no_other_processes(self, sandbox: Sandbox) -> None:
        if not self.isolates:
            return
        assert await _said(sandbox, "id -u; grep -c 'CapEff:.0000000000000000' /proc/self/status") == "1000\n1"
        assert await _said(sandbox, "grep NoNewPrivs /proc/self/status | cut -f2") == "1"
        assert int(await _said(sandbox, "ls -d /proc/[0-9]* | wc -l")) < 10

    async def test_network(self, sandbox: Sandbox) -> None:
        if not self.isolates:
            return
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            result = await _shell(sandbox, f"exec 3<>/dev/tcp/127.0.0.1/{port}")
            assert result.exit_code != 0
        assert await _said(sandbox, "tail -n +3 /proc/net/dev | grep -vc lo:", last=True) == "0"

    # Limits

    async def test_memory_limit(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        limits = SandboxLimits(memory=256 << 20)
        async with _made(backend, SandboxRequest(tmp_path / "box", run_id, limits=limits)) as sandbox:
            bomb = "data = bytearray(600 << 20)\nprint(len(data))"
            result = await sandbox.run(["python3", "-c", bomb], timeout=60)
            assert result.exit_code not in (0, None)
            assert await _said(sandbox, "echo still here") == "still here"

    async def test_process_limit(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        limits = SandboxLimits(processes=40)
        async with _made(backend, SandboxRequest(tmp_path / "box", run_id, limits=limits)) as sandbox:
            if not _processes_can_be_limited(self.isolates):
                return
            await sandbox.shell("for i in $(seq 200); do sleep 69 & done", timeout=2)
            assert len(await _running(run_id, "sleep 69")) <= 40

    async def test_file_size_limit(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        limits = SandboxLimits(file_size=1 << 20)
        async with _made(backend, SandboxRequest(tmp_path / "box", run_id, limits=limits)) as sandbox:
            result = await _shell(sandbox, "head -c 5000000 /dev/zero >big")
            assert result.exit_code != 0
            assert len(await sandbox.read_file("big")) == 1 << 20

    async def test_processor_limit(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        limits = SandboxLimits(cpu_seconds=1)
        async with _made(backend, SandboxRequest(tmp_path / "box", run_id, limits=limits)) as sandbox:
            result = await sandbox.run(["sh", "-c", "while :; do :; done"], timeout=20)
            assert not result.timed_out
            assert result.exit_code is not None
            assert result.exit_code > 128

    # The row's directory

    async def test_relative_cwd(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        async with _made(backend, SandboxRequest(tmp_path / "box", run_id, cwd="some/where")) as sandbox:
            assert await _said(sandbox, "pwd") == f"{sandbox.workspace}/some/where"
            assert (await sandbox.run(["pwd"], timeout=10)).output.decode().strip().endswith("/some/where")
            await sandbox.write_file("x", b"1")
            assert await _said(sandbox, f"cat {sandbox.workspace}/some/where/x") == "1"

    async def test_cwd_that_leads_out(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        for cwd in ("../out", "a/../../out", *(("/", "/usr/lib", "/etc", "/proc", "/tmp") if self.isolates else ())):
            with pytest.raises(ItemError) as caught:
                await backend.create(SandboxRequest(tmp_path / "box", run_id, cwd=cwd))
            assert caught.value.cause == Cause.INVALID_INPUT

    # The project

    async def test_project_is_read_and_started_in(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        project = _project(tmp_path)
        async with _made(backend, _request(tmp_path / "box", run_id, project)) as sandbox:
            assert sandbox.project is not None
            assert sandbox.project != sandbox.workspace
            place = f"{sandbox.project}/inner"
            assert await _said(sandbox, "pwd; cat inner/file") == f"{sandbox.project}\nof the project"
            assert (await sandbox.run(["cat", "inner/file"], timeout=10)).output == b"of the project\n"
            assert (await sandbox.run(["pwd"], timeout=10, cwd="inner")).output.decode() == f"{place}\n"
            process = await sandbox.spawn("pwd")
            await process.wait(10)
            assert process.output()[0].decode() == f"{sandbox.project}\n"
            assert await sandbox.read_file("inner/file") == b"of the project\n"
            assert await sandbox.read_file(f"{place}/file") == b"of the project\n"
            assert await _said(sandbox, 'echo "$PROJECT $WORKSPACE"') == f"{sandbox.project} {sandbox.workspace}"
            for path in ("nothing", "inner", "inner/nothing"):
                with pytest.raises(ToolError):
                    await sandbox.read_file(path)

    async def test_project_leaves_the_workspace_as_it_is(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        async with _made(backend, _request(tmp_path / "box", run_id, _project(tmp_path))) as sandbox:
            await sandbox.write_file(f"{sandbox.workspace}/new/file", b"mine")
            assert await _said(sandbox, "cd; cat new/file; echo more >>new/file; cat ~/new/file") == "mineminemore"

    async def test_project_can_not_be_changed(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        if not self.isolates:
            return
        project = _project(tmp_path)
        async with _made(backend, _request(tmp_path / "box", run_id, project)) as sandbox:
            await _shell(sandbox, "ln -s $PROJECT/inner $WORKSPACE/way; ln -s $WORKSPACE/target $WORKSPACE/own")
            command = (
                "touch new; echo x >inner/file; rm inner/file; mv inner other; chmod 777 inner; mkdir made; ln -s a b"
            )
            assert b"Read-only file system" in (await _shell(sandbox, command)).output
            within = f"{sandbox.workspace}/way/new"
            for path in ("new", "inner/file", "made/below/new", f"{sandbox.project}/new", within, "inner/../new"):
                with pytest.raises(ToolError) as caught:
                    await sandbox.write_file(path, b"changed")
                assert sandbox.workspace in str(caught.value), path
                assert "read-only" in str(caught.value), path
            await sandbox.write_file("to the workspace", b"through a link of the project")
            assert await _said(sandbox, "cat $WORKSPACE/through") == "through a link of the project"
        names = sorted(entry.relative_to(project).as_posix() for entry in project.rglob("*"))
        assert names == ["inner", "inner/file", "out", "secret", "to the workspace"]
        assert (project / "inner" / "file").read_text() == "of the project\n"

    async def test_links_out_of_the_project_lead_nowhere(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        if not self.isolates:
            return
        async with _made(backend, _request(tmp_path / "box", run_id, _project(tmp_path))) as sandbox:
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
        request = SandboxRequest(project / "data" / "run" / "box", run_id, project=project, hidden=hidden)
        async with _made(backend, request) as sandbox:
            assert await _said(sandbox, "ls data; ls inner; touch data/x 2>&1 || echo no", last=True) == "no"
            assert await _said(sandbox, "ls -A data") == ""
            with pytest.raises(ToolError):
                await sandbox.read_file("data/run.db")
            await sandbox.write_file(f"{sandbox.workspace}/x", b"1")
            assert await _said(sandbox, "cat $WORKSPACE/x") == "1"
        assert (project / "data" / "run" / "box" / "workspace" / "x").exists()

    async def test_cwd_beside_a_project(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        project = _project(tmp_path)
        place = "/project/inner" if self.isolates else str(project / "inner")
        for number, (cwd, started) in enumerate((("sub", "{workspace}/sub"), (place, place))):
            request = SandboxRequest(tmp_path / f"box {number}", run_id, cwd=cwd, project=project)
            async with _made(backend, request) as sandbox:
                assert await _said(sandbox, "pwd") == started.format(workspace=sandbox.workspace)
        with pytest.raises(ItemError) as caught:
            await backend.create(SandboxRequest(tmp_path / "box", run_id, cwd=f"{place}/none", project=project))
        assert caught.value.cause == Cause.INVALID_INPUT

    async def test_project_that_can_not_be_used(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        (tmp_path / "file").touch()
        for place in (tmp_path / "nowhere", tmp_path / "file", *((Path("/"), Path("/proc")) if self.isolates else ())):
            with pytest.raises(ItemError) as caught:
                await backend.create(_request(tmp_path / "box", run_id, place))
            assert caught.value.cause == Cause.INVALID_INPUT
            assert str(place) in caught.value.message

    async def test_project_after_a_crash(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        project, folder = _project(tmp_path), tmp_path / "box"
        before = ("shell cd inner; echo old >$WORKSPACE/mine", "begin main/1")
        owner = await self._owner(folder, run_id, *before, "start echo new >$WORKSPACE/mine; sleep 74", project=project)
        await _killed(owner)
        await asyncio.to_thread(kill_strays, run_id)
        assert not (folder / "checkpoint" / "project").exists()
        # Where commands may change the project, it is not known what a step that was cut off did there.
        async with _made(backend, _request(folder, run_id, project)) as sandbox:
            assert await sandbox.reattach(False, "main/1") is self.isolates
        async with _made(backend, _request(folder, run_id, project)) as sandbox:
            assert await sandbox.reattach(True, "main/1")
            seen = await _said(sandbox, "pwd; cat file; cat $WORKSPACE/mine")
            mine = "old" if self.isolates else "new"
            assert seen == f"{sandbox.project}/inner\nof the project\n{mine}"

    # The end

    async def test_close_leaves_nothing(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        sandbox = await backend.create(_request(tmp_path / "box", run_id))
        await _shell(sandbox, "sleep 70 & setsid sleep 70 & (setsid nohup sleep 70 >/dev/null 2>&1 &)")
        await sandbox.spawn("trap '' TERM; sleep 70 & sleep 70")
        running = asyncio.ensure_future(sandbox.run(["sleep", "70"], timeout=60))
        await _until(lambda: _running(run_id, "sleep 70"))
        await asyncio.sleep(0.2)
        closing = [asyncio.ensure_future(sandbox.close()) for _ in range(3)]
        await asyncio.sleep(0)
        closing[0].cancel()
        await asyncio.wait(closing)
        assert not await _running(run_id, "")
        await asyncio.wait([running], timeout=5)
        assert running.done()
        await sandbox.close()
        for call in (_shell(sandbox, "true"), sandbox.run(["true"], timeout=5), sandbox.spawn("true")):
            with pytest.raises(ItemError) as caught:
                await call
            assert caught.value.cause == Cause.SANDBOX_LOST

    async def test_killed_owner_leaves_nothing_after_a_sweep(self, tmp_path: Path, run_id: str) -> None:
        owner = await self._owner(tmp_path / "box", run_id, "shell sleep 71 & setsid sleep 71 &", "spawn sleep 71")
        assert await _running(run_id, "sleep 71")
        await _killed(owner)
        await asyncio.to_thread(kill_strays, run_id)
        await _until(lambda: _none(run_id))

    # Standing still

    async def test_frozen_and_thawed_all_goes_on(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        async with _made(backend, _request(tmp_path / "box", run_id)) as sandbox:
            await _shell(sandbox, "word=kept; (while :; do date +%N >one; done) & (setsid sh -c 'sleep 0.3; exit' &)")
            writing = await sandbox.spawn("while :; do date +%N >two; read -t 0.01 x && exit 7; done")
            one, two = (tmp_path / "box" / "workspace" / name for name in ("one", "two"))
            await _until(lambda: _async(one.exists() and two.exists()))
            for _ in range(3):
                await sandbox.freeze()
                await sandbox.freeze()
                before = [one.stat().st_mtime_ns, two.stat().st_mtime_ns]
                await asyncio.sleep(0.2)
                assert before == [one.stat().st_mtime_ns, two.stat().st_mtime_ns]
                await sandbox.thaw()
                await _until(lambda: _async(_changed(one, before[0]) and _changed(two, before[1])))  # noqa: B023
            await sandbox.thaw()
            assert await _said(sandbox, "echo $word; kill %1") == "kept"
            await writing.write(b"\n")
            assert await writing.wait(10) == 7

    async def test_what_runs_away_from_being_frozen_is_ended(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str
    ) -> None:
        """A chain of processes, each of which is gone by the time it is stopped."""
        chain = "import os\nwhile True:\n if os.fork(): os._exit(0)\n open('now', 'w').write(str(os.getpid()))\n"
        async with _made(backend, _request(tmp_path / "box", run_id)) as sandbox:
            await sandbox.write_file("chain.py", chain.encode())
            await _shell(sandbox, "for i in 1 2 3; do python3 chain.py & done")
            now = tmp_path / "box" / "workspace" / "now"
            await _until(lambda: _async(now.exists()))
            await sandbox.freeze()
            before = now.stat().st_mtime_ns
            await asyncio.sleep(0.3)
            assert now.stat().st_mtime_ns == before
            await sandbox.thaw()
            assert await _said(sandbox, "echo well") == "well"

    async def test_owner_killed_while_all_stands_still_leaves_nothing(self, tmp_path: Path, run_id: str) -> None:
        owner = await self._owner(tmp_path / "box", run_id, "shell sleep 74 &", "spawn sleep 74", "freeze")
        assert await _running(run_id, "sleep 74")
        await _killed(owner)
        await asyncio.to_thread(kill_strays, run_id)
        await _until(lambda: _none(run_id))

    # Undoing an open step

    async def test_step_cut_off_is_undone(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "box"
        before = [
            "begin main/1",
            "shell mkdir -p d/e; echo old >d/file; ln -s /etc/passwd link; chmod 640 d/file; touch -d 2001-01-01 d/file",
            "shell cd d; export word=old; f() { echo old; }; touch gone",
            "begin main/3",
        ]
        torn = "start echo new >>file; rm gone; rm ../link; mkdir -p ../x/y; export word=new; chmod 600 file; sleep 72"
        owner = await self._owner(folder, run_id, *before, torn)
        await _killed(owner)
        await asyncio.to_thread(kill_strays, run_id)
        async with _made(backend, _request(folder, run_id)) as sandbox:
            assert sandbox.open_step == "main/3"
            assert await sandbox.reattach(False, "main/3")
            seen = await _said(
                sandbox, "basename $PWD; echo $word; f; cat file; stat -c '%a %Y' file; ls -A . ..; readlink ../link"
            )
            assert seen == "d\nold\nold\nold\n640 978307200\n.:\ne\nfile\ngone\n\n..:\nd\nlink\n/etc/passwd"
            await sandbox.begin_step("main/3")
            assert sandbox.open_step == "main/3"

    async def test_recorded_step_stands(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "box"
        owner = await self._owner(folder, run_id, "begin main/1", "shell echo new >file; cd /tmp; v=7")
        await _killed(owner)
        await asyncio.to_thread(kill_strays, run_id)
        async with _made(backend, _request(folder, run_id)) as sandbox:
            assert await sandbox.reattach(True, "main/1")
            assert await sandbox.read_file(f"{sandbox.workspace}/file") == b"new\n"
            assert await _said(sandbox, "pwd; echo $v") == "/tmp\n7"

    async def test_nothing_begun(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        async with _made(backend, _request(tmp_path / "box", run_id)) as sandbox:
            assert sandbox.open_step is None
            assert await sandbox.reattach(False, "main/1")

    @pytest.mark.parametrize(
        "command",
        ["spawn sleep 73", "shell sleep 73 >/dev/null 2>&1 &", "shell (sleep 73 &)", "shell setsid -f sleep 73"],
    )
    async def test_lost_background_means_a_lost_world(
        self, backend: SandboxBackend, tmp_path: Path, run_id: str, command: str
    ) -> None:
        hidden = "(" in command or "setsid" in command
        if (
            hidden and usable_hierarchies() is None
        ):  # only by its control group can a process that hid from its shell be known
            return
        for recorded in (True, False):
            folder = tmp_path / f"box-{recorded}"
            owner = await self._owner(folder, run_id, "begin main/1", command)
            await _killed(owner)
            await asyncio.to_thread(kill_strays, run_id)
            async with _made(backend, _request(folder, run_id)) as sandbox:
                assert not await sandbox.reattach(recorded, "main/1")

    async def test_ended_background_is_no_loss(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "box"
        owner = await self._owner(folder, run_id, "begin main/1", "spawn echo quick", "shell sleep 0.3")
        await _killed(owner)
        await asyncio.to_thread(kill_strays, run_id)
        async with _made(backend, _request(folder, run_id)) as sandbox:
            assert await sandbox.reattach(True, "main/1")

    async def test_world_too_large_to_copy(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "box"
        large = "shell truncate -s 100M large"
        owner = await self._owner(folder, run_id, large, "begin main/1", "shell echo x >file")
        await _killed(owner)
        await asyncio.to_thread(kill_strays, run_id)
        async with _made(backend, _request(folder, run_id)) as sandbox:
            assert sandbox.open_step == "main/1"
            assert not await sandbox.reattach(False, "main/1")
        async with _made(backend, _request(folder, run_id)) as sandbox:
            assert await sandbox.reattach(True, "main/1")

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
            },
        )
        assert owner.stdout is not None
        said = await asyncio.wait_for(owner.stdout.readline(), 30)
        assert said == b"ready\n"
        return owner


@asynccontextmanager
async def _made(backend: SandboxBackend, request: SandboxRequest) -> AsyncIterator[Sandbox]:
    sandbox = await backend.create(request)
    try:
        yield sandbox
    finally:
        await sandbox.close()


def _request(folder: Path, run_id: str, project: Path | None = None) -> SandboxRequest:
    """A request whose commands can be told from all others on the machine, whether or not they carry the run's mark."""
    return SandboxRequest(folder, run_id, environment={SEEN: run_id}, project=project)


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


async def _shell(sandbox: Sandbox, command: str) -> ExecResult:
    result = await sandbox.shell(command, timeout=20)
    assert not result.timed_out, command
    return result


async def _said(sandbox: Sandbox, command: str, *, last: bool = False) -> str:
    """What a shell command printed, stripped; ``last``: only its last line."""
    text = (await _shell(sandbox, command)).output.decode(errors="replace").strip()
    return text.splitlines()[-1] if last else text


async def _exists(sandbox: Sandbox, path: str) -> bool:
    return (await sandbox.run(["test", "-e", path], timeout=10)).exit_code == 0


async def _running(run_id: str, command: str) -> list[int]:
    """Processes of this run on the host whose command line begins with ``command``."""
    return await asyncio.to_thread(_find, {f"{name}={run_id}".encode() for name in (MARK, SEEN)}, command)


def _find(marks: set[bytes], command: str) -> list[int]:
    found = []
    for pid, line in process_table().items():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marks & set(environment) and line.state not in "ZX" and words.startswith(command):
            found.append(pid)
    return found


async def _killed(owner: asyncio.subprocess.Process) -> None:
    owner.send_signal(signal.SIGKILL)
    await owner.wait()


async def _until(condition: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + 10
    while not await condition():
        assert time.monotonic() < deadline, "waited 10 seconds in vain"
        await asyncio.sleep(0.02)


async def _none(run_id: str) -> bool:
    return not await _running(run_id, "")


def _changed(file: Path, before: int) -> bool:
    return file.stat().st_mtime_ns != before


async def _async(value: bool) -> bool:
    return value


def _processes_can_be_limited(isolates: bool) -> bool:
    """Without control groups, the kernel does not count root's processes, nor those of one sandbox of several on the same host."""
    return usable_hierarchies() is not None or (isolates and os.geteuid() != 0)
