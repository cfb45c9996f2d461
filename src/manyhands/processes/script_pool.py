"""Graders' programs: as many at once as the machine has processors, Python scripts in interpreters that are warm already.

A command that is ``python3 FILE.py [ARGUMENT …]``, as a list or as a line without anything that a shell would treat as special, is run
in a copy of an interpreter that has started before (``warm_worker``); every other command is run as a process. Both give the same.

Graders' programs that have more in their environment than this program.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from manyhands.core.errors import GraderError, ItemError
from manyhands.core.failures import Cause
from manyhands.core.redaction import KNOWN, Redactor
from manyhands.processes.children import Capture, PipeReader, PipeWriter, close_all, fresh_pipes, to_the_end
from manyhands.processes.commands import MAX_ERRORS, CommandRunner
from manyhands.processes.exits import ScriptPool, ScriptResult
from manyhands.processes.strays import MARK, SANDBOX_VARIABLE, kill_marked
from manyhands.processes.warm_interpreters import Refused, WarmInterpreter, WarmPool, WarmRun, script_words

MAX_OUTPUT = 10 << 20
"""Bytes that are kept of what a program prints: the first and the last half of that. It may print more."""
POOL_VARIABLE = "MANYHANDS_SCRIPTS"
"""Marks the processes of a pool of programs in their environment."""
_LAST_OUTPUT = 0.5
"""Seconds to wait for the rest of the output once the program has ended."""
_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""


class Scripts:
    """A ``ScriptPool``. Made by ``opened``."""

    def __init__(
        self, runner: CommandRunner, environ: Mapping[str, str], mark: str, *, at_once: int, warm: bool
    ) -> None:
        self._runner = runner
        self._mark = secrets.token_hex(16)
        self._turns = asyncio.Semaphore(at_once)
        self._warm = WarmPool({**environ, MARK: mark, POOL_VARIABLE: self._mark}, runner.tags) if warm else None
        self.warm_runs = 0
        """How many scripts were run in warm interpreters."""

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, mark: str, environ: Mapping[str, str], *, at_once: int | None = None, warm: bool = True
    ) -> AsyncIterator[Self]:
        """``mark``: what marks the run's processes (``process_mark``); ``environ``: what programs inherit; ``at_once``: programs
        that run at the same time, as many as there are processors by default; ``warm``: whether there are warm interpreters."""
        async with CommandRunner.opened(mark, environ) as runner:
            scripts = cls(runner, environ, mark, at_once=at_once or len(os.sched_getaffinity(0)), warm=warm)
            try:
                yield scripts
            finally:
                await to_the_end(scripts._close())

    async def run(
        self,
        command: str | Sequence[str],
        payload: bytes,
        *,
        folder: Path,
        seconds: float | None,
        environment: Mapping[str, str],
    ) -> ScriptResult:
        """Run a program to its end or its time limit, which counts from its start and not while it waits for its turn.

        Raises GraderError if it can't be started, ItemError(SANDBOX_LOST) if this machine has no room for a further process.
        """
        folder = folder.absolute()
        async with self._turns:
            if not folder.is_dir():
                raise GraderError(f"there is no folder {folder} to run {_shown(command)} in")
            words = script_words(command) if self._warm is not None and _harmless(environment) else None
            if words is not None and self._warm is not None:
                interpreter = await self._warm.interpreter(words, folder)
                result = await self._in_warm(interpreter, words, payload, folder, seconds, environment)
                if result is not None:
                    self.warm_runs += 1
                    return _without_secrets(result)
            return _without_secrets(await self._as_process(command, payload, folder, seconds, environment))

    async def _as_process(
        self,
        command: str | Sequence[str],
        payload: bytes,
        folder: Path,
        seconds: float | None,
        environment: Mapping[str, str],
    ) -> ScriptResult:
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        additions = {**environment, POOL_VARIABLE: self._mark}
        try:
            running = self._runner.start(
                words, folder=folder, additions=additions, input=payload, max_output=MAX_OUTPUT
            )
        except ItemError as error:
            if error.cause is Cause.SANDBOX_LOST:
                raise
            raise GraderError(f"{_shown(command)}: {error.message}") from error
        try:
            try:
                async with asyncio.timeout(seconds):
                    await running.wait()
                await running.gathered()
            except TimeoutError:
                pass
            end = running.so_far()
            return ScriptResult(end.exit_code, end.output, end.errors, end.seconds, end.omitted)
        finally:
            await running.close()

    async def _in_warm(
        self,
        interpreter: WarmInterpreter | None,
        words: Sequence[str],
        payload: bytes,
        folder: Path,
        seconds: float | None,
        environment: Mapping[str, str],
    ) -> ScriptResult | None:
        if interpreter is None:
            return None
        mark = secrets.token_hex(16)
        pipes = Pipes()
        try:
            run = interpreter.start(words, folder, {**environment, SANDBOX_VARIABLE: mark}, pipes.theirs)
        except BaseException:
            pipes.close()
            raise
        finally:
            close_all(*pipes.theirs)
        if run is None:
            pipes.close()
            return None
        feeding = asyncio.ensure_future(pipes.feed(payload))
        ended = False
        try:
            code = await run.wait(seconds)
            if code is not None:
                ended = True
                await pipes.gathered()
            return pipes.result(code)
        except Refused:
            ended = True
            return None
        finally:
            feeding.cancel()
            if not ended:
                await to_the_end(_stop(run, mark))
            pipes.close()

    async def _close(self) -> None:
        if self._warm is not None:
            await self._warm.close()
        await asyncio.to_thread(self._kill_the_rest)

    def _kill_the_rest(self) -> None:
        kill_marked(POOL_VARIABLE, self._mark)
        self._runner.tags.kill_all()


class Pipes:
    """Standard streams of a program, as pipes. ``theirs``: the ends that are the program's."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._output, self._errors = Capture(MAX_OUTPUT), Capture(MAX_ERRORS)
        (stdin, feed), (read_output, output), (read_errors, errors) = fresh_pipes(3)
        self.theirs = (stdin, output, errors)
        self._readers = (PipeReader(read_output, self._output.feed), PipeReader(read_errors, self._errors.feed))
        self._writer = PipeWriter(feed)

    async def feed(self, payload: bytes) -> None:
        """Write what the program reads; what it leaves unread is dropped."""
        await self._writer.write(payload)
        self._writer.close()

    async def gathered(self) -> None:
        """Wait, shortly, for the rest of the output of a program that has ended."""
        for reader in self._readers:
            await reader.finish(_LAST_OUTPUT)

    def result(self, code: int | None) -> ScriptResult:
        for reader in self._readers:
            reader.drain()
        seconds = time.monotonic() - self._began
        return ScriptResult(code, self._output.joined(), self._errors.joined(), seconds, self._output.omitted)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._writer.close()


def _without_secrets(result: ScriptResult) -> ScriptResult:
    """What a program printed, before anything is made of it, or of a part of it."""
    if not (KNOWN.is_in(result.stdout) or KNOWN.is_in(result.stderr)):
        return result
    printed = KNOWN.document(result.stdout.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return replace(result, stdout=printed, stderr=KNOWN.data(result.stderr))


async def _stop(run: WarmRun, mark: str) -> None:
    await run.stop(_GRACE)
    await asyncio.to_thread(kill_marked, SANDBOX_VARIABLE, mark)


def _harmless(environment: Mapping[str, str]) -> bool:
    """Whether an interpreter that has started before would be the same with these additions to its environment."""
    return not any(name.startswith(("PYTHON", "LC_")) or name in ("LANG", "PATH", "TZ") for name in environment)


def _shown(command: str | Sequence[str]) -> str:
    text = command if isinstance(command, str) else " ".join(command)
    return text if len(text) <= 200 else f"{text[:199]}…"


@dataclass(frozen=True, slots=True)
class ScriptsWith:
    """A ``ScriptPool`` that adds to the environment of its programs, and takes the secrets in it out of what they print. Made by ``of``."""

    scripts: ScriptPool
    additions: Mapping[str, str]
    redactor: Redactor

    @classmethod
    def of(cls, scripts: ScriptPool, additions: Mapping[str, str]) -> ScriptPool:
        """``additions``: what is added; the pool itself if that is nothing."""
        return cls(scripts, additions, Redactor.of(additions)) if additions else scripts

    async def run(
        self,
        command: str | Sequence[str],
        payload: bytes,
        *,
        folder: Path,
        seconds: float | None,
        environment: Mapping[str, str],
    ) -> ScriptResult:
        """See ``ScriptPool``."""
        environment = {**self.additions, **environment}
        result = await self.scripts.run(command, payload, folder=folder, seconds=seconds, environment=environment)
        stdout, stderr = (self.redactor.data(data) for data in (result.stdout, result.stderr))
        return replace(result, stdout=stdout, stderr=stderr)
