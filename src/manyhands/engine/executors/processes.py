"""Items executed in worker processes of this machine; their steps come back over a socket and are acknowledged when durable."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from manyhands.core.errors import ItemError, ManyhandsError, StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.engine.attempt import AttemptResult, Claim, Failed, Journal, Stopped
from manyhands.engine.contract import CallReport, OneOf
from manyhands.engine.executors import wire
from manyhands.engine.journal.records import StepRow
from manyhands.engine.limits.shared import SharedLimits
from manyhands.engine.pause import Pause
from manyhands.io.files import mask_secrets
from manyhands.processes.fork_server import ForkedProcess, ForkServer
from manyhands.processes.interpreters import PYTHONPATH, module_path, python_command
from manyhands.processes.strays import MARK, kill_strays, process_mark

WORKER = "manyhands.engine.executors.worker"
"""The module that a worker process runs."""
WORKER_NAME = "manyhands-work"
"""What lists of processes call a worker process that was forked."""
START_SECONDS = 60.0
CLOSE_SECONDS = 10.0
GRACE_SECONDS = 30.0
FAILED_STARTS = 3
"""Workers in a row that died before they were ready, after which the run stops."""


@dataclass(slots=True)
class _Worker:
    process: asyncio.subprocess.Process | ForkedProcess
    channel: wire.Channel
    tickets: dict[int, asyncio.Future[AttemptResult]] = field(default_factory=dict)
    items: dict[int, int] = field(default_factory=dict)
    """The tickets of the items that it executes, by their numbers."""
    permits: set[int] = field(default_factory=set)
    requests: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    ready: bool = False
    reserved: bool = False
    """Kept for an item that has to be alone."""

    def free_slots(self, concurrency: int) -> int:
        return concurrency - len(self.tickets) if self.ready and not self.reserved else 0


class ProcessExecutor:
    """``workers`` processes with ``concurrency`` items each. A worker that dies gives its items back and is replaced."""

    def __init__(
        self,
        begin: wire.Begin,
        run_id: str,
        journal: Journal,
        limits: SharedLimits,
        *,
        workers: int,
        concurrency: int,
        items: int | None = None,
        max_in_flight: int | None = None,
        one_item_a_process: bool = False,
        forks: ForkServer | None = None,
        grace: float = GRACE_SECONDS,
    ) -> None:
        """``items``: how many there are at first; no more workers are started than these need (None: all). ``max_in_flight``: items in all,
        which are spread over the workers where these could have more (None: no limit). ``one_item_a_process``: more
        items in flight mean more processes, not more items in each. ``forks``: what makes the workers; without it they are interpreters
        of their own, which import everything. ``grace``: seconds that a worker may take to end an item that is past its time limit,
        before the worker is killed."""
        self._begin = begin
        self._run_id = run_id
        self._journal = journal
        self._limits = limits
        self._max_workers = workers
        share = concurrency if max_in_flight is None else min(concurrency, -(-max_in_flight // workers))
        self._count = workers if items is None else min(workers, -(-items // share))
        self._concurrency = concurrency
        self._one_item_a_process = one_item_a_process
        self._pause = Pause()
        self._forks = forks
        self._grace = grace
        self._workers: list[_Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawning: set[asyncio.Task[None]] = set()
        self._free: list[asyncio.Future[None]] = []
        self._groups: dict[str, _Worker] = {}
        """What executes each group of items."""
        self._waiting: set[int] = set()
        """Items that wait for a worker, but for those that were cancelled meanwhile."""
        self._ticket = 0
        self._failed_starts = 0
        self._unusable: str | None = None
        self._stopping = False
        self._closing = False
        self._died: list[int] = []
        """The ids of workers that were killed. What one was just starting bears its mark an instant later, so it is looked for again."""
        self._log: IO[bytes] | None = None

    async def start(self) -> None:
        path = Path(self._begin.folder) / "workers.log"
        try:
            self._log = await asyncio.to_thread(path.open, "ab")
        except OSError as error:
            raise StorageError(f"{path}: can't be written ({error.strerror})") from error
        for _ in range(self._count):
            if (problem := await self._spawn()) is not None:
                raise UserError(problem)

    async def execute(self, claim: Claim) -> AttemptResult:
        number = claim.item.number
        self._waiting.add(number)
        try:
            worker = await (self._reserved_worker(number) if claim.alone else self._free_worker(number, claim.group))
        finally:
            self._waiting.discard(number)
        if worker is None:
            return Stopped()
        self._ticket += 1
        ticket = self._ticket
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AttemptResult] = loop.create_future()
        worker.tickets[ticket] = future
        worker.items[number] = ticket
        worker.channel.send(wire.Execute(ticket, claim))
        limit = self._begin.item_timeout
        try:
            async with self._pause.time_limit(None if limit is None else limit + self._grace):
                return await future
        except TimeoutError:  # trust the worker no more to end it
            _kill(worker.process)
            return Failed(ItemError(Cause.TIMEOUT, "its process did not answer in time, and was killed"))
        finally:
            del worker.items[number]
            if claim.alone:
                worker.reserved = False
                self._wake_all()

    def stop(self) -> None:
        self._stopping = True
        self._pause.end()
        for worker in self._workers:
            worker.channel.send(wire.Stop())
        self._wake_all()

    def pause(self) -> None:
        self._pause.begin()
        for worker in self._workers:
            worker.channel.send(wire.Pause(True))

    def go_on(self) -> None:
        self._pause.end()
        for worker in self._workers:
            worker.channel.send(wire.Pause(False))

    def cancel(self, items: Iterable[int]) -> None:
        wanted = set(items)
        self._stop_waiting(wanted)
        for worker in self._workers:
            if found := worker.items.keys() & wanted:
                worker.channel.send(wire.Cancel(list(found)))

    def abandon(self, item: int) -> None:
        self._stop_waiting({item})
        for worker in self._workers:
            if item in worker.items:
                worker.channel.send(wire.Abandon(worker.items[item]))

    def _stop_waiting(self, items: set[int]) -> None:
        if self._waiting & items:
            self._waiting -= items
            self._wake_all()

    def resize(self, capacity: int) -> None:
        workers = -(-capacity // self._concurrency)
        if not self._one_item_a_process:
            workers = min(workers, self._max_workers)
        if workers > self._count:
            more, self._count = workers - self._count, workers
            self._background(self._grow(more))
        self._concurrency = max(self._concurrency, -(-capacity // self._count))
        self._wake_all()

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        await asyncio.gather(*self._spawning, return_exceptions=True)
        workers = list(self._workers)
        for worker in workers:
            worker.channel.close()
        await asyncio.gather(*(self._end(worker) for worker in workers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._died:
            await asyncio.to_thread(kill_strays, self._run_id, process)
        if self._log is not None:
            self._log.close()
            await asyncio.to_thread(mask_secrets, Path(self._log.name))

    async def _grow(self, more: int) -> None:
        """Start further workers, as many as this machine has room for."""
        for _ in range(more):
            if self._closing or self._stopping or await self._spawn() is not None:
                return

    async def _spawn(self) -> str | None:
        """Start a worker, or say why that can't be done; one that is begun is started to its end, so that it can be ended properly."""
        task = asyncio.ensure_future(self._start_worker())
        self._spawning.add(task)
        task.add_done_callback(self._spawning.discard)
        try:
            await asyncio.shield(task)
        except OSError as error:
            return f"worker processes can't be started: {error.strerror or error}"
        return None

    async def _start_worker(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await self._forked(theirs.fileno()) or await self._interpreter(theirs.fileno())
        except OSError:
            ours.close()
            raise
        worker = _Worker(process, await wire.Channel.over(ours))
        worker.channel.send(self._begin)
        self._workers.append(worker)
        self._background(self._listen(worker))

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

    async def _listen(self, worker: _Worker) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                self._handle(worker, await worker.channel.receive())
            while (message := await worker.channel.receive()) is not None:
                self._handle(worker, message)
        except Exception:  # noqa: BLE001 - whatever is wrong with this worker, its items must get an answer
            _kill(worker.process)
        await self._lost(worker)

    def _handle(self, worker: _Worker, message: object) -> None:
        match message:
            case wire.Record(request, row):
                self._record(worker, request, row)
            case wire.Acquire():
                self._acquire(worker, message)
            case wire.Release(permit, report):
                if permit in worker.permits:
                    worker.permits.discard(permit)
                    self._limits.release(permit, report)
            case wire.Forget(request):
                if request in worker.requests:
                    worker.requests[request].cancel()
            case wire.Done(ticket, result, error):
                self._done(worker, ticket, result, error)
            case wire.Ready():
                worker.ready = True
                self._failed_starts = 0
                if self._stopping:
                    worker.channel.send(wire.Stop())
                elif self._pause.active:
                    worker.channel.send(wire.Pause(True))
                self._wake_all()
            case wire.Unusable(text):
                self._unusable = text

    def _done(self, worker: _Worker, ticket: int, result: AttemptResult | None, error: Exception | None) -> None:
        future = worker.tickets.pop(ticket)
        if not future.done():
            if result is not None:
                future.set_result(result)
            else:
                future.set_exception(error or UserError("the worker could not execute the item"))
        self._wake_all()

    def _record(self, worker: _Worker, request: int, row: StepRow) -> None:
        """Answer once the step is on disk. There is one for each step of the run, so it has no task of its own."""
        durable = worker.requests[request] = asyncio.ensure_future(self._journal.record(row))

        def reply(_: asyncio.Future[None]) -> None:
            worker.requests.pop(request, None)
            if not durable.cancelled():
                error = durable.exception()
                worker.channel.send(wire.Granted(request, error=error if isinstance(error, Exception) else None))

        durable.add_done_callback(reply)

    def _acquire(self, worker: _Worker, wanted: wire.Acquire) -> None:
        """Answer at once where the call may be made at once, as most may: that needs no task."""
        request = wanted.request
        try:
            permit = self._limits.acquire_now(wanted.key, wanted.reserve)
        except ManyhandsError as error:
            worker.channel.send(wire.Granted(request, error=error))
            return
        if permit is not None:
            self._grant(worker, wanted, permit)
            return
        task = worker.requests[request] = self._background(self._acquire_later(worker, wanted))
        task.add_done_callback(lambda _: worker.requests.pop(request, None))

    async def _acquire_later(self, worker: _Worker, wanted: wire.Acquire) -> None:
        try:
            permit = await self._limits.acquire(wanted.key, wanted.reserve)
        except ManyhandsError as error:
            worker.channel.send(wire.Granted(wanted.request, error=error))
        else:
            self._grant(worker, wanted, permit)

    def _grant(self, worker: _Worker, wanted: wire.Acquire, permit: int) -> None:
        worker.permits.add(permit)
        key = self._limits.key_of(permit) if isinstance(wanted.key, OneOf) else None
        worker.channel.send(wire.Granted(wanted.request, permit, key=key))

    async def _free_worker(self, number: int, group: str | None) -> _Worker | None:
        """A worker with a free slot, for an item of a group the one of that group; None if the item does not wait any more, or the run is
        stopping."""
        while number in self._waiting and not self._is_over():
            worker = self._worker_of(group) if group else max(self._workers, key=self._free_slots, default=None)
            if worker is not None and self._free_slots(worker) > 0:
                return worker
            await self._change()
        return None

    def _worker_of(self, group: str) -> _Worker | None:
        """The worker that executes a group: the same for as long as it lives."""
        worker = self._groups.get(group)
        if worker not in self._workers:
            worker = min(self._workers, key=self._groups_of, default=None)  # also one that is just starting
            if worker is not None:
                self._groups[group] = worker
        return worker

    def _groups_of(self, worker: _Worker) -> int:
        return sum(each is worker for each in self._groups.values())

    async def _reserved_worker(self, number: int) -> _Worker | None:
        """A worker that executes nothing else, and takes nothing else until its ``reserved`` is reset; None as of ``_free_worker``."""
        reserved: _Worker | None = None
        try:
            while number in self._waiting and not self._is_over():
                if reserved not in self._workers:
                    reserved = max(self._workers, key=self._free_slots, default=None)
                    if reserved is None or self._free_slots(reserved) <= 0:
                        reserved = None
                    else:
                        reserved.reserved = True
                if reserved is not None and not reserved.tickets:
                    found, reserved = reserved, None
                    return found
                await self._change()
        finally:
            if reserved is not None:
                reserved.reserved = False
                self._wake_all()
        return None

    def _free_slots(self, worker: _Worker) -> int:
        return worker.free_slots(self._concurrency)

    def _is_over(self) -> bool:
        if self._unusable is not None:
            raise UserError(self._unusable)
        return self._stopping

    async def _change(self) -> None:
        """Wait until a slot may have become free."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._free.append(future)
        await future

    def _wake_all(self) -> None:
        waiting, self._free = self._free, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _lost(self, worker: _Worker) -> None:
        """A worker's socket closed: it died, or had to end."""
        self._workers.remove(worker)
        worker.channel.close()
        code = await _exit_code(worker.process)
        kill_strays(self._run_id, worker.process.pid)
        if code != 0:
            self._died.append(worker.process.pid)
        for task in list(worker.requests.values()):
            task.cancel()
        for permit in worker.permits:
            self._limits.release(permit, CallReport(failed=True, unknown=True))
        failure = ItemError(Cause.WORKER_CRASH, f"the worker process {worker.process.pid} died ({_how(code)})")
        result = Failed(failure, shared_crash=len(worker.tickets) > 1)
        for future in worker.tickets.values():
            if not future.done():
                future.set_result(result)
        if not self._closing:
            await self._replace(worker, code)

    async def _replace(self, worker: _Worker, code: int | None) -> None:
        if not worker.ready:
            self._failed_starts += 1
            if self._unusable is None and self._failed_starts >= FAILED_STARTS:
                self._unusable = (
                    f"worker processes die before they are ready ({_how(code)}); see {self._begin.folder}/workers.log"
                )
        if self._unusable is None and not self._stopping:
            problem = await self._spawn()
            if not self._workers:
                self._unusable = problem
        self._wake_all()

    async def _end(self, worker: _Worker) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await worker.process.wait()
        except TimeoutError:
            _kill(worker.process)
            await worker.process.wait()
        kill_strays(self._run_id, worker.process.pid)

    def _background(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _exit_code(process: asyncio.subprocess.Process | ForkedProcess) -> int | None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            return await process.wait()
    except TimeoutError:
        _kill(process)
        return await process.wait()


def _kill(process: asyncio.subprocess.Process | ForkedProcess) -> None:
    with suppress(ProcessLookupError):
        process.kill()


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
