"""The ways to agents outside: a server that JSON is posted to, a program that reads and writes lines of JSON, a person at the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import exact_line, loads_outside
from manyhands.core.redaction import KNOWN, Redactor
from manyhands.models.openai.http import answer_body
from manyhands.processes.commands import CommandRunner, RunningCommand
from manyhands.processes.output import KeptStream
from manyhands.workloads.memory.agents.external_agent import REFUSED

TIME_HEADER = "X-Manyhands-Time"
"""The header that holds the virtual time, as RFC 3339 in UTC."""
KEY_VARIABLE = "MANYHANDS_AGENT_KEY"
"""The environment variable that holds a key for servers that want one. Keys of models are not sent to agents."""
MAX_ANSWER = 16 << 20
"""Bytes of an answer, or of a program's line."""
_NOT_OFFERED = (404, 405, 501)
_NOT_UNDERSTOOD = (*_NOT_OFFERED, 400, 422)


class HttpConnection:
    """The way to an agent that is a server. One that does not know ``load``, ``exchange`` or ``forward_time`` (404, 405, 501) is taken to
    go by what it remembers; one that does not know ``reset`` can't forget."""

    def __init__(self, url: str, *, seconds: float, key: str | None = None) -> None:
        """``seconds``: for one answer; ``key``: sent as a bearer token."""
        self._url = url
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self._headers)

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._session is None:
            raise RuntimeError("the connection is not open")
        headers = {TIME_HEADER: datetime.fromtimestamp(float(message["now"]), UTC).isoformat()}
        try:
            async with self._session.post(
                self._url, json=dict(message), headers=headers, allow_redirects=False
            ) as response:
                if response.status in _NOT_UNDERSTOOD and message["type"] == "reset":
                    return {REFUSED: f"{self._url} answered {response.status}"}
                if response.status in _NOT_OFFERED and message["type"] != "message":
                    return {"number": message["number"]} if message["type"] == "load" else {}
                if response.status >= 300:  # no redirect is followed: it may lead the key, and what is said, elsewhere
                    text = KNOWN.text((await answer_body(response, MAX_ANSWER)).decode("utf-8", "replace"))[:300]
                    cause = Cause.RATE_LIMIT if response.status == 429 else Cause.TARGET_ERROR
                    raise ItemError(cause, f"the agent at {self._url} answered {response.status}: {text}")
                found = loads_outside(await answer_body(response, MAX_ANSWER))
        except TimeoutError:
            raise ItemError(Cause.TARGET_ERROR, f"the agent at {self._url} gave no answer in time") from None
        except aiohttp.ClientError as error:
            raise ItemError(Cause.TARGET_ERROR, f"the agent at {self._url} can't be talked to: {error}") from error
        except ValueError as error:
            kind = message["type"]
            raise ItemError(
                Cause.TARGET_ERROR, f"the agent at {self._url} answered {kind} with what is no JSON: {error}"
            ) from error
        if not isinstance(found, dict):
            raise ItemError(Cause.TARGET_ERROR, f"the agent at {self._url} answered with no JSON object")
        if found.get("error") and message["type"] == "reset":
            return {REFUSED: f"{self._url} says: {KNOWN.text(str(found['error']))[:300]}"}
        if found.get("error"):
            raise ItemError(
                Cause.TARGET_ERROR, f"the agent at {self._url} says: {KNOWN.text(str(found['error']))[:500]}"
            )
        return found

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)


TIME_VARIABLE = "MANYHANDS_TIME"
"""The environment variable that holds the virtual time at which a program was started, in seconds since 1970 UTC."""
_GRACE = 2.0
_OUTPUT_KEPT = 4096
"""Bytes of its output that are kept besides the line that is read."""


class ProgramConnection:
    """The way to an agent that is a program: it answers each line of its standard input with one on its standard output."""

    def __init__(
        self, words: Sequence[str], *, folder: Path, mark: str, seconds: float, errors: Path, started_at: float
    ) -> None:
        """``mark``: marks the run's processes; ``seconds``: for one answer; ``errors``: the file that gets what the program writes to
        standard error; ``started_at``: virtual time."""
        self._words = list(words)
        self._mark = mark
        self._folder = folder
        self._time = {TIME_VARIABLE: repr(started_at)}
        self._seconds = seconds
        self._errors = errors
        self._open = AsyncExitStack()
        self._command: RunningCommand | None = None
        self._lines = _Lines()

    async def open(self) -> None:
        self._errors.parent.mkdir(parents=True, exist_ok=True)
        runner = await self._open.enter_async_context(CommandRunner.opened(self._mark, os.environ))
        kept = KeptStream(self._errors, Redactor.of(os.environ), append=True)
        self._open.callback(kept.close)
        try:
            self._command = await runner.start(
                self._words,
                folder=self._folder,
                additions=self._time,
                input=None,
                max_output=_OUTPUT_KEPT,
                on_output=self._lines.feed,
                on_errors=kept.feed,
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
            raise self._broken(f"answered with a line that is not JSON: {_shown(line)}") from None
        if not isinstance(found, dict):
            raise self._broken(f"answered with no JSON object: {_shown(line)}")
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
                    raise self._broken(f"can't be talked to (a line of more than {MAX_ANSWER >> 20} MiB)")
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
        text = "" if self._command is None else self._command.so_far().errors.decode(errors="replace").strip()
        return f"; its last words: {KNOWN.text(text.splitlines()[-1])[:300]}" if text else ""


class _Lines:
    """What a program prints, line by line."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0
        self._came = asyncio.Event()
        self.overflowed = False
        """More has come than a line may be, and some of it was dropped."""

    def feed(self, data: bytes) -> None:
        """Add what came next."""
        self.overflowed = self.overflowed or len(self._held) + len(data) > MAX_ANSWER
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


def _shown(line: bytes) -> str:
    """The beginning of a line, for messages."""
    return repr(KNOWN.text(line.decode("utf-8", "replace"))[:200])


def _ending(code: int | None) -> str:
    if code is None:
        return "or closed its output"
    return f"exit code {code}" if code <= 128 else f"signal {code - 128}"


class TerminalConnection:
    """The way to a person at the terminal. A reply ends with an empty line, or at the end of the input."""

    def __init__(self) -> None:
        self._read = b""

    async def open(self) -> None:
        if not sys.stdin.isatty():
            raise ItemError(Cause.INVALID_INPUT, "the agent human needs a terminal")

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        match message["type"]:
            case "message":
                return {"text": await self._reply(message), "cost_usd": 0.0}
            case "load":
                return {"number": message["number"]}  # people remember by themselves
            case "reset":
                print("\n— Please forget all that was said so far. —", flush=True)
        return {}

    async def close(self) -> None:
        """Nothing to close."""

    async def _reply(self, message: Mapping[str, Any]) -> str:
        moment = datetime.fromtimestamp(float(message["now"])).strftime("%Y-%m-%d %H:%M:%S")
        print(f"\n[{moment}]\n{message['text']}\n(your reply, then an empty line)", flush=True)
        lines: list[str] = []
        while (line := await self._next_line()) and line.strip():
            lines.append(line.rstrip("\n"))
        return "\n".join(lines)

    async def _next_line(self) -> str:
        """A line with its newline; empty at the end of the input. (Not by a thread: that could not be stopped.)"""
        while b"\n" not in self._read:
            part = await _typed(sys.stdin.fileno())
            if not part:
                break
            self._read += part
        line, newline, self._read = self._read.partition(b"\n")
        return (line + newline).decode(errors="replace")


async def _typed(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, 1 << 16)
