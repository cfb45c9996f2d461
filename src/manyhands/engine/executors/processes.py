"""Items performed in worker processes of this machine; their steps come back over a socket and are acknowledged when durable."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from manyhands.core.errors import ItemError, ManyhandsError, UserError
from manyhands.core.failures import Cause
from manyhands.core.usage import ZERO
from manyhands.engine.context import CallReport, Limits
from manyhands.engine.executors import wire
from manyhands.engine.performance import Claim, Journal, Performed
from manyhands.engine.strays import MARK, kill_strays

START_SECONDS = 60.0
CLOSE_SECONDS = 10.0
FAILED_STARTS = 3
"""Workers in a row that died before they were ready, after which the run stops."""


@dataclass(slots=True)
class _Worker:
    process: asyncio.subprocess.Process
    channel: wire.Channel
    tickets: dict[int, asyncio.Future[Performed]] = field(default_factory=dict)
    permits: set[int] = field(default_factory=set)
    requests: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    ready: bool = False


class ProcessExecutor:
    """``workers`` processes with ``concurrency`` items each. A worker that dies gives its items back and is replaced."""

    def __init__(
        self, begin: wire.Begin, run_id: str, journal: Journal, limits: Limits, *, workers: int, concurrency: int
    ) -> None:
        self._begin = begin
        self._run_id = run_id
        self._journal = journal
        self._limits = limits
        self._count = workers
        self._concurrency = concurrency
        self._workers: list[_Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._free: deque[asyncio.Future[None]] = deque()
        self._ticket = 0
        self._failed_starts = 0
        self._unusable: str | None = None
        self._stopping = False
        self._closing = False
        self._log: IO[bytes] | None = None

    @property
    def capacity(self) -> int:
        return self._count * self._concurrency

    async def start(self) -> None:
        self._log = await asyncio.to_thread((Path(self._begin.folder) / "workers.log").open, "ab")
        for _ in range(self._count):
            await self._spawn()

    async def perform(self, claim: Claim) -> Performed:
        worker = await self._free_worker()
        self._ticket += 1
        future: asyncio.Future[Performed] = asyncio.get_running_loop().create_future()
        worker.tickets[self._ticket] = future
        worker.channel.send(wire.Perform(self._ticket, claim))
        return await future

    def stop(self) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.channel.send(wire.Stop())

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        workers = list(self._workers)
        for worker in workers:
            worker.channel.close()
        await asyncio.gather(*(self._end(worker) for worker in workers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._log is not None:
            self._log.close()

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "manyhands.engine.executors.worker",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={
                    **os.environ,
                    MARK: f"{self._run_id}.{os.getpid()}",
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                },
            )
        worker = _Worker(process, await wire.Channel.over(ours))
        worker.channel.send(self._begin)
        self._workers.append(worker)
        self._background(self._listen(worker))

    async def _listen(self, worker: _Worker) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                self._handle(worker, await worker.channel.receive())
        except TimeoutError:
            worker.process.kill()
        while (message := await worker.channel.receive()) is not None:
            self._handle(worker, message)
        await self._lost(worker)

    def _handle(self, worker: _Worker, message: object) -> None:
        match message:
            case wire.Record(request, row):
                self._answer(worker, request, self._journal.record(row))
            case wire.Acquire(request, key, reserve):
                self._answer(worker, request, self._grant(worker, self._limits.acquire(key, reserve)))
            case wire.Release(permit, report):
                worker.permits.discard(permit)
                self._limits.release(permit, report)
            case wire.Forget(request):
                if request in worker.requests:
                    worker.requests[request].cancel()
            case wire.Done(ticket, performed, unusable):
                self._done(worker, ticket, performed, unusable)
            case wire.Ready():
                worker.ready = True
                self._failed_starts = 0
                if self._stopping:
                    worker.channel.send(wire.Stop())
                self._wake()
            case wire.Unusable(text):
                self._unusable = text

    def _done(self, worker: _Worker, ticket: int, performed: Performed | None, unusable: str | None) -> None:
        future = worker.tickets.pop(ticket)
        if not future.done():
            if performed is not None:
                future.set_result(performed)
            else:
                future.set_exception(UserError(unusable or "the worker could not perform the item"))
        self._wake()

    def _answer(self, worker: _Worker, request: int, answer: Awaitable[int | None]) -> None:
        async def reply() -> None:
            try:
                worker.channel.send(wire.Granted(request, await answer or 0))
            except ManyhandsError as error:
                worker.channel.send(wire.Granted(request, error=error))
            finally:
                worker.requests.pop(request, None)

        worker.requests[request] = self._background(reply())

    async def _grant(self, worker: _Worker, acquired: Awaitable[int]) -> int:
        permit = await acquired
        worker.permits.add(permit)
        return permit

    async def _free_worker(self) -> _Worker:
        while True:
            if self._unusable is not None:
                raise UserError(self._unusable)
            ready = [worker for worker in self._workers if worker.ready and len(worker.tickets) < self._concurrency]
            if ready:
                return min(ready, key=lambda worker: len(worker.tickets))
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._free.append(future)
            await future

    def _wake(self) -> None:
        while self._free:
            future = self._free.popleft()
            if not future.done():
                future.set_result(None)
                if self._unusable is None:
                    return

    async def _lost(self, worker: _Worker) -> None:
        """A worker's socket closed: it died, or was told to end."""
        self._workers.remove(worker)
        code = await _exit_code(worker.process)
        kill_strays(f"{self._run_id}.{worker.process.pid}")
        for task in list(worker.requests.values()):
            task.cancel()
        for permit in worker.permits:
            self._limits.release(permit, CallReport(usage=ZERO, failed=True))
        failure = ItemError(Cause.WORKER_CRASH, f"the worker process {worker.process.pid} died ({_how(code)})")
        for future in worker.tickets.values():
            if not future.done():
                future.set_result(Performed(failure=failure))
        if not self._closing:
            await self._replace(worker, code)

    async def _replace(self, worker: _Worker, code: int | None) -> None:
        if not worker.ready:
            self._failed_starts += 1
            if self._unusable is None and self._failed_starts >= FAILED_STARTS:
                self._unusable = (
                    f"worker processes die before they are ready ({_how(code)}); see {self._begin.folder}/workers.log"
                )
        if self._unusable is None:
            await self._spawn()
        else:
            self._wake()

    async def _end(self, worker: _Worker) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await worker.process.wait()
        except TimeoutError:
            worker.process.kill()
            await worker.process.wait()
        kill_strays(f"{self._run_id}.{worker.process.pid}")

    def _background(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _exit_code(process: asyncio.subprocess.Process) -> int | None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
