"""Items executed in worker processes, wherever those are; their steps come back over a socket and are acknowledged when durable.

What starts the workers is a ``Launcher``, on this machine or on the nodes of a cluster. All the rest is the same for both: which worker
executes what, what a worker's death means, and what is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from manyhands.core.errors import ItemError, ManyhandsError, StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState
from manyhands.core.redaction import describe
from manyhands.engine.attempt import AttemptResult, Claim, Failed, Journal, Stopped
from manyhands.engine.contract import GIVEN_BACK, CallReport, OneOf
from manyhands.engine.executors import wire
from manyhands.engine.executors.workers.assignment import Assignment, Worker
from manyhands.engine.executors.workers.launching import Death, Launched, Launcher
from manyhands.engine.executors.workers.starting import ANOTHER_NODE_SECONDS, RETRY_SECONDS, Starting
from manyhands.engine.journal.records import StepRow
from manyhands.engine.limits.shared import SharedLimits
from manyhands.engine.pause import Pause

CLOSE_SECONDS = 10.0
"""That workers may take to end once they were asked to."""
CLEARING_SECONDS = 180.0
"""The same on a node where it has to remove what all items of a run left: twenty containers took an idle engine two seconds."""
KILL_SECONDS = 5.0
"""The same once they were killed."""
START_SECONDS = 60.0
"""That a worker may take to get ready once it is there."""
GRACE_SECONDS = 30.0
GATHER_SECONDS = 10.0
"""Seconds for which items that were begun wait for a worker on the node where they were: after the first worker is ready, and after one
of that node was lost. Also those for which a run without a worker waits for one on another node after one can't be used."""


class WorkerExecutor:
    """``workers`` processes with ``concurrency`` items each. A worker that dies gives its items back and is replaced."""

    def __init__(
        self,
        launcher: Launcher,
        begin: wire.Begin,
        journal: Journal,
        limits: SharedLimits,
        *,
        workers: int,
        concurrency: int,
        items: int | None = None,
        begun: int = 0,
        max_in_flight: int | None = None,
        one_item_a_process: bool = False,
        grace: float = GRACE_SECONDS,
        gather: float = GATHER_SECONDS,
        another_node: float = ANOTHER_NODE_SECONDS,
        retry: float = RETRY_SECONDS,
        clearing: float = CLEARING_SECONDS,
        state_of: Callable[[str], ItemState | None] = lambda attempt: ItemState.PENDING,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``items``: how many there are at first; no more workers are started than these need (None: all). ``begun``: how many of them were
        begun before, each of which may have its workspace on another node, and so need a worker there. ``max_in_flight``: items in all
        (None: as many as the workers can have); if the workers can have more, each item is reason enough for another worker.
        ``one_item_a_process``: more items in flight mean more processes, not more items in each. ``grace``: seconds that a worker may take
        to end an item that is past its time limit, before the worker is killed. ``gather``: seconds for which items wait for a worker on
        the node where they were begun, and a run for its first worker once a node can't be used; ``another_node``: the same of a run
        that had workers. ``retry``: seconds after which a worker that did not start on a node is asked for again. ``clearing``: seconds
        that workers on nodes may take to remove what items left there, when a run is over. ``state_of``: the state of the item of an
        attempt (``3-1``); None if nobody goes on with that attempt. ``notice`` gets what a person should know."""
        self._launcher = launcher
        self._begin = begin
        self._journal = journal
        self._limits = limits
        self._max_workers = workers
        self._one_item_a_process = one_item_a_process
        self._pause = Pause()
        self._grace = grace
        self._clearing_seconds = clearing
        self._state_of = state_of
        self._notice = notice
        self._assignment = Assignment(concurrency, gathers=launcher.places, gather=gather)
        needs = 1 if max_in_flight is not None and max_in_flight < workers * concurrency else concurrency
        self._starting = Starting(
            launcher,
            self._assignment,
            self._begun,
            wanted=workers if items is None else min(workers, max(-(-items // needs), begun)),
            log=f"{begin.folder}/workers.log",
            patience=gather,
            another_node=another_node,
            retry=retry,
            notice=notice,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: set[asyncio.Task[None]] = set()
        """What hears each worker, and clears away after it."""
        self._closing = False

    async def start(self) -> None:
        await self._launcher.open(self._assignment.drain)
        await self._starting.start()

    async def execute(self, claim: Claim) -> AttemptResult:
        worker = await self._assignment.worker_for(claim)
        if worker is None:
            return Stopped()
        ticket, future = self._assignment.assign(worker, claim)
        worker.channel.send(wire.Execute(ticket, claim))
        limit = self._begin.item_timeout
        try:
            async with self._pause.time_limit(None if limit is None else limit + self._grace):
                return await future
        except TimeoutError:  # trust the worker no more to end it
            worker.launched.kill()
            return Failed(ItemError(Cause.TIMEOUT, "its process did not answer in time, and was killed"))
        finally:
            del worker.items[claim.item.number]
            if claim.alone:
                self._assignment.reserve(worker, False)

    def stop(self) -> None:
        self._pause.end()
        for worker in self._assignment.workers:
            worker.channel.send(wire.Stop())
        self._assignment.stop()

    def pause(self) -> None:
        self._pause.begin()
        for worker in self._assignment.workers:
            worker.channel.send(wire.Pause(True))

    def go_on(self) -> None:
        self._pause.end()
        for worker in self._assignment.workers:
            worker.channel.send(wire.Pause(False))

    def cancel(self, items: Iterable[int]) -> None:
        wanted = set(items)
        self._assignment.stop_waiting(wanted)
        for worker in self._assignment.workers:
            if found := worker.items.keys() & wanted:
                worker.channel.send(wire.Cancel(list(found)))

    def abandon(self, item: int) -> None:
        self._assignment.stop_waiting({item})
        for worker in self._assignment.workers:
            if item in worker.items:
                worker.channel.send(wire.Abandon(worker.items[item]))

    def resize(self, capacity: int) -> None:
        assignment, starting = self._assignment, self._starting
        workers = -(-capacity // assignment.concurrency)
        if not self._one_item_a_process:
            workers = min(workers, self._max_workers)
        if workers > starting.wanted:
            starting.grow(workers)
        assignment.concurrency = max(assignment.concurrency, -(-capacity // starting.wanted))
        assignment.wake_all()

    def over(self, item: int, attempt: int, *, failed: bool | None) -> None:
        """An attempt goes on no more: have its node remove what it keeps of it. ``failed``: how its item ended; None if that goes on with
        another attempt."""
        name = f"{item}-{attempt}"
        if (node := self._assignment.homes.pop(name, None)) is None:
            return
        if (worker := self._assignment.staying_on(node)) is not None:  # else the next one there says what it finds
            worker.channel.send(wire.Over(name, failed))

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._assignment.gathered()
        await self._starting.close()
        over = self._see_off()
        try:
            await self._all_ended(self._clearing_seconds if self._launcher.places and over else CLOSE_SECONDS)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._launcher.close()

    def _see_off(self) -> bool:
        """Have all workers end. Whether nothing is left to do, so that what items left on nodes is removed."""
        assignment = self._assignment
        over = not (assignment.stopping or assignment.homes or any(worker.tickets for worker in assignment.workers))
        for worker in assignment.workers:
            if worker.launched.node:  # it has something to say before it closes its end
                worker.channel.send(wire.Farewell(over))
            else:
                worker.channel.close()
        return over

    async def _all_ended(self, seconds: float) -> None:
        """Hear what each worker still has to say, and wait until it has ended, and what it left behind was cleared away; also of those
        that were lost before. One that doesn't end in ``seconds`` is killed."""
        late = set(self._listening)
        if late:
            _, late = await asyncio.wait(late, timeout=min(seconds, CLOSE_SECONDS))
        if late and seconds > CLOSE_SECONDS:
            where = ", ".join(sorted({worker.launched.address for worker in self._assignment.workers}))
            self._notice(f"what items left on {where} is still being removed, which may take {seconds:g} s")
            _, late = await asyncio.wait(late, timeout=seconds - CLOSE_SECONDS)
        if late:
            for worker in self._assignment.workers:
                worker.launched.kill()
                if left := worker.launched.may_leave:
                    self._notice(
                        f"the worker {worker.launched.name} had not ended after {seconds:g} s: {left} may be left"
                    )
            await asyncio.wait(late, timeout=KILL_SECONDS)

    def _begun(self, launched: Launched) -> None:
        """A worker was started: say what it is to do, and hear it."""
        worker, homes = Worker(launched, launched.channel), self._assignment.homes
        worker.channel.send(self._begin)
        for attempt in launched.attempts - homes.keys():
            state = self._state_of(attempt)
            if state is None or state.final:
                worker.channel.send(wire.Over(attempt, None if state is None else state is ItemState.FAILED))
            else:
                homes[attempt] = launched.node
        self._assignment.add(worker)
        listening = self._background(self._listen(worker))
        self._listening.add(listening)
        listening.add_done_callback(self._listening.discard)

    async def _listen(self, worker: Worker) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                self._handle(worker, await worker.channel.receive())
            while (message := await worker.channel.receive()) is not None:
                if (taking := self._handle(worker, message)) is not None:
                    await taking
        except StorageError as error:  # what an item left can't be written here, whichever worker sends it
            self._assignment.give_up(str(error))
            worker.launched.kill()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this worker, its items must get an answer
            self._notice(f"the worker {worker.launched.name} was ended: {describe(error)}")
            worker.launched.kill()
        await self._lost(worker)

    def _handle(self, worker: Worker, message: object) -> Awaitable[None] | None:
        """Do what follows from a message; the result, if there is one, comes before the next."""
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
            case wire.Done():
                self._done(worker, message)
            case wire.Ready():
                worker.ready = True
                self._starting.is_ready(worker)
                if self._assignment.stopping:
                    worker.channel.send(wire.Stop())
                elif self._pause.active:
                    worker.channel.send(wire.Pause(True))
                self._assignment.is_ready(worker, self._starting.wanted)
            case wire.Unusable(text):
                worker.unusable = text
                worker.launched.kill()
            case _:
                return worker.launched.take(message)
        return None

    def _done(self, worker: Worker, done: wire.Done) -> None:
        future = worker.tickets.pop(done.ticket)
        attempt = worker.attempts.pop(done.ticket, None)
        if attempt is not None and not done.left:
            self._assignment.homes.pop(attempt, None)
        if not future.done():
            if done.result is not None:
                future.set_result(done.result)
            else:
                future.set_exception(done.error or UserError("the worker could not execute the item"))
        worker.end_if_drained()
        self._assignment.freed(worker)

    def _record(self, worker: Worker, request: int, row: StepRow) -> None:
        """Answer once the step is on disk. There is one for each step of the run, so it has no task of its own."""
        durable = worker.requests[request] = asyncio.ensure_future(self._journal.record(row))

        def reply(_: asyncio.Future[None]) -> None:
            worker.requests.pop(request, None)
            if not durable.cancelled():
                error = durable.exception()
                worker.channel.send(wire.Granted(request, error=error if isinstance(error, Exception) else None))

        durable.add_done_callback(reply)

    def _acquire(self, worker: Worker, wanted: wire.Acquire) -> None:
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

    async def _acquire_later(self, worker: Worker, wanted: wire.Acquire) -> None:
        try:
            permit = await self._limits.acquire(wanted.key, wanted.reserve)
        except ManyhandsError as error:
            worker.channel.send(wire.Granted(wanted.request, error=error))
        else:
            self._grant(worker, wanted, permit)

    def _grant(self, worker: Worker, wanted: wire.Acquire, permit: int) -> None:
        if worker.lost:  # it makes no further call, which would be taken for one whose cost nobody knows
            self._limits.release(permit, GIVEN_BACK)
            return
        worker.permits.add(permit)
        key = self._limits.key_of(permit) if isinstance(wanted.key, OneOf) else None
        worker.channel.send(wire.Granted(wanted.request, permit, key=key))

    async def _lost(self, worker: Worker) -> None:
        """A worker's channel closed: it died, or had to end."""
        self._assignment.remove(worker)
        worker.channel.close()
        try:
            death = await worker.launched.ended()
        except Exception as error:  # noqa: BLE001 - its items must get an answer, whatever is wrong with what it left
            death = Death(describe(error), others_too=True)
        for task in list(worker.requests.values()):
            task.cancel()
        for permit in worker.permits:
            self._limits.release(permit, CallReport(failed=True, unknown=True))
        cause = Cause.NODE_LOST if death.node_lost else Cause.WORKER_CRASH
        failure = ItemError(cause, f"the worker {worker.launched.name} died ({death.how})")
        result = Failed(failure, shared_crash=death.others_too or len(worker.tickets) > 1)
        for future in worker.tickets.values():
            if not future.done():
                future.set_result(result)
        self._assignment.ending.discard(worker)
        if not self._closing:
            await self._starting.replace(worker, death)

    def _background(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
