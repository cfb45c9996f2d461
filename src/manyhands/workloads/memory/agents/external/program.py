"""An agent that is a program: it reads JSON objects from its standard input, a line each, and answers each with a line."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import exact_line, loads_outside
from manyhands.core.redaction import KNOWN
from manyhands.io.files import mask_secrets
from manyhands.processes.guard import Guard
from manyhands.processes.strays import MARK
from manyhands.processes.tags import Tags, tagged_words
from manyhands.workloads.memory.agents.external.agent import REFUSED

MAX_LINE = 16 << 20
"""Bytes of an answer at most."""
TIME_VARIABLE = "MANYHANDS_TIME"
"""The environment variable that holds the virtual time at which a program was started, in seconds since 1970 UTC."""
_GRACE = 2.0
_ERRORS_KEPT = 4000


def command_words(text: str) -> list[str]:
    """The words of a command line. Raises UserError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--agent_name: not a command line: {error}") from error
    if not words:
        raise UserError("--agent_name: a command is needed after command:")
    return words


class ProgramLine:
    """See ``outside.Line``. ``mark``: what marks the run's processes; ``seconds``: for one answer; ``errors``: file that gets what the
    program writes to standard error."""

    def __init__(
        self, words: Sequence[str], *, folder: Path, mark: str, seconds: float, errors: Path, started_at: float
    ) -> None:
        self._words = list(words)
        self._mark = mark
        self._tags = Tags()
        self._guard: Guard | None = None
        self._folder = folder
        self._environment = {**os.environ, MARK: mark, TIME_VARIABLE: repr(started_at)}
        self._seconds = seconds
        self._errors = errors
        self._process: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        self._errors.parent.mkdir(parents=True, exist_ok=True)
        self._guard = Guard(
            f"{MARK}={self._mark}", self._tags
        )  # a program that goes on without us is ended when we are killed
        with self._errors.open("ab") as errors:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *tagged_words(self._words, self._tags.new(), self._environment, self._folder),
                    cwd=self._folder,
                    env=self._environment,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                    limit=MAX_LINE,
                )
            except OSError as error:
                raise ItemError(Cause.TARGET_ERROR, f"{self._words[0]} can't be started: {error.strerror}") from error

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("the program has not been started")
        try:
            async with asyncio.timeout(self._seconds):
                process.stdin.write(exact_line(message))
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            raise self._broken(f"gave no answer within {self._seconds:g} seconds") from None
        except (ConnectionError, ValueError) as error:
            raise self._broken(f"can't be talked to ({error})") from error
        if not line:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE)
            raise self._broken(f"ended ({_ending(process.returncode)}) without an answer")
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

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await _ended(process)
            await asyncio.to_thread(self._tags.kill_all)  # what it started and let go
            await asyncio.to_thread(mask_secrets, self._errors)
        if self._guard is not None:
            await self._guard.dismiss()

    def _broken(self, what: str) -> ItemError:
        return ItemError(Cause.TARGET_ERROR, f"the agent's program {self._words[0]} {what}{self._last_words()}")

    def _last_words(self) -> str:
        with suppress(OSError), self._errors.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _ERRORS_KEPT))
            text = file.read(_ERRORS_KEPT).decode(errors="replace").strip()
            if text:
                return f"; its last words: {KNOWN.text(text.splitlines()[-1])[:300]}"
        return ""


def shown(line: bytes | str) -> str:
    """The beginning of a line, for messages."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return repr(KNOWN.text(text)[:200])


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a program and all that it has started: by the end of its input, else by signals."""
    try:
        if process.stdin is not None:
            process.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _GRACE)
                break
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int | None) -> str:
    if code is None:
        return "or closed its output"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
