"""What every sandbox backend must do with commands: the part of ``SandboxContract`` that runs, bounds and ends them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import pytest

from manyhands.core.errors import ToolError
from manyhands.processes.children import ExecResult
from manyhands.processes.strays import MARK, kill_strays, process_table
from manyhands.sandboxes.protocol import Sandbox, SandboxBackend, SandboxRequest

SEEN = "CONTRACT_RUN"
"""In the environment of every command of a test: the run it belongs to."""


class CommandContract:
    """Programs, the shell and background processes. For a backend's tests, subclass ``SandboxContract``."""

    make_backend: ClassVar[str]
    isolates: ClassVar[bool] = True
    image: ClassVar[str | None] = None
    root_is_own: ClassVar[bool] = False
    host_workspace: ClassVar[bool] = True
    home_is_workspace: ClassVar[bool] = True
    user: ClassVar[int] = 1000
    capabilities: ClassVar[int] = 0
    has_bash: ClassVar[bool] = True
    has_python: ClassVar[bool] = True
    limits_memory: ClassVar[bool] = True
    limits_processes: ClassVar[bool | None] = None
    finds_hidden: ClassVar[bool | None] = None
    takes_projects: ClassVar[bool] = True

    quick: ClassVar[Collection[str] | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.quick is None or "quick" not in cls.__dict__:
            return
        for name in dir(cls):
            if name.startswith("test_") and name not in cls.quick and name not in cls.__dict__:
                setattr(cls, name, _slow(getattr(cls, name)))

    @pytest.fixture
    async def backend(self) -> AsyncIterator[SandboxBackend]:
        names: dict[str, Any] = {}
        exec(self.make_backend, names)
        backend: SandboxBackend = names["backend"]
        problem = backend.unavailable()
        if problem is not None:
            pytest.fail(problem)
        self._backend = backend
        yield backend
        close = getattr(backend, "close", None)
        if close is not None:
            await close()

    def request(
        self,
        folder: Path,
        run_id: str,
        project: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> SandboxRequest:
        """A request whose commands can be distinguished from all others on the machine, whether or not they carry the run's mark."""
        variables = {SEEN: run_id, **(environment or {})}
        return SandboxRequest(folder, run_id, image=self.image, environment=variables, project=project, **more)

    async def running(self, run_id: str, command: str) -> list[str]:
        """The command lines of what this run's sandboxes run that begin with ``command``: as the backend says, where it has a coroutine
        ``processes(run_id)``, else as the host sees it."""
        processes = getattr(self._backend, "processes", None)
        if processes is None:
            marks = {f"{name}={run_id}".encode() for name in (MARK, SEEN)}
            return await asyncio.to_thread(command_lines_with, marks, command)
        return [line for line in await processes(run_id) if line.startswith(command)]

    async def modified(self, sandbox: Sandbox, folder: Path, name: str) -> float | None:
        """When a file of the workspace was changed last; None if it is not there."""
        if self.host_workspace:
            path = folder / "workspace" / name
            return path.stat().st_mtime_ns if path.exists() else None
        result = await sandbox.run(["stat", "-c", "%.9Y", f"{sandbox.workspace}/{name}"], timeout=10)
        return float(result.output) if result.exit_code == 0 else None

    async def swept(self, run_id: str) -> None:
        """End what a killed owner left, as the next opening of its run does."""
        await asyncio.to_thread(kill_strays, run_id)

    @pytest.fixture
    def run_id(self) -> str:
        return f"contract-{secrets.token_hex(6)}"

    @pytest.fixture
    async def sandbox(self, backend: SandboxBackend, tmp_path: Path, run_id: str) -> AsyncIterator[Sandbox]:
        async with made(backend, self.request(tmp_path / "box", run_id)) as sandbox:
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
        assert not await self.running(run_id, "sleep 61")

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
        await until(lambda: self.running(run_id, "sleep 63"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await self.running(run_id, "sleep 63")

    # The persistent shell

    async def test_shell_starts_in_the_workspace(self, sandbox: Sandbox) -> None:
        assert await said(sandbox, "pwd") == sandbox.workspace

    async def test_shell_keeps_its_state(self, sandbox: Sandbox) -> None:
        await shell(sandbox, "mkdir -p 'a b' && cd 'a b'")
        await shell(sandbox, "export OUT='x  y'")
        assert await said(sandbox, "pwd; sh -c 'echo \"$OUT\"'") == f"{sandbox.workspace}/a b\nx  y"
        if not self.has_bash:
            return
        await shell(sandbox, "inner=5; declare -A map=([k]='v w')")
        await shell(sandbox, "greet() { echo \"hello $1\"; }; alias shout='echo LOUD'")
        assert await said(sandbox, "echo $inner ${map[k]}") == "5 v w"
        assert await said(sandbox, "greet you; shout it") == "hello you\nLOUD it"

    async def test_shell_exit_codes_and_several_lines(self, sandbox: Sandbox) -> None:
        assert (await shell(sandbox, "false")).exit_code == 1
        assert (await shell(sandbox, "(exit 42)")).exit_code == 42
        result = await shell(sandbox, "for i in 1 2; do\n  echo $i\ndone\ncat <<'END'\n$x 'y'\nEND\n# the end")
        assert result.output == b"1\n2\n$x 'y'\n"
        assert (await shell(sandbox, "sh -c 'kill -9 $$'")).exit_code == 137

    async def test_shell_survives_exit(self, sandbox: Sandbox) -> None:
        result = await shell(sandbox, "cd /tmp; export kept=yes; f() { echo fun; }; echo bye; exit 3; echo never")
        assert (result.exit_code, result.output) == (3, b"bye\n")
        assert await said(sandbox, "pwd; echo $kept") == "/tmp\nyes"
        assert not self.has_bash or await said(sandbox, "f") == "fun"

    async def test_shell_survives_whatever_replaces_or_kills_it(self, sandbox: Sandbox) -> None:
        await shell(sandbox, "export kept=yes")
        assert (await shell(sandbox, "exec sh -c 'exit 5'")).exit_code == 5
        assert (await shell(sandbox, "kill -9 $$")).exit_code == 137
        assert (await shell(sandbox, "set -e; false; echo never")).exit_code == 1
        assert await said(sandbox, "echo $kept") == "yes"
        if self.has_bash:
            assert await said(sandbox, "break; continue; return 2>/dev/null; echo $kept", last=True) == "yes"

    async def test_shell_keeps_its_state_under_any_settings(self, sandbox: Sandbox) -> None:
        settings = "cd /tmp; export kept=yes; set -C -f -u; ulimit -S -f 0"
        assert (await shell(sandbox, settings)).exit_code == 0
        assert (await shell(sandbox, "export more=too; kill -KILL $$")).exit_code != 0
        assert await said(sandbox, 'pwd; echo "$kept"') == "/tmp\nyes"

    async def test_shell_reports_syntax_errors(self, sandbox: Sandbox) -> None:
        for command in ("if true", "echo 'open", "echo $(", ")", "a=(1"):
            result = await shell(sandbox, command)
            assert result.exit_code not in (0, None), command
            assert b"syntax error" in result.output or b"unexpected" in result.output, command
        assert await said(sandbox, "echo fine") == "fine"

    async def test_shell_outlives_syntax_errors_that_nothing_tells_of(self, sandbox: Sandbox) -> None:
        if self.has_bash:  # other shells end by them
            await shell(sandbox, "cd /tmp; number=1; first=$$; f() { :; }")
            for number in range(2, 6):
                assert (await shell(sandbox, "number=$((number + 1)); eval 'echo $('; true")).exit_code == 0
                assert await said(sandbox, 'f; pwd; echo "$number $(($$ - first))"') == f"/tmp\n{number} 0"

    async def test_shell_takes_no_input(self, sandbox: Sandbox) -> None:
        result = await shell(sandbox, 'cat; read line; echo "[$line]"')
        assert result.output == b"[]\n"
        assert await said(sandbox, "echo next") == "next"

    async def test_shell_time_limit_costs_only_the_command(self, sandbox: Sandbox, run_id: str) -> None:
        await shell(sandbox, "cd /tmp; export kept=yes")
        began = time.monotonic()
        result = await sandbox.shell("echo began; sleep 64; echo never", timeout=0.5)
        assert time.monotonic() - began < 5
        assert (result.exit_code, result.timed_out, result.output) == (None, True, b"began\n")
        result = await sandbox.shell("while :; do :; done", timeout=0.3)
        assert result.timed_out
        assert await said(sandbox, "pwd; echo $kept") == "/tmp\nyes"
        assert not await self.running(run_id, "sleep 64")

    async def test_shell_background_jobs_outlive_a_time_limit(self, sandbox: Sandbox) -> None:
        result = await shell(sandbox, "(while :; do date +%s%N >next; mv next beat; sleep 0.05; done) & echo started")
        assert result.output == b"started\n"
        await asyncio.sleep(0.1)
        assert (await sandbox.shell("sleep 65", timeout=0.3)).timed_out
        another = 'for each in $(seq 100); do [ "$(cat beat)" != "$first" ] && echo alive && break; sleep 0.1; done'
        assert await said(sandbox, f"first=$(cat beat); {another}") == "alive"

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
        result = await shell(sandbox, "printf '\\000\\377\\001'")
        assert result.output == b"\x00\xff\x01"
        assert await said(sandbox, "export v=$(printf '\\377'); echo ok") == "ok"
        assert (await shell(sandbox, "exit 1")).exit_code == 1
        assert (await shell(sandbox, 'printf %s "$v"')).output == b"\xff"
        with pytest.raises(ToolError):
            await shell(sandbox, "echo \0")

    async def test_shell_takes_long_commands(self, sandbox: Sandbox) -> None:
        text = "0123456789 'quoted' $x\n" * 10_000
        await shell(sandbox, f"cat >long <<'END'\n{text}END")
        assert await sandbox.read_file("long") == text.encode()

    async def test_shells_run_beside_each_other(self, sandbox: Sandbox) -> None:
        where = await said(sandbox, "mkdir apart; cd apart; export both=1; pwd")
        meets = ": >{}; until [ -e {} ]; do sleep 0.05; done; "
        first, second = await asyncio.gather(
            shell(sandbox, meets.format("first", "second") + "export mine=here; echo first"),
            shell(sandbox, meets.format("second", "first") + "pwd; echo $both; export theirs=lost; cd /"),
        )
        assert (first.output, second.output) == (b"first\n", f"{where}\n1\n".encode())
        assert await said(sandbox, 'pwd; echo "[$mine][$theirs]"') == f"{where}\n[here][]"

    async def test_cancelling_a_shell_command(self, sandbox: Sandbox, run_id: str) -> None:
        await shell(sandbox, "export kept=yes")
        task = asyncio.ensure_future(shell(sandbox, "sleep 66"))
        await until(lambda: self.running(run_id, "sleep 66"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await self.running(run_id, "sleep 66")
        assert await said(sandbox, "echo $kept") == "yes"

    # The background

    async def test_background_process(self, sandbox: Sandbox) -> None:
        await shell(sandbox, "mkdir -p sub && cd sub; export word=hi")
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
        await until(lambda: as_coroutine(process.output()[1] >= 9_000_011))
        output, total = process.output(max_output=5000)
        assert total == 9_000_011
        assert len(output) <= 5000
        assert output.startswith(b"first\n")
        assert output.endswith(b"last\n")
        assert b"left out" in output
        assert await process.wait(0.05) is None
        await process.kill()
        assert process.exit_code is not None
        assert not await self.running(run_id, "sleep 67")

    async def test_background_and_shell_share_one_world(self, sandbox: Sandbox) -> None:
        await sandbox.spawn("echo shared >/tmp/mark; sleep 68")

        async def both() -> bool:
            return await said(sandbox, f"cat /tmp/mark; {count('sleep 68')}") == "shared\n1"

        await until(both)
        await sandbox.run(["rm", "/tmp/mark"], timeout=10)

    async def test_background_server_is_reached_from_the_shell(self, sandbox: Sandbox) -> None:
        if not (self.has_python and self.has_bash):
            return
        server = (
            "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
            "print(server.getsockname()[1], flush=True)\nserver.accept()[0].sendall(b'served')"
        )
        await sandbox.write_file("server.py", server.encode())
        process = await sandbox.spawn("python3 server.py")
        await until(lambda: as_coroutine(process.output()[0].endswith(b"\n")))
        port = int(process.output()[0])
        assert await said(sandbox, f"exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3") == "served"


def count(command: str) -> str:
    """A shell command that prints how many processes have this command line."""
    each = "for file in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$file; echo; done 2>/dev/null"
    return f"{each} | grep -c '^{command} $' || true"


@asynccontextmanager
async def made(backend: SandboxBackend, request: SandboxRequest) -> AsyncIterator[Sandbox]:
    sandbox = await backend.create(request)
    try:
        yield sandbox
    finally:
        await sandbox.close()


def _slow(test: FunctionType) -> FunctionType:
    """A copy of a test that is marked as slow; the test itself belongs to other classes, too."""
    copy = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    copy.__kwdefaults__, copy.__annotations__, copy.__doc__ = test.__kwdefaults__, test.__annotations__, test.__doc__
    copy.__dict__.update(test.__dict__)
    return pytest.mark.slow(copy)


async def shell(sandbox: Sandbox, command: str) -> ExecResult:
    result = await sandbox.shell(command, timeout=20)
    assert not result.timed_out, command
    return result


async def said(sandbox: Sandbox, command: str, *, last: bool = False) -> str:
    """What a shell command printed, stripped; ``last``: only its last line."""
    text = (await shell(sandbox, command)).output.decode(errors="replace").strip()
    return text.splitlines()[-1] if last else text


def command_lines_with(marks: set[bytes], command: str) -> list[str]:
    """The command lines, of all processes of this machine with one of these entries in their environment, that begin with ``command``."""
    found = []
    for pid, line in process_table().items():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marks & set(environment) and line.state not in "ZX" and words.startswith(command):
            found.append(words)
    return found


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + 10
    while not await condition():
        assert time.monotonic() < deadline, "waited 10 seconds in vain"
        await asyncio.sleep(0.02)


async def as_coroutine(value: bool) -> bool:
    return value
