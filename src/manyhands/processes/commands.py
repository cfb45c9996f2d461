"""External commands as agents: a command line of the person's own is run for each item, on this machine, with the person's rights.

Nothing that it starts outlives it: its session is ended with it, processes that left the session are found by a mark in their
environment, and a guard ends them all if this program is killed.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import without_surrogates
from manyhands.processes.children import Guard, PipeReader, PipeWriter, close_all, fresh_pipes, to_the_end
from manyhands.processes.launching.launches import Launch, Launcher
from manyhands.processes.output import Capture
from manyhands.processes.strays import MARK, SANDBOX_VARIABLE, Leftovers, Tags
from manyhands.processes.templates import INSTEAD

MAX_OUTPUT = 4 << 20
"""Bytes that are kept of what a command prints: the first and the last half of that."""
MAX_ERRORS = 64 << 10
MAX_REASON_LENGTH = 600
"""Maximum characters of a command's last words in a message."""
_LAST_OUTPUT = 0.5
"""Seconds to wait for the rest of the output once the command has ended."""
GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""
Sink = Callable[[bytes], object]
"""Gets what a command prints, piece by piece as it comes."""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended."""

    exit_code: int | None
    """None if it was stopped."""
    output: bytes
    """What it printed: head and tail, without anything between them that did not fit."""
    errors: bytes
    """The like of standard error."""
    omitted: int
    """Bytes of the output left out between head and tail."""
    seconds: float


def failure_of(exit_code: int | None, limit: float | None, errors: str) -> str | None:
    """Why a command did not end as it should, in one line; None if it did. ``limit``: its time limit, if that ended it; ``errors``: what
    it said before."""
    if limit is not None:
        return f"the command timed out after {limit:g} s{_reason(errors)}"
    if exit_code:
        return f"the command ended with exit code {exit_code}{_signal(exit_code)}{_reason(errors)}"
    return None


def _reason(errors: str) -> str:
    """The last lines of what a command said last."""
    lines = [line.strip() for line in errors.strip().splitlines() if line.strip()]
    text = " | ".join(lines[-3:])
    return f": {text[-MAX_REASON_LENGTH:]}" if text else ""


def _signal(exit_code: int) -> str:
    try:
        return f" ({signal.Signals(exit_code - 128).name})" if exit_code > 128 else ""
    except ValueError:
        return ""


class Streams:
    """The standard streams of a program, as pipes. ``theirs``: the ends that are the program's, to be closed once it has started; what it
    prints is kept here, and given to the sinks besides. Must be made in the event loop's thread, and closed."""

    def __init__(
        self, *, max_output: int = MAX_OUTPUT, on_output: Sink | None = None, on_errors: Sink | None = None
    ) -> None:
        self._began = time.monotonic()
        self._output, self._errors = Capture(max_output), Capture(MAX_ERRORS)
        (stdin, feed), (read_output, output), (read_errors, errors) = fresh_pipes(3)
        self.theirs = (stdin, output, errors)
        self._readers = (
            PipeReader(read_output, _to_both(self._output.feed, on_output)),
            PipeReader(read_errors, _to_both(self._errors.feed, on_errors)),
        )
        self._writer = PipeWriter(feed)

    async def write(self, data: bytes) -> bool:
        """Write to its standard input; False if nobody reads that any more."""
        return await self._writer.write(data)

    def end_input(self) -> None:
        """Close its standard input. Idempotent."""
        self._writer.close()

    async def feed(self, data: bytes) -> None:
        """Write all that it is to read; what it leaves unread is dropped."""
        await self.write(data)
        self.end_input()

    def fed(self, data: bytes) -> bool:
        """Whether it could be written at once, and its end with it."""
        return self._writer.wrote_all(data)

    async def output_ended(self) -> None:
        """Wait until nobody has its standard output open any more."""
        await self._readers[0].ended.wait()

    async def gathered(self) -> None:
        """Wait, shortly, for the rest of the output of a program that has ended."""
        for reader in self._readers:
            await reader.finish(_LAST_OUTPUT)

    def so_far(self, exit_code: int | None) -> CommandEnd:
        """What there is of it now."""
        for reader in self._readers:
            reader.drain()
        seconds = time.monotonic() - self._began
        return CommandEnd(exit_code, self._output.joined(), self._errors.joined(), self._output.omitted, seconds)

    def close(self) -> None:
        """Idempotent."""
        for reader in self._readers:
            reader.drain()
            reader.close()
        self._writer.close()


class RunningCommand:
    """A command that runs. Made by ``CommandRunner.start``; must be closed."""

    def __init__(self, launch: Launch, streams: Streams, leftovers: Leftovers) -> None:
        self.mark = secrets.token_hex(16)
        """The value of ``SANDBOX_VARIABLE`` in its environment."""
        self._process = launch
        self._leftovers = leftovers
        self._streams = streams
        self._feeding: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def feed(self, data: bytes) -> None:
        """Begin to write all that it is to read."""
        if not self._streams.fed(data):
            self._feeding = asyncio.ensure_future(self._streams.feed(data))

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 and more: a signal ended it, as shells count."""
        return self._process.exit_code

    @property
    def ended(self) -> asyncio.Future[int]:
        """Done when it has ended, with the exit code; nobody may cancel it."""
        return self._process.ended

    async def wait(self) -> int:
        """Wait for its end; the exit code."""
        return await self._process.wait()

    async def write(self, data: bytes) -> bool:
        """Write to the input of a command that was started without one; False if nobody reads that any more."""
        return await self._streams.write(data)

    def end_input(self) -> None:
        """Close its input. Idempotent."""
        self._streams.end_input()

    async def output_ended(self) -> None:
        """Wait until nobody has its standard output open any more."""
        await self._streams.output_ended()

    async def gathered(self) -> None:
        """Wait, shortly, for the rest of the output of a command that has ended."""
        await self._streams.gathered()

    def so_far(self) -> CommandEnd:
        """What there is of it now."""
        return self._streams.so_far(self.exit_code)

    async def close(self, *, patience: float = 0.0) -> None:
        """Wait ``patience`` seconds for its end, then end it and all that it started. Idempotent; finishes even when cancelled."""
        if self._closing is None and self._process.left_nothing:
            self._release()
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(patience))
        await to_the_end(_outcome(self._closing))

    async def _close(self, patience: float) -> None:
        if await self._process.wait_for(patience) is None:
            await self._process.stop(grace=GRACE)
        self._process.kill_group()
        if not self._process.left_nothing:  # what has left the session, with its environment or without
            await self._leftovers.kill(self.mark, self._process.tag)
        self._release()

    def _release(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
        self._streams.close()


class CommandRunner:
    """Starts commands on behalf of a run. Made by ``opened``."""

    def __init__(self, mark: str, environ: Mapping[str, str], tags: Tags) -> None:
        self.tags = tags
        self._launcher = Launcher({**environ, MARK: mark}, tags)
        self._leftovers = Leftovers()

    @classmethod
    @asynccontextmanager
    async def opened(cls, mark: str, environ: Mapping[str, str]) -> AsyncIterator[Self]:
        """``mark``: what marks the run's processes (``process_mark``); ``environ``: what commands inherit. As long as it is open, the
        death of this process is the end of all its commands."""
        tags = Tags()
        guard = Guard(f"{MARK}={mark}", tags)
        runner = cls(mark, environ, tags)
        try:
            yield runner
        finally:
            await to_the_end(runner._launcher.close())
            await to_the_end(guard.dismiss())
            await to_the_end(runner._leftovers.close())

    async def start(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        additions: Mapping[str, str],
        input: bytes | None = b"",
        max_output: int = MAX_OUTPUT,
        on_output: Sink | None = None,
        on_errors: Sink | None = None,
    ) -> RunningCommand:
        """Start a command in ``folder``. ``additions``: to its environment; ``input``: all that it reads, None for one that is written to
        while it runs; ``on_output``, ``on_errors``: get all that it prints, besides what is kept here.

        Raises ItemError: INVALID_INPUT if it is too long to be started, WORKER_ERROR if its program can't be run, SANDBOX_LOST if
        this machine can't start a further process.
        """
        launch = self._launcher.new()
        streams = Streams(max_output=max_output, on_output=on_output, on_errors=on_errors)
        command = RunningCommand(launch, streams, self._leftovers)
        environment = {name: _variable(value) for name, value in additions.items()}
        try:
            environment[SANDBOX_VARIABLE] = command.mark
            await self._launcher.launch(launch, words, environment, streams.theirs, str(folder))
        except BaseException as error:
            await command.close()
            if isinstance(error, ItemError):
                raise _not_started(words[0], error) from error
            raise
        finally:
            close_all(*streams.theirs)
        if input is not None:
            command.feed(input)
        return command

    async def run(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        additions: Mapping[str, str],
        input: bytes = b"",
        timeout: float,
        max_output: int = MAX_OUTPUT,
    ) -> CommandEnd:
        """Run a command to its end, or to its time limit (``exit_code`` None). Raises as ``start``."""
        command = await self.start(words, folder=folder, additions=additions, input=input, max_output=max_output)
        try:
            try:
                async with asyncio.timeout(timeout):
                    await command.wait()
                await command.gathered()
                return command.so_far()
            except TimeoutError:
                return command.so_far()
        finally:
            await command.close()


def _to_both(first: Sink, second: Sink | None) -> Sink:
    if second is None:
        return first

    def feed(data: bytes) -> None:
        first(data)
        second(data)

    return feed


def _variable(value: str) -> str:
    return without_surrogates(value).replace("\0", "\ufffd")


def _not_started(program: str, error: ItemError) -> ItemError:
    number = getattr(error.__cause__, "errno", None)
    if number == errno.E2BIG:
        return ItemError(Cause.INVALID_INPUT, f"the command is too long to be started; {INSTEAD}")
    if number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESRCH, errno.ETIMEDOUT):
        return error.bare()
    return ItemError(
        Cause.WORKER_ERROR, f"{program} can't be started: {getattr(error.__cause__, 'strerror', None) or error.message}"
    )


async def _outcome(task: asyncio.Task[None]) -> None:
    await task
