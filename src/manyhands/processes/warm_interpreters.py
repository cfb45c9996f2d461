"""Interpreters that are warm, seen from this side. See ``warm_worker`` for the other, and for what goes between them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from manyhands.core.errors import GraderError, ItemError
from manyhands.core.jsonio import dumps, loads
from manyhands.processes.children import Process, close_all, fresh_pipes
from manyhands.processes.tags import Tags

WORKER = Path(__file__).with_name("warm_worker.py")
LONGEST = 1 << 16
"""Bytes of a message at most; a script with more to it than that is run in a fresh process."""
_START = 20.0
"""Seconds that an interpreter may take to start."""
_REFUSED = -1
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./ -]*")
"""A line in which a shell sees nothing but words with spaces between them."""


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


def program_of(word: str, folder: Path, environ: Mapping[str, str]) -> str | None:
    """The path of a program as ``execvp`` finds it; None if it can't be run."""
    if "/" in word:
        path = folder / word
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(word, path=environ.get("PATH", os.defpath))


class WarmInterpreter:
    """A worker process, and the scripts that run in copies of it. ``tag``: see ``processes.tags``.
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
            return await asyncio.wait_for(asyncio.shield(self._ready), _START)
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
        if len(data) > LONGEST:
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
        """The like, and wait for its end."""
        self.close()
        if await self._process.wait_for(2.0) is None:
            self._process.kill()
            await self._process.wait_for(2.0)

    def _receive(self) -> None:
        try:
            data = self._channel.recv(LONGEST)
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
    """One warm interpreter for each program, folder and environment that is asked for; those that can't be had are remembered."""

    MOST = 16
    """Interpreters kept at most; scripts of further ones are run in fresh processes."""
    _STARTS = 3

    def __init__(self, environment: Mapping[str, str], tags: Tags) -> None:
        self._environment = dict(environment)
        self._tags = tags
        self._kept: dict[tuple[str, Path], asyncio.Task[WarmInterpreter | None]] = {}
        self._starts: dict[tuple[str, Path], int] = {}

    async def interpreter(self, words: Sequence[str], folder: Path) -> WarmInterpreter | None:
        """A ready one for a command, or None."""
        program = program_of(words[0], folder, self._environment)
        if program is None or not (folder / words[1]).is_file():
            return None
        key = (program, folder)
        task = self._kept.get(key)
        if task is None or (task.done() and (found := task.result()) is not None and not found.alive):
            starts = self._starts.get(key, 0)
            if starts >= self._STARTS or (task is None and len(self._kept) >= self.MOST):
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
