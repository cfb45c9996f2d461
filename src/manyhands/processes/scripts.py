"""Graders' programs: as many at once as the machine has processors, Python scripts in interpreters that are warm already.

A command that is ``python3 FILE.py [ARGUMENT …]``, as a list or as a line without anything that a shell would treat as special, is run
in a copy of an interpreter that has started before (see ``warm_worker``, which is also what goes between it and this side); every other
command is run as a process. Both give the same.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

from manyhands.core.errors import GraderError, ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import dumps, loads
from manyhands.core.redaction import KNOWN, Redactor
from manyhands.core.text import cut
from manyhands.processes.children import Process, close_all, fresh_pipes, to_the_end
from manyhands.processes.commands import GRACE, CommandEnd, CommandRunner, Streams
from manyhands.processes.strays import MARK, SANDBOX_VARIABLE, Tags, kill_marked
from manyhands.processes.system import processors
from manyhands.processes.templates import program_path

MAX_OUTPUT = 10 << 20
"""Bytes that are kept of what a program prints: the first and the last half of that. It may print more."""
POOL_VARIABLE = "MANYHANDS_SCRIPTS"
"""Marks the processes of a pool of programs in their environment."""
WORKER = Path(__file__).with_name("warm_worker.py")
MAX_MESSAGE = 1 << 16
"""Maximum bytes of a message; a script with more to it than that is run in a fresh process."""
_MAX_START_SECONDS = 20.0
_REFUSED = -1
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./ -]*")
"""A line in which a shell sees nothing but words with spaces between them."""


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """How a program ended."""

    exit_code: int | None
    """None if it was stopped at its time limit."""
    stdout: bytes
    stderr: bytes
    seconds: float
    omitted: int = 0
    """Bytes of output left out."""


class ScriptPool(Protocol):
    """Runs graders' programs: many at once within a limit, Python scripts in interpreters that are warm already."""

    async def run(
        self,
        command: str | Sequence[str],
        payload: bytes,
        *,
        folder: Path,
        seconds: float | None,
        environment: Mapping[str, str],
    ) -> ScriptResult:
        """``command``: a line for ``sh -c``, or argv. ``payload`` goes to standard input; a program may leave it unread."""
        ...


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
            scripts = cls(runner, environ, mark, at_once=at_once or processors(), warm=warm)
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

        Raises GraderError if it can't be started, ItemError(SANDBOX_LOST) if this machine can't start a further process.
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
            running = await self._runner.start(
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
            return _result(running.so_far())
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
        mark, streams = secrets.token_hex(16), Streams(max_output=MAX_OUTPUT)
        try:
            run = interpreter.start(words, folder, {**environment, SANDBOX_VARIABLE: mark}, streams.theirs)
        except BaseException:
            streams.close()
            raise
        finally:
            close_all(*streams.theirs)
        if run is None:
            streams.close()
            return None
        feeding = asyncio.ensure_future(streams.feed(payload))
        ended = False
        try:
            code = await run.wait(seconds)
            if code is not None:
                ended = True
                await streams.gathered()
            return _result(streams.so_far(code))
        except Refused:
            ended = True
            return None
        finally:
            feeding.cancel()
            if not ended:
                await to_the_end(_stop(run, mark))
            streams.close()

    async def _close(self) -> None:
        if self._warm is not None:
            await self._warm.close()
        await asyncio.to_thread(self._kill_the_rest)

    def _kill_the_rest(self) -> None:
        kill_marked(POOL_VARIABLE, self._mark)
        self._runner.tags.kill_all()


def _result(end: CommandEnd) -> ScriptResult:
    return ScriptResult(end.exit_code, end.output, end.errors, end.seconds, end.omitted)


def _without_secrets(result: ScriptResult) -> ScriptResult:
    """What a program printed, before anything is made of it, or of a part of it."""
    if not (KNOWN.is_in(result.stdout) or KNOWN.is_in(result.stderr)):
        return result
    printed = KNOWN.document(result.stdout.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    return replace(result, stdout=printed, stderr=KNOWN.data(result.stderr))


async def _stop(run: WarmRun, mark: str) -> None:
    await run.stop(GRACE)
    await asyncio.to_thread(kill_marked, SANDBOX_VARIABLE, mark)


def _harmless(environment: Mapping[str, str]) -> bool:
    """Whether an interpreter that has started before would be the same with these additions to its environment."""
    return not any(name.startswith(("PYTHON", "LC_")) or name in ("LANG", "PATH", "TZ") for name in environment)


def _shown(command: str | Sequence[str]) -> str:
    return cut(command if isinstance(command, str) else " ".join(command), 200)


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


# --- Interpreters that are warm


class Refused(Exception):
    """A script could not be started in a warm interpreter."""


def script_words(command: str | Sequence[str]) -> list[str] | None:
    """The words of a command that is ``python3 FILE [ARGUMENT …]``; None for any other."""
    if isinstance(command, str):
        if not _PLAIN.fullmatch(command):
            return None
        command = command.split()
    words = list(command)
    if len(words) < 2 or not _PYTHON.fullmatch(Path(words[0]).name):
        return None
    return words if words[1].endswith(".py") and not words[1].startswith("-") else None


class WarmInterpreter:
    """A worker process, and the scripts that run in copies of it. ``tag``: see ``processes.strays``.
    Must be made in the event loop's thread, and closed.

    Raises ItemError if the system refuses to start it.
    """

    def __init__(self, program: str, folder: Path, environment: Mapping[str, str], tag: int | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        pipes: list[tuple[int, int]] = []
        try:
            # Its streams are pipes, as those of the scripts will be: then the objects made for them are right for the scripts too.
            pipes = fresh_pipes(3)
            (stdin, _), (_, output), (_, errors) = pipes
            self._process = Process(
                [program, str(WORKER), str(theirs.fileno())],
                environment,
                stdin=stdin,
                output=output,
                errors=errors,
                keep=(theirs.fileno(),),
                directory=str(folder),
                tag=tag,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
            close_all(*(descriptor for pair in pipes for descriptor in pair))
        self._ready: asyncio.Future[bool] = self._loop.create_future()
        self._runs: dict[int, asyncio.Future[int | None]] = {}
        self._count = 0
        self._loop.add_reader(self._channel, self._receive)

    @property
    def alive(self) -> bool:
        return self._channel.fileno() >= 0

    async def ready(self) -> bool:
        """Whether it is ready; False if it never will be."""
        with suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._ready), _MAX_START_SECONDS)
        self.close()
        return False

    def start(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], streams: Sequence[int]
    ) -> WarmRun | None:
        """Start a script. ``streams``: three descriptors, which stay the caller's. None if it can't be run here."""
        if not self.alive:
            return None
        self._count += 1
        message = {"run": self._count, "words": list(words), "cwd": str(folder), "environment": dict(environment)}
        data = dumps(message)
        if len(data) > MAX_MESSAGE:
            return None
        try:
            socket.send_fds(self._channel, [data], streams)
        except OSError:
            return None
        ended = self._runs[self._count] = self._loop.create_future()
        return WarmRun(self, self._count, ended)

    def signal(self, run: int, number: int) -> None:
        """Signal a script's process group."""
        if self.alive and run in self._runs:
            with suppress(OSError):
                self._channel.send(dumps({"run": run, "signal": number}))

    def close(self) -> None:
        """End it and all that runs in it. Idempotent."""
        if not self.alive:
            return
        self._loop.remove_reader(self._channel)
        self._channel.close()
        if not self._ready.done():
            self._ready.set_result(False)
        for ended in self._runs.values():
            ended.set_result(None)
        self._runs.clear()

    async def closed(self) -> None:
        """End it and all that runs in it, and wait for its end."""
        self.close()
        if await self._process.wait_for(2.0) is None:
            self._process.kill()
            await self._process.wait_for(2.0)

    def _receive(self) -> None:
        try:
            data = self._channel.recv(MAX_MESSAGE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        message = loads(data)
        if "ready" in message:
            self._ready.set_result(True)
            return
        ended = self._runs.pop(message["run"], None)
        if ended is not None:
            code: int | None = message["code"]
            ended.set_result(_REFUSED if code is None else code if code >= 0 else 128 - code)


class WarmRun:
    """A script that runs."""

    def __init__(self, interpreter: WarmInterpreter, number: int, ended: asyncio.Future[int | None]) -> None:
        self._interpreter = interpreter
        self._number = number
        self._ended = ended

    async def wait(self, seconds: float | None) -> int | None:
        """The exit code, 128 and more for a signal; None if it still runs after that time.

        Raises GraderError if the interpreter was ended from outside, Refused if the script could not be started there.
        """
        try:
            code = await asyncio.wait_for(asyncio.shield(self._ended), seconds)
        except TimeoutError:
            return None
        if code is None:
            raise GraderError("the interpreter that ran the script was ended by somebody else")
        if code == _REFUSED:
            raise Refused
        return code

    async def stop(self, grace: float) -> None:
        """End it and its process group: SIGTERM, and after ``grace`` seconds SIGKILL."""
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 2.0)):
            if self._ended.done():
                return
            self._interpreter.signal(self._number, number)
            await asyncio.wait([self._ended], timeout=seconds)


class WarmPool:
    """One warm interpreter for each program, folder and environment that is requested; those that can't be had are remembered."""

    MAX_KEPT = 16
    """Maximum interpreters that are kept; scripts of further ones are run in fresh processes."""
    MAX_STARTS = 3

    def __init__(self, environment: Mapping[str, str], tags: Tags) -> None:
        self._environment = dict(environment)
        self._tags = tags
        self._kept: dict[tuple[str, Path], asyncio.Task[WarmInterpreter | None]] = {}
        self._starts: dict[tuple[str, Path], int] = {}

    async def interpreter(self, words: Sequence[str], folder: Path) -> WarmInterpreter | None:
        """A ready one for a command, or None."""
        program = program_path(words[0], folder, self._environment)
        if program is None or not (folder / words[1]).is_file():
            return None
        key = (program, folder)
        task = self._kept.get(key)
        if task is None or (task.done() and (found := task.result()) is not None and not found.alive):
            starts = self._starts.get(key, 0)
            if starts >= self.MAX_STARTS or (task is None and len(self._kept) >= self.MAX_KEPT):
                return None
            self._starts[key] = starts + 1
            task = self._kept[key] = asyncio.ensure_future(self._started(program, folder))
        return await asyncio.shield(task)

    async def _started(self, program: str, folder: Path) -> WarmInterpreter | None:
        try:
            interpreter = WarmInterpreter(program, folder, self._environment, self._tags.new())
        except ItemError:
            return None
        try:
            if await interpreter.ready():
                return interpreter
        except asyncio.CancelledError:
            interpreter.close()
            raise
        await interpreter.closed()
        return None

    async def close(self) -> None:
        """End all of them."""
        for task in self._kept.values():
            task.cancel()
        started = await asyncio.gather(*self._kept.values(), return_exceptions=True)
        await asyncio.gather(*(each.closed() for each in started if isinstance(each, WarmInterpreter)))
