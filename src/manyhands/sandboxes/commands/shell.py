"""A shell that lives on from command to command: a bash, or where there is none a plain ``sh``.

The shell reads its script from a pipe. Each command is sent as one ``eval`` with ``/dev/null`` as standard input.
Afterwards a function of ours reports over a pipe of its own: exit code, directory, whether jobs still run, and the
shell's whole state (options, functions, variables, aliases) as text that a new shell can evaluate. So a shell that was
stopped, killed or left by ``exit`` is replaced by one that goes on from the last known state, also in another process.
Only builtins are used: a report costs no fork.

Beside it: commands that are left running in the background.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from manyhands.core.errors import ToolError
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
from manyhands.sandboxes.commands.shell_state import (
    BASH,
    SH,
    Report,
    ShellState,
    bash_beginning,
    bash_line,
    sh_beginning,
    sh_line,
)

_LAST_MOMENTS = 2.0


class ShellNotStarted(Exception):
    """The shell ended before it could take its first command. The message is what it said."""


class Shell:
    """One shell. ``state`` is what it goes on from, and afterwards its last known state.

    ``start(command, stdin, output, report)`` starts the shell with these descriptors: ``report`` besides, or with ``sh`` (not ``bash``) as
    that of its errors. ``fronted`` says whether the process so started is the shell's parent rather than the shell itself.
    ``fallback``: where to start if the state's
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
        bash: bool = True,
    ) -> None:
        self._fronted = fronted
        self._bash = bash
        self.state = state
        self._usable = True
        self._token = secrets.token_hex(8)
        self._capture = Capture(1 << 16)
        self._report = Report()
        self._waiter: asyncio.Future[None] | None = None
        (input_end, script_end), (read_end, output_end), (status_end, report_end) = fresh_pipes(3)
        try:
            self._process = start(BASH if bash else SH, input_end, output_end, report_end)
        except BaseException:
            close_all(script_end, read_end, status_end)
            raise
        finally:
            close_all(input_end, output_end, report_end)
        self._output = PipeReader(read_end, self._capture_output)
        self._status = PipeReader(status_end, self._feed_status)
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
        line = bash_line(command, self._numbers[0]) if self._bash else sh_line(command)
        text, self._beginning = self._beginning + line, ""
        sending = asyncio.ensure_future(self._script.write(text.encode(errors="surrogateescape")))
        try:
            await self._reported(timeout)
        finally:
            sending.cancel()
        if self._process.exit_code is not None:
            self._status.drain()
        if self._report.arrived.is_set():
            return await self._read_report(deadline)
        return await self._gone() if self._process.exit_code is not None else None

    async def _reported(self, seconds: float) -> None:
        """Wait for a report, or the shell's end, ``seconds`` at most."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        self._process.ended.add_done_callback(self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._process.ended.remove_done_callback(self._wake)

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _feed_status(self, data: bytes) -> None:
        self._report.feed(data)
        if self._report.arrived.is_set():
            self._wake()

    async def _read_report(self, deadline: float) -> int | None:
        fields = self._report.take()
        if fields is None or fields[0] != self._token:  # something else wrote there: trust this shell no further
            await self.dismiss()
            return 1
        kind, code, directory, jobs, script = fields[1:6]
        left = bool(jobs.rstrip("|")) if self._bash else "Running" in jobs or "Stopped" in jobs
        self.state = ShellState(directory, script or self.state.script, jobs=left)
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
            said = self._report.noise + self._capture.joined()
            raise ShellNotStarted(said.decode(errors="replace").strip())
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
        if not self._bash:
            return sh_beginning(self.state, token=self._token, fallback=fallback)
        return bash_beginning(
            self.state,
            token=self._token,
            fallback=fallback,
            exports=marks,
            output=self._numbers[0],
            status=self._numbers[1],
            report=report,
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
