"""An agent that is a program: it reads JSON objects from its standard input, a line each, and answers each with a line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import exact_line, loads_outside
from manyhands.core.redaction import KNOWN, Redactor
from manyhands.processes.commands import CommandRunner, RunningCommand
from manyhands.processes.output import KeptStream
from manyhands.workloads.memory.agents.external.agent import REFUSED

MAX_LINE = 16 << 20
"""Bytes of an answer at most."""
TIME_VARIABLE = "MANYHANDS_TIME"
"""The environment variable that holds the virtual time at which a program was started, in seconds since 1970 UTC."""
_GRACE = 2.0
_OUTPUT_KEPT = 4096
"""Bytes of its output that are kept besides the line that is read."""


class ProgramConnection:
    """The way to an agent that is a program.

    ``mark``: what marks the run's processes; ``seconds``: for one answer; ``errors``: file that gets what the
    program writes to standard error."""

    def __init__(
        self, words: Sequence[str], *, folder: Path, mark: str, seconds: float, errors: Path, started_at: float
    ) -> None:
        self._words = list(words)
        self._mark = mark
        self._folder = folder
        self._time = {TIME_VARIABLE: repr(started_at)}
        self._seconds = seconds
        self._errors = errors
        self._open = AsyncExitStack()
        self._command: RunningCommand | None = None
        self._kept: KeptStream | None = None
        self._lines = _Lines()

    async def open(self) -> None:
        self._errors.parent.mkdir(parents=True, exist_ok=True)
        runner = await self._open.enter_async_context(CommandRunner.opened(self._mark, os.environ))
        self._kept = KeptStream(self._errors, Redactor.of(os.environ), append=True)
        self._open.callback(self._kept.close)
        try:
            self._command = runner.start(
                self._words,
                folder=self._folder,
                additions=self._time,
                input=None,
                max_output=_OUTPUT_KEPT,
                on_output=self._lines.feed,
                on_errors=self._kept.feed,
            )
        except ItemError as error:
            raise ItemError(Cause.TARGET_ERROR, error.message) from error

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        command = self._command
        if command is None:
            raise RuntimeError("the program has not been started")
        try:
            async with asyncio.timeout(self._seconds):
                if not await command.write(exact_line(message)):
                    raise self._broken("can't be talked to (it reads no input)")
                line = await self._line(command)
        except TimeoutError:
            raise self._broken(f"gave no answer within {self._seconds:g} seconds") from None
        try:
            found = loads_outside(line)
        except ValueError:
            raise self._broken(f"answered with a line that is not JSON: {shown(line)}") from None
        if not isinstance(found, dict):
            raise self._broken(f"answered with no JSON object: {shown(line)}")
        if found.get("error") and message["type"] == "reset":
            return {REFUSED: f"the program says: {KNOWN.text(str(found['error']))[:300]}"}
        if found.get("error"):
            raise self._broken(f"says: {KNOWN.text(str(found['error']))[:500]}")
        return found

    async def _line(self, command: RunningCommand) -> bytes:
        """The next line that it prints. Raises ItemError if it ends, or prints more than a line may be, without one."""
        waits = [asyncio.ensure_future(wait) for wait in (command.wait(), command.output_ended())]
        try:
            while (line := self._lines.next()) is None:
                if self._lines.overflowed:
                    raise self._broken(f"can't be talked to (a line of more than {MAX_LINE >> 20} MiB)")
                if any(wait.done() for wait in waits):
                    return await self._last_line(command)
                more = asyncio.ensure_future(self._lines.more())
                try:
                    await asyncio.wait((*waits, more), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    more.cancel()
            return line
        finally:
            for wait in waits:
                wait.cancel()

    async def _last_line(self, command: RunningCommand) -> bytes:
        """What a program printed before it ended, or closed its output."""
        with suppress(TimeoutError):
            await asyncio.wait_for(command.wait(), _GRACE)
        await command.gathered()
        line = self._lines.next()
        if line is None:
            raise self._broken(f"ended ({_ending(command.exit_code)}) without an answer")
        return line

    async def close(self) -> None:
        command, self._command = self._command, None
        if command is not None:
            command.end_input()
            await command.close(patience=_GRACE)
        await self._open.aclose()

    def _broken(self, what: str) -> ItemError:
        return ItemError(Cause.TARGET_ERROR, f"the agent's program {self._words[0]} {what}{self._last_words()}")

    def _last_words(self) -> str:
        text = (
            ""
            if self._command is None or self._kept is None
            else self._command.so_far().errors.decode(errors="replace").strip()
        )
        return f"; its last words: {KNOWN.text(text.splitlines()[-1])[:300]}" if text else ""


class _Lines:
    """What a program prints, line by line. ``overflowed``: more has come than a line may be, and some of it was dropped."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0
        self._came = asyncio.Event()
        self.overflowed = False

    def feed(self, data: bytes) -> None:
        """Add what came next."""
        self.overflowed = self.overflowed or len(self._held) + len(data) > MAX_LINE
        if not self.overflowed:
            self._held += data
        self._came.set()

    def next(self) -> bytes | None:
        """Take the next whole line; None if there is none yet."""
        self._came.clear()
        end = self._held.find(b"\n", self._searched) + 1
        self._searched = 0 if end else len(self._held)
        if not end:
            return None
        line = bytes(self._held[:end])
        del self._held[:end]
        return line

    async def more(self) -> None:
        """Wait for anything that came after the last look."""
        await self._came.wait()


def shown(line: bytes | str) -> str:
    """The beginning of a line, for messages."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return repr(KNOWN.text(text)[:200])


def _ending(code: int | None) -> str:
    if code is None:
        return "or closed its output"
    return f"exit code {code}" if code <= 128 else f"signal {code - 128}"
