"""A bash that lives on from command to command.

The shell reads its script from a pipe. Each command is sent as one ``eval`` with ``/dev/null`` as standard input.
Afterwards a function of ours reports over a pipe of its own: exit code, directory, whether jobs still run, and the
shell's whole state (options, functions, variables, aliases) as text that a new shell can evaluate. So a shell that was
stopped, killed or left by ``exit`` is replaced by one that goes on from the last known state, also in another process.
Only builtins are used: a report costs no fork.

Beside it: commands that are left running in the background, and the file that keeps a shell's last state.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.io.files import is_full
from manyhands.processes.children import (
    ExecResult,
    PipeReader,
    PipeWriter,
    Process,
    close_all,
    fresh_pipes,
    started_with_pipes,
    to_the_end,
)
from manyhands.processes.output import Capture
from manyhands.processes.system import children, ticks_now

_MAX_REPORT = 8 << 20
_FIELDS = 6
_LAST_MOMENTS = 2.0
_COMMAND = ["bash", "--noprofile", "--norc", "-s"]
_LINE = '\ndeclare -a BASH_LINENO=([0]="'

# {report}: descriptor of the report pipe as inherited; {output}, {status}: numbers not otherwise used in the child.
_BEGINNING = """\
shopt -s expand_aliases
{{ builtin eval {state}; }} >/dev/null 2>&1
builtin export {exports} >/dev/null
builtin cd -- {directory} 2>/dev/null || builtin cd -- {fallback}
exec {output}>&1 {status}>&{report} {report}>&- >/dev/null 2>&1
__manyhands_report() {{
  {{ builtin printf '%s\\0%s\\0%s\\0%s\\0' {token} "$1" "$2" "$PWD"; builtin jobs -rp; builtin printf '\\0'
    builtin shopt -p; builtin declare -f; builtin declare -p; builtin alias -p; builtin printf '\\0'; }} >&{status} 2>/dev/null
}}
builtin trap '__manyhands_report exit "$?"' EXIT
builtin printf + >&{status}
"""


class ShellNotStarted(Exception):
    """The shell ended before it could take its first command. The message is what it said."""


@dataclass(frozen=True, slots=True)
class ShellState:
    """What a shell leaves to its successor."""

    directory: str
    """Absolute, as seen inside."""
    script: str = ""
    """Text for bash."""
    jobs: bool = False
    """Whether jobs were running in its background."""

    def to_bytes(self) -> bytes:
        """For a file. Jobs are left out: they do not outlive the sandbox."""
        return b"\0".join(part.encode(errors="surrogateescape") for part in (self.directory, self.script))

    def same_but_for_line(self, other: ShellState) -> bool:
        """Whether a file of one need not be replaced by one of the other: all that differs is how many lines the shell has read."""
        return self.directory == other.directory and _without_line(self.script) == _without_line(other.script)

    @classmethod
    def from_bytes(cls, data: bytes) -> ShellState:
        directory, _, script = data.decode(errors="surrogateescape").partition("\0")
        return cls(directory, script)


def _without_line(script: str) -> str:
    if script.count(_LINE) != 1:
        return script
    before, _, after = script.partition(_LINE)
    return before + after[after.find('"') :]


class _Report:
    """Gathers what the report function writes, and knows when it is whole."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._ends = 0
        self.begun = False
        self.arrived = asyncio.Event()

    def feed(self, data: bytes) -> None:
        if not self.begun:  # the first byte says that the shell is ready
            self.begun, data = True, data[1:]
        self._size += len(data)
        self._ends += data.count(b"\0")
        if self._size <= _MAX_REPORT:
            self._parts.append(data)
        if self._ends >= _FIELDS:
            self.arrived.set()

    def take(self) -> list[str] | None:
        """The fields, or None if what came is not a report."""
        whole, fields = self._size <= _MAX_REPORT, b"".join(self._parts).split(b"\0")
        self._parts, self._size, self._ends = [], 0, 0
        self.arrived.clear()
        if len(fields) != _FIELDS + 1 or not fields[2].isdigit() or len(fields[2]) > 9:
            return None
        text = [field.decode(errors="surrogateescape") for field in fields]
        return text if whole else [*text[:5], ""]


class Shell:
    """One bash. ``state`` is what it goes on from, and afterwards its last known state.

    ``start(command, stdin, output, keep)`` starts bash with these descriptors, ``keep`` besides; ``fronted`` says
    whether the process so started is bash's parent rather than bash itself. ``fallback``: where to start if the state's
    directory is gone. ``marks``: ``NAME=value``, exported whatever the state says. Made in the event loop's thread.
    """

    def __init__(
        self,
        start: Callable[[list[str], int, int, int], Process],
        state: ShellState,
        *,
        fallback: str,
        marks: Sequence[str],
        fronted: bool,
    ) -> None:
        self._fronted = fronted
        self.state = state
        self._usable = True
        self._token = secrets.token_hex(8)
        self._capture = Capture(1 << 16)
        self._report = _Report()
        (input_end, script_end), (read_end, output_end), (status_end, report_end) = fresh_pipes(3)
        try:
            self._process = start(_COMMAND, input_end, output_end, report_end)
        except BaseException:
            close_all(script_end, read_end, status_end)
            raise
        finally:
            close_all(input_end, output_end, report_end)
        self._output = PipeReader(read_end, self._capture_output)
        self._status = PipeReader(status_end, self._report.feed)
        self._script = PipeWriter(script_end)
        self._numbers = [number for number in (201, 202, 203) if number != report_end][:2]
        self._beginning = self._first_lines(report_end, fallback, marks)

    @property
    def alive(self) -> bool:
        """Whether it can take a command."""
        return self._usable and self._process.exit_code is None

    async def run(self, command: str, *, timeout: float, max_output: int) -> ExecResult:
        """Run one command line. Afterwards ``alive`` says whether this shell can take another one. Raises ToolError for
        text that no shell can take, and ShellNotStarted, in which case the command was not run."""
        if "\0" in command:
            raise ToolError("the command holds a NUL character, which no shell takes; leave it out")
        began = time.monotonic()
        since = ticks_now()
        self._capture = self._with_leftovers(max_output)
        try:
            exit_code = await self._execute(command, timeout)
            if exit_code is None:
                await self._abort(since)
        except asyncio.CancelledError:
            await to_the_end(self._abort(since))
            raise
        self._output.drain()
        capture, self._capture = self._capture, Capture(1 << 16)
        timed_out = exit_code is None
        seconds = time.monotonic() - began
        return ExecResult(exit_code, capture.joined(), capture.omitted, timed_out=timed_out, seconds=seconds)

    async def dismiss(self) -> None:
        """Let the shell end, but leave alone what runs in its background."""
        self._usable = False
        self._script.close()
        await self._kill_bash()
        await self._process.wait_for(_LAST_MOMENTS)
        self._status.close()

    def release(self) -> None:
        """Close our ends of its pipes."""
        self._usable = False
        self._script.close()
        self._status.close()
        self._output.close()

    @property
    def pid(self) -> int:
        """The process that was started for it, as the host counts."""
        return self._process.pid

    def own_processes(self) -> set[int]:
        """The ids of the processes that are the shell itself, not what it started; empty if it has ended."""
        if self._process.exit_code is not None:
            return set()
        pid = self._process.pid
        return {pid, *(children(pid) if self._fronted else ())}

    @property
    def silent(self) -> bool:
        """Whether nobody can write to the shell's output any more."""
        return self._output.ended.is_set()

    async def _execute(self, command: str, timeout: float) -> int | None:
        """The exit code; None if the time limit was reached."""
        deadline = time.monotonic() + timeout
        line = (
            f'builtin eval {shlex.quote(command)} </dev/null >&{self._numbers[0]} 2>&1; __manyhands_report done "$?"\n'
        )
        text, self._beginning = self._beginning + line, ""
        sending = asyncio.ensure_future(self._script.write(text.encode(errors="surrogateescape")))
        ending = asyncio.ensure_future(self._process.wait())
        reporting = asyncio.ensure_future(self._report.arrived.wait())
        try:
            await asyncio.wait([ending, reporting], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, ending, reporting):
                task.cancel()
        if self._process.exit_code is not None:
            self._status.drain()
        if self._report.arrived.is_set():
            return await self._read_report(deadline)
        return await self._gone() if self._process.exit_code is not None else None

    async def _read_report(self, deadline: float) -> int | None:
        fields = self._report.take()
        if fields is None or fields[0] != self._token:  # something else wrote there: trust this shell no further
            await self.dismiss()
            return 1
        kind, code, directory, jobs, script = fields[1:6]
        self.state = ShellState(directory, script or self.state.script, jobs=bool(jobs.strip()))
        if kind == "done":
            return int(code)
        await self._process.wait_for(min(_LAST_MOMENTS, max(0.0, deadline - time.monotonic())))
        await self.dismiss()
        return int(code)

    async def _gone(self) -> int:
        """It ended without a report: by ``exec``, by a signal, or with the sandbox."""
        await self.dismiss()
        if not self._report.begun:
            self._output.drain()
            raise ShellNotStarted(self._capture.joined().decode(errors="replace").strip())
        return self._process.exit_code or 0

    async def _abort(self, since: int) -> None:
        """Stop the running command, and with it this shell; what earlier commands left in the background goes on."""
        await self._kill_bash()
        await self._process.stop(since=since)
        await self.dismiss()

    async def _kill_bash(self) -> None:
        """Before anything else ends: bash would go on with the next command of the line."""
        if self._process.exit_code is not None:
            return
        if not self._fronted:
            self._process.kill()
            return
        for pid in await asyncio.to_thread(children, self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _capture_output(self, data: bytes) -> None:
        self._capture.feed(data)

    def _with_leftovers(self, max_output: int) -> Capture:
        """A fresh capture that begins with what background jobs wrote since the last command."""
        capture = Capture(max_output)
        if self._capture.total:
            capture.feed(self._capture.read(0, self._capture.limit))
        return capture

    def _first_lines(self, report: int, fallback: str, marks: Sequence[str]) -> str:
        return _BEGINNING.format(
            state=shlex.quote(self.state.script),
            directory=shlex.quote(self.state.directory),
            fallback=shlex.quote(fallback),
            exports=shlex.join(marks),
            output=self._numbers[0],
            status=self._numbers[1],
            report=report,
            token=self._token,
        )


_KEPT_OUTPUT = 1 << 20


class Background:
    """A ``BackgroundProcess`` on a child process. The first and the last half MiB of its output are kept."""

    def __init__(self, id: str, command: str, start: Callable[[int, int], Process]) -> None:
        self._id = id
        self._command = command
        self._capture = Capture(_KEPT_OUTPUT)
        self._process, self._reader, self._writer = started_with_pipes(start, self._capture.feed)

    @property
    def id(self) -> str:
        return self._id

    @property
    def command(self) -> str:
        return self._command

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    def on_end(self, call: Callable[[], object]) -> None:
        """Have ``call`` called soon after the end."""
        self._process.on_end(lambda _: call())

    def output(self, start: int = 0, max_output: int = 50_000) -> tuple[bytes, int]:
        self._reader.drain()
        return self._capture.read(start, max_output), self._capture.total

    async def write(self, data: bytes) -> None:
        """Raises ToolError if nobody reads it."""
        if self.exit_code is not None or not await self._writer.write(data):
            raise ToolError(f"process {self._id} takes no more input: it has ended or its input is closed")

    async def close_input(self) -> None:
        self._writer.close()

    async def wait(self, timeout: float) -> int | None:
        exit_code = await self._process.wait_for(timeout)
        self._reader.drain()
        return exit_code

    async def kill(self) -> None:
        if self.exit_code is None:
            await to_the_end(self._process.stop())

    def release(self) -> None:
        """Close our ends of its pipes; what it wrote so far stays readable."""
        self._reader.drain()
        self._reader.close()
        self._writer.close()


class StateFile:
    """The file in which a shell's last state is kept, for the next shell, also that of a later session. ``directory``: where a first shell
    starts."""

    def __init__(self, file: Path, directory: str) -> None:
        self._file = file
        self._directory = directory
        self._last: ShellState | None = None
        self._saved: ShellState | None = None
        """What the file holds."""
        self.unsaved = False
        """Whether the last state could not be written because the disk was full."""

    @property
    def last(self) -> ShellState:
        """The state in which the last command left its shell."""
        if self._last is None:
            try:
                self._last = ShellState.from_bytes(self._file.read_bytes())
            except OSError:
                self._last = ShellState(self._directory)
        return self._last

    def take(self, state: ShellState) -> None:
        """Remember a state, and write it if it differs from what the file holds. Raises ItemError(SANDBOX_LOST)."""
        self._last = state
        if self._saved is None or not self._saved.same_but_for_line(state):
            self.save()

    def save(self, *, again: bool = False) -> None:
        """Write the last state. ``again``: there was no space before, and must be now. Raises ItemError(SANDBOX_LOST)."""
        state, aside = self.last, self._file.parent.with_name("shell.tmp")
        self._saved = None
        try:
            _write_allocated(aside, state.to_bytes())
            aside.replace(self._file)
            self._saved, self.unsaved = state, False
        except OSError as error:
            if again or not is_full(error):
                raise ItemError(Cause.SANDBOX_LOST, f"can't keep the shell's state: {error.strerror}") from error
            self.unsaved = True


def _write_allocated(file: Path, data: bytes) -> None:
    """Write a file whose space on the disk is taken first: one that took another one's name without would be written out at once by ext4
    (ext4(5), ``auto_da_alloc``), which takes longer than most commands."""
    with file.open("wb", buffering=0) as opened:
        try:
            os.posix_fallocate(opened.fileno(), 0, len(data))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        opened.write(data)
