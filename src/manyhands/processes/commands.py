"""External commands as agents: a command line of the person's own is run for each item, on this machine, with the person's rights.

Nothing that it starts outlives it: its session is ended with it, processes that left the session are found by a mark in their
environment, and a guard ends them all if this program is killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import without_surrogates
from manyhands.processes.children import Capture, PipeReader, PipeWriter, Process, close_all, fresh_pipes, to_the_end
from manyhands.processes.guard import Guard
from manyhands.processes.strays import MARK, SANDBOX_VARIABLE, kill_marked
from manyhands.processes.tags import Tags, kill_tagged

LONGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes of one argument, or one ``NAME=value`` of the environment, at most (Linux, MAX_ARG_STRLEN; the end counts one)."""
MAX_OUTPUT = 4 << 20
"""Bytes that are kept of what a command prints: the first and the last half of that."""
MAX_ERRORS = 64 << 10
_LAST_OUTPUT = 0.5
"""Seconds to wait for the rest of the output once the command has ended."""
_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""
Sink = Callable[[bytes], object]
"""Gets what a command prints, piece by piece as it comes."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command as a person typed it, in words. A placeholder, ``{name}``, stands for an item's value, which is put into its
    word as it is: no shell sees it."""

    words: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, *, name: str = "command") -> Self:
        """Split as a shell does. ``name``: of the setting, for messages. Raises UserError."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"{name}: can't be read as a command line ({str(error).lower()}): {text}") from None
        if not words or not words[0] or "\0" in text:
            raise UserError(f"{name}: holds no command: {text!r}")
        return cls(tuple(words))

    def uses(self, *names: str) -> bool:
        """Whether one of these placeholders is in it."""
        return any(f"{{{name}}}" in word for word in self.words for name in names)

    def check(self, folder: Path, environ: Mapping[str, str], *, name: str = "command") -> None:
        """Raises UserError if its program can't be found or run. ``folder``: where it is to start."""
        program = self.words[0]
        if not folder.is_dir():
            raise UserError(f"{name}: there is no folder {folder} to start {program} in")
        if "/" in program:
            found = (folder / program).is_file() and os.access(folder / program, os.X_OK)
        else:
            found = shutil.which(program, path=environ.get("PATH", os.defpath)) is not None
        if not found:
            raise UserError(
                f"{name}: {program} is no program that can be run" + (" (not found)" if "/" not in program else "")
            )

    def filled(self, values: Mapping[str, str]) -> list[str]:
        """The words with placeholders replaced, in one pass. What is in braces and has no value here stays as it is.

        Raises ItemError(INVALID_INPUT) for a word that can't be an argument.
        """
        pattern = re.compile("|".join(re.escape(f"{{{name}}}") for name in values) or r"(?!)")
        words = [pattern.sub(lambda found: values[found[0][1:-1]], word) for word in self.words]
        return [_argument(word) for word in words]


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended. ``exit_code``: None if it was stopped; ``output`` and ``errors``: what it printed, head and tail;
    ``omitted``: bytes of the output left out between them."""

    exit_code: int | None
    output: bytes
    errors: bytes
    omitted: int
    seconds: float


class RunningCommand:
    """A command that runs. Made by ``CommandRunner.start``; must be closed."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path,
        input: bytes,
        max_output: int,
        on_output: Sink | None = None,
        on_errors: Sink | None = None,
        tag: int | None = None,
    ) -> None:
        self._tag = tag
        self._mark = secrets.token_hex(16)
        self._began = time.monotonic()
        self._output, self._errors = Capture(max_output), Capture(MAX_ERRORS)
        (stdin, feed), (read_output, output), (read_errors, errors) = fresh_pipes(3)
        try:
            marked = {**environment, SANDBOX_VARIABLE: self._mark}
            self._process = Process(
                words, marked, stdin=stdin, output=output, errors=errors, directory=str(folder), tag=tag
            )
        except BaseException:
            close_all(feed, read_output, read_errors)
            raise
        finally:
            close_all(stdin, output, errors)
        self._readers = (
            PipeReader(read_output, _to_both(self._output.feed, on_output)),
            PipeReader(read_errors, _to_both(self._errors.feed, on_errors)),
        )
        self._writer = PipeWriter(feed)
        self._feeding = asyncio.ensure_future(self._feed(input))
        self._closing: asyncio.Task[None] | None = None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 and more: a signal ended it, as shells count."""
        return self._process.exit_code

    async def wait(self) -> int:
        """Wait for its end; the exit code."""
        return await self._process.wait()

    async def gathered(self) -> None:
        """Wait, shortly, for the rest of the output of a command that has ended."""
        for reader in self._readers:
            await reader.finish(_LAST_OUTPUT)

    def so_far(self) -> CommandEnd:
        """What there is of it now."""
        for reader in self._readers:
            reader.drain()
        seconds = time.monotonic() - self._began
        return CommandEnd(self.exit_code, self._output.joined(), self._errors.joined(), self._output.omitted, seconds)

    async def close(self, *, patience: float = 0.0) -> None:
        """Wait ``patience`` seconds for its end, then end it and all that it started. Idempotent; finishes even when cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(patience))
        await to_the_end(_outcome(self._closing))

    async def _close(self, patience: float) -> None:
        if await self._process.wait_for(patience) is None:
            await self._process.stop(grace=_GRACE)
        self._feeding.cancel()
        self._process.kill_group()
        await asyncio.to_thread(self._kill_the_rest)
        for reader in self._readers:
            reader.drain()
            reader.close()
        self._writer.close()

    def _kill_the_rest(self) -> None:
        """End what has left the command's session, with its environment or without."""
        kill_marked(SANDBOX_VARIABLE, self._mark)
        kill_tagged(self._tag)

    async def _feed(self, data: bytes) -> None:
        await self._writer.write(data)
        self._writer.close()


class CommandRunner:
    """Starts commands on behalf of a run. Made by ``opened``."""

    def __init__(self, mark: str, environ: Mapping[str, str], tags: Tags) -> None:
        self._environment = {**environ, MARK: mark}
        self.tags = tags

    @classmethod
    @asynccontextmanager
    async def opened(cls, mark: str, environ: Mapping[str, str]) -> AsyncIterator[Self]:
        """``mark``: what marks the run's processes (``process_mark``); ``environ``: what commands inherit. As long as it is open, the
        death of this process is the end of all its commands."""
        tags = Tags()
        guard = Guard(f"{MARK}={mark}", tags)
        try:
            yield cls(mark, environ, tags)
        finally:
            await to_the_end(guard.dismiss())

    def start(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        additions: Mapping[str, str],
        input: bytes = b"",
        max_output: int = MAX_OUTPUT,
        on_output: Sink | None = None,
        on_errors: Sink | None = None,
    ) -> RunningCommand:
        """Start a command in ``folder``. ``additions``: to its environment; ``input``: what it reads; ``on_output``, ``on_errors``: get
        all that it prints, besides what is kept here.

        Raises ItemError: INVALID_INPUT if it is too long to be started, WORKER_ERROR if its program can't be run, SANDBOX_LOST if
        this machine has no room for a further process.
        """
        environment = {**self._environment, **{name: _variable(value) for name, value in additions.items()}}
        try:
            return RunningCommand(
                words,
                environment,
                folder=folder,
                input=input,
                max_output=max_output,
                on_output=on_output,
                on_errors=on_errors,
                tag=self.tags.new(),
            )
        except ItemError as error:
            raise _not_started(words[0], error) from error

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
        command = self.start(words, folder=folder, additions=additions, input=input, max_output=max_output)
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


def _argument(word: str) -> str:
    word = without_surrogates(word)
    if "\0" in word:
        raise ItemError(Cause.INVALID_INPUT, f"a NUL character can't be in an argument; {_INSTEAD}")
    if len(word) > LONGEST_ARGUMENT // 4 and len(os.fsencode(word)) > LONGEST_ARGUMENT:
        raise ItemError(
            Cause.INVALID_INPUT, f"the prompt is too long for an argument ({len(word)} characters); {_INSTEAD}"
        )
    return word


_INSTEAD = "have the command read it from standard input, or from {prompt_file}"


def _variable(value: str) -> str:
    return without_surrogates(value).replace("\0", "\ufffd")


def _not_started(program: str, error: ItemError) -> ItemError:
    number = getattr(error.__cause__, "errno", None)
    if number == errno.E2BIG:
        return ItemError(Cause.INVALID_INPUT, f"the command is too long to be started; {_INSTEAD}")
    if number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return error.bare()
    return ItemError(
        Cause.WORKER_ERROR, f"{program} can't be started: {getattr(error.__cause__, 'strerror', None) or error.message}"
    )


async def _outcome(task: asyncio.Task[None]) -> None:
    await task
