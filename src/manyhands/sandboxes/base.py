"""The sandbox that the backends for commands on this machine share; what differs between them is their launcher and their files."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.io.files import is_full
from manyhands.processes.children import ExecResult, Process, run_process, to_the_end
from manyhands.processes.output import ToFile
from manyhands.processes.system import process_line
from manyhands.sandboxes.commands.freezing import Frozen
from manyhands.sandboxes.commands.launch import Launcher, marks
from manyhands.sandboxes.commands.shell import Background, Shell, ShellNotStarted
from manyhands.sandboxes.commands.shell_state import ShellState, StateFile
from manyhands.sandboxes.files.access import RunInside, get_inside, put_inside
from manyhands.sandboxes.files.checkpoint import Checkpoint
from manyhands.sandboxes.files.disk_watch import DiskWatch, with_space
from manyhands.sandboxes.files.removing import clear_folder, drop_set_ids
from manyhands.sandboxes.protocol import BackgroundProcess, SandboxLimits

_MAX_ARGUMENT = 100_000
_SECOND_TRIES = (0.1, 0.3, 1.0, None)
"""Seconds to wait before a shell, or the sandbox, is started once more."""
_START_PAUSES = (0.1, 0.5)
_KILLED = 137
_TO_END = 0.1
RESTARTED = b"\n[All processes of the sandbox were killed. It was started anew; its files are as they were left.]\n"
_IN_STATE = """\
builtin eval "$1" >/dev/null 2>&1
builtin export "${@:4}" >/dev/null; builtin cd -- "$2" || exit 126
builtin eval "$3"
"""
_IN_SH_STATE = """\
eval "$1" >/dev/null 2>&1
cd -- "$2" || exit 126
eval "$3"
"""


class Files(Protocol):
    """How a backend reaches its files. Paths are absolute, as seen inside. Raises ToolError."""

    async def read(self, path: str, max_bytes: int, run: RunInside) -> bytes: ...

    async def write(self, path: str, data: bytes, run: RunInside) -> None: ...


async def prepared(launcher: Launcher) -> bool:
    """Have the launcher's processes running; whether they were started by this. Somebody outside may kill them while they start, so
    that is tried more than once. Raises ItemError(SANDBOX_LOST)."""
    for pause in _START_PAUSES:
        with suppress(ItemError):
            return await launcher.prepare()
        await asyncio.sleep(pause)
    return await launcher.prepare()


async def made_ready(sandbox: CommandSandbox, *, ahead: bool) -> CommandSandbox:
    """A sandbox just made, with its shell running where it is made ``ahead``. Raises ItemError(SANDBOX_LOST)."""
    if ahead:
        try:
            await sandbox.get_ready()
        except BaseException:
            await sandbox.close()
            raise
    return sandbox


class CommandSandbox:
    """A ``Sandbox`` whose commands are processes of this machine.

    ``folder`` holds ``workspace/``, ``state/shell`` (the persistent shell's last state) and what ``Checkpoint`` keeps.
    ``trees``: the folders in it that commands write to. ``fronted``: see ``Shell``. ``whole``:
    whether the checkpoint's trees are all that commands are meant to change. ``bash``: whether there is one inside.
    """

    def __init__(
        self,
        folder: Path,
        launcher: Launcher,
        files: Files,
        checkpoint: Checkpoint,
        limits: SandboxLimits,
        *,
        trees: Sequence[str],
        fronted: bool,
        whole: bool = True,
        bash: bool = True,
    ) -> None:
        self._folder = folder
        self._launcher = launcher
        self._files = files
        self._checkpoint = checkpoint
        self._fronted = fronted
        self._whole = whole
        self._bash = bash
        self._processes: set[Process] = set()
        self._background: dict[str, Background] = {}
        self._shell: Shell | None = None
        self._retired: list[Shell] = []
        self._state = StateFile(folder / "state" / "shell", launcher.start_directory)
        self._shell_busy = False
        self._shell_lost = False
        self._restarts = 0
        self._jobs = False
        self._live: bool | None = None
        """Whether something is noted to run in the background; None if that is not known, or could not be noted."""
        self._closing: asyncio.Task[None] | None = None
        self._frozen: Frozen | None = None
        self._trees = [folder / tree for tree in trees]
        self._disk = DiskWatch(
            folder,
            trees,
            limits,
            processes=launcher.processes,
            running=self._anything_running,
            kill=launcher.kill,
            clear=self._clear,
        )

    @property
    def kind(self) -> str:
        return self._launcher.kind

    @property
    def other_users(self) -> bool:
        return self._launcher.other_users

    @property
    def workspace(self) -> str:
        return self._launcher.workspace

    @property
    def project(self) -> str | None:
        return self._launcher.project

    @property
    def open_step(self) -> str | None:
        return self._checkpoint.open_step

    @property
    def can_undo(self) -> bool:
        return self._checkpoint.can_undo

    async def get_ready(self) -> None:
        """Start the persistent shell, in a sandbox that has nothing to be brought back. Raises ItemError(SANDBOX_LOST)."""
        if self.open_step is None:
            await self._prepare()
            self._shell = self._shell or self._new_shell()

    async def run(
        self,
        command: Sequence[str],
        *,
        timeout: float,
        input: bytes | None = None,
        cwd: str | None = None,
        max_output: int = 100_000,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> ExecResult:
        strikes = self._disk.strikes
        try:
            result = await self._run(
                command,
                timeout=timeout,
                input=input,
                cwd=cwd,
                max_output=max_output,
                user=user,
                environment=environment or {},
            )
        finally:
            self._live = self._live or None  # it may have left something
        return await self._disk.judged(result, strikes)

    async def shell(self, command: str, *, timeout: float, max_output: int = 100_000) -> ExecResult:
        with self._disk.command():
            result = await self._shell_for(command, timeout, max_output)
        result = await self._disk.judged(result)
        if self._state.unsaved:
            await self._disk.wait_for_space()
            self._state.save(again=True)
        return result

    async def _run(
        self,
        command: Sequence[str],
        *,
        timeout: float,
        input: bytes | BinaryIO | None,
        cwd: str | None,
        max_output: int,
        user: str | None = None,
        environment: Mapping[str, str],
        sink: ToFile | None = None,
    ) -> ExecResult:
        directory = self._inside(cwd)
        check_words(command)
        await self._prepare()
        with self._disk.command():
            return await self._with_restart_note(
                lambda: run_process(
                    lambda stdin, output: self._start(
                        command, directory, stdin, output, alone=True, user=user, variables=environment
                    ),
                    timeout=timeout,
                    input=input,
                    max_output=max_output,
                    sink=sink,
                )
            )

    async def spawn(self, command: str, *, cwd: str | None = None) -> BackgroundProcess:
        """Start a command line in the background. Without ``cwd`` it starts where the persistent shell is, with its variables."""
        await self._prepare()
        words = self._background_words(command, cwd)
        check_words(words)
        self._note_live(True)
        self._disk.background()
        number = f"p{len(self._background) + 1}"
        directory = self._launcher.start_directory
        try:
            process = Background(
                number,
                command,
                lambda stdin, output: self._start(words, directory, stdin, output, alone=True),
            )
        except ItemError:
            self._note_liveness()
            raise
        self._background[number] = process
        process.on_end(self._note_liveness)
        return process

    def background(self) -> Mapping[str, BackgroundProcess]:
        return dict(self._background)

    async def read_file(self, path: str, *, max_bytes: int = 50_000_000) -> bytes:
        self._check_open()
        return await self._files.read(self._inside(path), max_bytes, self._run_inside)

    async def write_file(self, path: str, data: bytes) -> None:
        self._check_open()
        await self._files.write(self._inside(path), data, self._run_inside)

    async def put(self, archive: BinaryIO, path: str) -> None:
        self._check_open()
        await put_inside(self._run_inside, archive, self._inside(path))

    async def get(self, path: str, archive: BinaryIO, *, max_bytes: int) -> None:
        self._check_open()
        await get_inside(self._run_inside, self._inside(path), archive, max_bytes)

    async def begin_step(self, address: str) -> None:
        self._check_open()
        await self._disk.wait_for_space()
        if self._live is not False:  # else nothing was left by the last command, and nobody has started anything since
            self._note_liveness()
        begin = partial(asyncio.to_thread, self._checkpoint.begin, address, whole=self._whole)
        await with_space(lambda: to_the_end(begin()))

    async def end_step(self) -> None:
        """Bringing the mirror up to date takes so little that it is done when the next step begins."""

    async def reattach(self, recorded: bool, address: str) -> bool:
        self._check_open()
        return await to_the_end(asyncio.to_thread(self._checkpoint.reattach, recorded, address))

    async def end_processes(self) -> bool:
        self._check_open()
        await self.thaw()
        self._note_liveness()
        left = self._live is not False
        await self._launcher.kill()
        await self._end_processes()
        if self._shell is not None:
            self._retire(self._shell)
            self._shell = None
        await self._prepare()
        self._shell_lost = self._jobs = False
        self._state.take(ShellState(self._launcher.start_directory))
        self._note_live(False)
        return left

    async def freeze(self) -> None:
        self._check_open()
        entries = [process.pid for process in self._processes if process.exit_code is None]
        if self._frozen is not None:
            return
        self._frozen = Frozen(entries)
        if not await self._frozen.stop(self._launcher.processes):
            await self._launcher.kill()

    async def thaw(self) -> None:
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            await to_the_end(frozen.thaw())

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await to_the_end(_outcome(self._closing))

    async def discard(self) -> None:
        await self.close()

    async def _close(self) -> None:
        await self.thaw()
        if not self._fronted:  # else what is in front of a command has to reap it first
            await self._end_processes()  # so that the launcher finds next to nothing left
        await self._launcher.stop()
        await self._end_processes()
        for shell in (self._shell, *self._retired):
            if shell is not None:
                shell.release()
        for background in self._background.values():
            background.release()
        await self._disk.close()
        await asyncio.to_thread(self._drop_set_ids)

    async def _end_processes(self) -> None:
        running = [process for process in self._processes if process.exit_code is None]
        for process in running:
            process.kill_group()
        await asyncio.gather(*(process.wait_for(2.0) for process in running))

    def _drop_set_ids(self) -> None:
        for tree in self._trees:
            with suppress(OSError):  # nobody else is kept from anything by a tree that can't be read
                drop_set_ids(tree)

    async def _prepare(self) -> None:
        """Have the sandbox running: somebody outside may have killed it."""
        self._check_open()
        if await prepared(self._launcher):
            self._shell_lost = True
            self._restarts += 1
        self._check_open()

    async def _with_restart_note(self, run: Callable[[], Awaitable[ExecResult]]) -> ExecResult:
        """What a command came to. One that ended because the whole sandbox was killed meanwhile says so, and the next finds it started
        anew, with its files."""
        restarts = self._restarts
        result = await run()
        if result.exit_code in (0, None) or self._closing is not None:
            return result
        if result.exit_code == _KILLED:
            await asyncio.sleep(_TO_END)  # what is killed with the sandbox ends a little before it
        await self._prepare()
        if self._restarts == restarts:
            return result
        return replace(result, exit_code=_KILLED, output=result.output + RESTARTED)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ItemError(Cause.SANDBOX_LOST, "the sandbox is closed")
        self._disk.check()

    def _start(
        self,
        command: Sequence[str],
        directory: str,
        stdin: int,
        output: int,
        *,
        errors: int | None = None,
        keep: Sequence[int] = (),
        alone: bool,
        user: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Process:
        given = variables or {}
        process = Process(
            self._launcher.command(command, directory, user, variables=list(given)),
            {**self._launcher.environment, **self._launcher.handed(given)},
            stdin=stdin,
            output=output,
            errors=errors,
            keep=(*keep, *self._launcher.keep),
            alone=alone,
            spawn=self._launcher.spawn,
            tag=self._launcher.tag,
        )
        self._processes.add(process)
        process.on_end(lambda _: self._processes.discard(process))
        return process

    async def _run_inside(
        self,
        command: list[str],
        *,
        timeout: float,
        input: bytes | BinaryIO | None = None,
        max_output: int = 100_000,
        sink: ToFile | None = None,
    ) -> ExecResult:
        return await self._run(
            command, timeout=timeout, input=input, cwd="/", max_output=max_output, environment={}, sink=sink
        )

    def _inside(self, path: str | None) -> str:
        """A path as seen inside, made absolute."""
        if path is None:
            return self._launcher.start_directory
        if "\0" in path or not path:
            raise ToolError("a path can't be empty or hold a NUL character")
        return posixpath.join(self._launcher.start_directory, path)

    # The persistent shell

    async def _shell_for(self, command: str, timeout: float, max_output: int) -> ExecResult:
        if self._shell_busy:
            return await self._in_a_shell(lambda: self._shell_beside(command, timeout, max_output))
        self._shell_busy = True
        try:
            return await self._in_a_shell(lambda: self._shell_once(command, timeout, max_output))
        finally:
            self._shell_busy = False
            self._note_liveness()

    async def _in_a_shell(self, attempt: Callable[[], Awaitable[ExecResult]]) -> ExecResult:
        """Try several times to get a shell: something may just have killed everything, so that the first one can't start."""
        for pause in _SECOND_TRIES:
            try:
                return await attempt()
            except ShellNotStarted as error:
                if pause is None:
                    raise ItemError(Cause.SANDBOX_LOST, f"the shell does not start: {error}") from error
                await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _shell_once(self, command: str, timeout: float, max_output: int) -> ExecResult:
        await self._prepare()
        if self._shell is not None and (self._shell_lost or not self._shell.alive):
            self._retire(self._shell)
            self._shell = None
        self._shell_lost = False
        shell = self._shell = self._shell or self._new_shell()
        try:
            return await self._with_restart_note(lambda: shell.run(command, timeout=timeout, max_output=max_output))
        finally:
            self._after_command(shell)

    async def _shell_beside(self, command: str, timeout: float, max_output: int) -> ExecResult:
        await self._prepare()
        shell = self._new_shell()
        try:
            return await self._with_restart_note(lambda: shell.run(command, timeout=timeout, max_output=max_output))
        finally:
            if shell.alive:
                await to_the_end(shell.dismiss())
            self._jobs = self._jobs or shell.state.jobs
            self._retire(shell)
            self._note_liveness()

    def _new_shell(self) -> Shell:
        directory = self._launcher.start_directory

        def start(command: list[str], stdin: int, output: int, report: int) -> Process:
            if self._bash:
                return self._start(command, directory, stdin, output, keep=(report,), alone=False)
            return self._start(command, directory, stdin, output, errors=report, alone=False)

        return Shell(
            start,
            self._state.last,
            fallback=directory,
            marks=marks(self._launcher.environment),
            fronted=self._fronted,
            bash=self._bash,
        )

    def _after_command(self, shell: Shell) -> None:
        if shell.state is not self._state.last:
            self._jobs = shell.state.jobs
            self._state.take(shell.state)
        if not shell.alive:
            self._shell = None
            self._retire(shell)

    def _retire(self, shell: Shell) -> None:
        """Keep a dead shell's output flowing for as long as something of its background writes there."""
        self._retired.append(shell)
        for old in [old for old in self._retired if old.silent]:
            old.release()
            self._retired.remove(old)

    # The background

    def _background_words(self, command: str, cwd: str | None) -> list[str]:
        state = self._state.last
        directory = self._inside(cwd) if cwd is not None else state.directory
        script = state.script if len(os.fsencode(state.script)) <= _MAX_ARGUMENT else ""
        if not self._bash:
            return ["/bin/sh", "-c", _IN_SH_STATE, "sh", script, directory, command]
        marked = marks(self._launcher.environment)
        return ["bash", "--noprofile", "--norc", "-c", _IN_STATE, "bash", script, directory, command, *marked]

    def _note_liveness(self) -> None:
        if self._closing is None:
            running = any(process.exit_code is None for process in self._background.values())
            self._note_live(running or self._left_running())

    def _anything_running(self) -> bool:
        """Whether anything may be running that is not a command whose end somebody waits for."""
        if self._launcher.members() is None or any(each.exit_code is None for each in self._background.values()):
            return True
        return self._left_running()

    def _clear(self) -> None:
        """Remove all files of the sandbox, and what is known of them."""
        for tree in (*self._trees, self._folder / "state"):
            if tree.is_dir():
                clear_folder(tree)
        self._checkpoint.forget()

    def _left_running(self) -> bool:
        """Whether a shell command left something running, as far as it can be known."""
        members = None if self._shell_busy else self._launcher.members()
        if members is None:
            return self._jobs
        members -= self._shell.own_processes() if self._shell is not None else set()
        lines = [line for pid in members if (line := process_line(pid)) is not None and line.state not in "ZX"]
        # What runs in the session of a program of ours still running is that program's.
        ours = {process.pid for process in self._processes} - ({self._shell.pid} if self._shell is not None else set())
        return any(line.session not in ours for line in lines)

    def _note_live(self, live: bool) -> None:
        if live != self._live:
            try:
                self._checkpoint.set_live(live)
            except OSError as error:
                if not is_full(error):
                    raise
                self._live = None
                return  # noted before the next step, when whoever has filled the disk has been ended
            self._live = live


async def _outcome(task: asyncio.Task[None]) -> None:
    await task


def check_words(words: Sequence[str]) -> None:
    """Raises ToolError for what can't be a command."""
    if not words or any("\0" in word for word in words):
        raise ToolError("a command can't be empty or hold a NUL character")
