"""Worker processes of this machine: forked by a server, or interpreters of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from manyhands.core.errors import StorageError
from manyhands.engine.attempt import Journal
from manyhands.engine.executors import wire
from manyhands.engine.executors.workers.executor import WorkerExecutor
from manyhands.engine.executors.workers.launching import Death
from manyhands.engine.limits.shared import SharedLimits
from manyhands.io.files import mask_secrets
from manyhands.processes.fork_server import ForkedProcess, ForkServer
from manyhands.processes.interpreters import PYTHONPATH, module_path, python_command
from manyhands.processes.strays import MARK, kill_strays, process_mark

WORKER = "manyhands.engine.executors.worker"
"""The module that a worker process runs."""
WORKER_NAME = "manyhands-work"
"""What lists of processes call a worker process that was forked."""
LOG = "workers.log"
"""The file in a run's folder with what workers print."""
CLOSE_SECONDS = 10.0


class ProcessExecutor(WorkerExecutor):
    """``workers`` processes of this machine with ``concurrency`` items each."""

    def __init__(
        self,
        begin: wire.Begin,
        run_id: str,
        journal: Journal,
        limits: SharedLimits,
        *,
        forks: ForkServer | None = None,
        **options: Any,
    ) -> None:
        """``forks``: what makes the workers; without it they are interpreters of their own, which import everything. ``options``: as of
        ``WorkerExecutor``."""
        super().__init__(ProcessLauncher(Path(begin.folder), run_id, forks), begin, journal, limits, **options)


class ProcessLauncher:
    """Starts worker processes on this machine."""

    places = False

    def __init__(self, folder: Path, run_id: str, forks: ForkServer | None) -> None:
        """``folder``: the run's."""
        self._folder = folder
        self._run_id = run_id
        self._forks = forks
        self._log: IO[bytes] | None = None
        self._died: list[int] = []
        """The ids of workers that were killed. What one was just starting bears its mark an instant later, so it is looked for again."""

    async def open(self, drain: Callable[[str], None]) -> None:
        self._log = await asyncio.to_thread(open_log, self._folder)

    async def start(self, near: str = "") -> _Process:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await self._forked(theirs.fileno()) or await self._interpreter(theirs.fileno())
        except OSError:
            ours.close()
            raise
        return _Process(process, await wire.Channel.over(ours), self._run_id, self._died)

    async def close(self) -> None:
        for process in self._died:
            await asyncio.to_thread(kill_strays, self._run_id, process)
        if self._log is not None:
            self._log.close()
            await asyncio.to_thread(mask_secrets, Path(self._log.name))

    async def _forked(self, descriptor: int) -> ForkedProcess | None:
        if self._forks is None or self._log is None:
            return None
        try:
            return await self._forks.start(
                f"{WORKER}:main", WORKER_NAME, descriptor, self._log.fileno(), self._variables()
            )
        except OSError:  # the server was killed, or another process can't be started: starting one says what is wrong
            self._forks = None
            return None

    async def _interpreter(self, descriptor: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *python_command(WORKER, str(descriptor)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[descriptor],
            start_new_session=True,
            env={**os.environ, **self._variables()},
        )

    def _variables(self) -> dict[str, str]:
        return {MARK: process_mark(self._run_id), PYTHONPATH: module_path()}


class _Process:
    """A worker process."""

    node = address = ""
    attempts: frozenset[str] = frozenset()
    may_leave = ""

    def __init__(
        self,
        process: asyncio.subprocess.Process | ForkedProcess,
        channel: wire.Channel,
        run_id: str,
        died: list[int],
    ) -> None:
        """``died``: gets its id if it dies."""
        self.channel = channel
        self.name = f"process {process.pid}"
        self._process = process
        self._run_id = run_id
        self._died = died

    def take(self, message: object) -> None:
        return

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> Death:
        code = await self._exit_code()
        kill_strays(self._run_id, self._process.pid)
        if code != 0:
            self._died.append(self._process.pid)
        return Death(how_ended(code), well=code == 0)

    async def _exit_code(self) -> int:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()


def open_log(folder: Path) -> IO[bytes]:
    """The log of a run's workers, to be added to. Raises StorageError."""
    path = folder / LOG
    try:
        return path.open("ab")
    except OSError as error:
        raise StorageError(f"{path}: can't be written ({error.strerror})") from error


def how_ended(code: int) -> str:
    """An exit code for people; a negative one is that of a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"killed by signal {-code}"
