"""Items executed in worker processes, wherever those are; their steps come back over a socket and are acknowledged when durable.

What starts the workers is a ``Launcher``: on this machine (``processes``), or on the nodes of a cluster (``cluster``). All the rest is the
same for both: which worker executes what, what a worker's death means, and what is recorded.

An item that was interrupted goes back to the node on which its attempt has its workspace, for as long as there is a worker: it would start
afresh anywhere else, and be paid for again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from manyhands.core.errors import ItemError, ManyhandsError, StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState
from manyhands.core.redaction import describe
from manyhands.core.text import counted
from manyhands.engine.attempt import AttemptResult, Claim, Failed, Journal, Stopped
from manyhands.engine.backlog import Waiters
from manyhands.engine.contract import CallReport, OneOf
from manyhands.engine.executors import wire
from manyhands.engine.executors.slots import ByLoad
from manyhands.engine.journal.records import StepRow
from manyhands.engine.limits.shared import SharedLimits
from manyhands.engine.pause import Pause

CLOSE_SECONDS = 10.0
"""That workers may take to end once they were asked to."""
CLEARING_SECONDS = 180.0
"""The same on a node where it has to remove what all items of a run left: twenty containers take an engine several seconds."""
KILL_SECONDS = 5.0
"""The same once they were killed."""
START_SECONDS = 60.0
"""That a worker may take to get ready once it is there."""
GRACE_SECONDS = 30.0
GATHER_SECONDS = 10.0
"""Seconds for which items that were begun wait for a worker on the node where they were: after the first worker is ready, and after one
of that node was lost. Also those for which a run without a worker waits for one on another node after one can't be used."""
HOPELESS_SECONDS = 60.0
"""Seconds after which a run ends of which every worker was lost before it began."""
RETRY_SECONDS = 1.0
"""Seconds after which a worker that did not start on another machine is asked for again. The time doubles with each further one that its
node failed."""
MAX_RETRY_SECONDS = 60.0
FAILED_STARTS = 3
"""Workers in a row that died on a machine before they were ready, after which it can't be used."""
MIN_FAILED_STARTS = 2
"""Workers that are asked for at least before a run ends because no node can be used: the second one is another node's, if there is any."""


class FailedStart(ManyhandsError):
    """A worker did not get ready on a node; the message is for people, and names it."""

    def __init__(self, why: str, node: str = "", *, unusable: bool = False) -> None:
        """``node``: as of ``Launched``; empty if it isn't known. ``unusable``: a person has to change something there."""
        super().__init__(why)
        self.node = node
        self.unusable = unusable


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended."""

    how: str
    """For people: ``killed by SIGKILL``, or ``exit code 1``."""
    well: bool = False
    """It ended by itself, as it was to."""
    node_lost: bool = False
    """The machine that it was on is gone, so that none of its items is to blame."""
    others_too: bool = False
    """Something else than an item may well have ended it."""


class Launched(Protocol):
    """A worker that was started, as its launcher holds it."""

    channel: wire.Channel
    name: str
    """For people: ``process 4711``, or ``process 4711 on 10.0.0.7``."""
    node: str
    """The machine that it is on; empty for this one."""
    address: str
    """That of the node, for people; empty for this one."""
    attempts: frozenset[str]
    """The attempts whose workspaces were on its node when it began, as ``3-1``: item 3, attempt 1. Empty for this machine."""
    may_leave: str
    """What may stay on its node if it is killed, for people; empty for this machine."""

    def take(self, message: object) -> None:
        """What it has to say that only its launcher understands. Raises StorageError for files that can't be written."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    async def ended(self) -> Death:
        """Wait for its end, which its closed channel announced, and clear away what it left behind. Bounded."""
        ...


class Launcher(Protocol):
    """Starts workers."""

    places: bool
    """Whether it is somebody else who decides when and where a worker starts, so that the run begins with those that there are."""

    async def open(self, drain: Callable[[str], None]) -> None:
        """Get ready. ``drain`` is called with each node that is about to go, and takes no new work. Raises UserError, StorageError."""
        ...

    async def start(self, near: str) -> Launched:
        """Start a worker, on the node ``near`` if that is named and has room. Raises FailedStart if it can't begin on its node, OSError if
        that can't be done now (ConnectionError if it was lost on the way), StorageError or UserError if it never will be."""
        ...

    async def close(self) -> None:
        """End all that is left. Called when the workers are closed."""
        ...


@dataclass(slots=True, eq=False)
class _Worker:
    launched: Launched
    channel: wire.Channel
    tickets: dict[int, asyncio.Future[AttemptResult]] = field(default_factory=dict)
    items: dict[int, int] = field(default_factory=dict)
    """The tickets of the items that it executes, by their numbers."""
    attempts: dict[int, str] = field(default_factory=dict)
    """On a node: the attempts that it executes (``3-1``), by their tickets."""
    permits: set[int] = field(default_factory=set)
    requests: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    """The groups of items that it executes."""
    ready: bool = False
    reserved: bool = False
    """Kept for an item that has to be alone."""
    draining: bool = False
    """It ends what it has, and gets nothing more."""
    unusable: str = ""
    """Why it can't begin, nor could another one on its node."""
    lost: bool = False

    @property
    def takes_items(self) -> bool:
        return self.ready and not (self.reserved or self.draining or self.lost)

    @property
    def is_leaving(self) -> bool:
        """It was told to end."""
        return self.draining and not self.tickets

    def free_slots(self, concurrency: int) -> int:
        return concurrency - len(self.tickets) if self.takes_items else 0


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
        max_in_flight: int | None = None,
        one_item_a_process: bool = False,
        grace: float = GRACE_SECONDS,
        gather: float = GATHER_SECONDS,
        retry: float = RETRY_SECONDS,
        clearing: float = CLEARING_SECONDS,
        state_of: Callable[[str], ItemState | None] = lambda attempt: ItemState.PENDING,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``items``: how many there are at first; no more workers are started than these need (None: all). ``max_in_flight``: items in all
        (None: as many as the workers can have); if the workers can have more, each item is reason enough for another worker.
        ``one_item_a_process``: more items in flight mean more processes, not more items in each. ``grace``: seconds that a worker may take
        to end an item that is past its time limit, before the worker is killed. ``gather``: seconds
        for which items wait for a worker on the node where they were begun, and a run for its first worker once a node can't be used.
        ``retry``: seconds after which a worker that did not start on a node is asked for again. ``clearing``: seconds that workers on nodes
        may take to remove what items left there, when a run is over. ``state_of``: the state of the item of an
        attempt (``3-1``); None if nobody goes on with that attempt. ``notice`` gets what a person should know."""
        self._launcher = launcher
        self._begin = begin
        self._journal = journal
        self._limits = limits
        self._max_workers = workers
        needs = 1 if max_in_flight is not None and max_in_flight < workers * concurrency else concurrency
        self._count = workers if items is None else min(workers, -(-items // needs))
        self._concurrency = concurrency
        self._one_item_a_process = one_item_a_process
        self._pause = Pause()
        self._grace = grace
        self._gather_seconds = gather
        self._retry_seconds = retry
        self._clearing_seconds = clearing
        self._state_of = state_of
        self._notice = notice
        self._told: set[str] = set()
        self._workers: list[_Worker] = []
        self._ending: set[_Worker] = set()
        """Those that were lost, whose ends are waited for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: set[asyncio.Task[None]] = set()
        """What hears each worker, and clears away after it."""
        self._spawning: set[asyncio.Task[None]] = set()
        self._by_load = ByLoad[_Worker]()
        """Those that take items."""
        self._nodes: dict[str, list[_Worker]] = {}
        """The workers of each node."""
        self._queues = defaultdict[Hashable, Waiters](Waiters)
        """Who waits: for a free slot of a certain worker, of one on a certain node or of any (None), or for something else."""
        self._alone = Waiters()
        """Who waits for a worker without other items."""
        self._groups: dict[str, _Worker] = {}
        """What executes each group of items."""
        self._homes: dict[str, str] = {}
        """The nodes on which unfinished attempts (``3-1``) have their workspaces, if they have any."""
        self._gathering = launcher.places
        """Whether workers on further nodes may be about to say which attempts they have."""
        self._gatherer: asyncio.TimerHandle | None = None
        self._leaving: set[str] = set()
        """The nodes that are about to go."""
        self._returning = Counter[str]()
        """Workers that are asked for in place of lost ones, by the nodes that lost them."""
        self._waiting: set[int] = set()
        """Items that wait for a worker, but for those that were cancelled meanwhile."""
        self._ticket = 0
        self._failures = Counter[str]()
        """By nodes: the workers that did not get ready there, in a row."""
        self._unusable_nodes: dict[str, str] = {}
        """Why the nodes that can't be used can't be."""
        self._told_nodes: set[str] = set()
        self._hopes: set[asyncio.Task[None]] = set()
        """What asks for workers of which none has had a node yet that can't be used."""
        self._despair: asyncio.TimerHandle | None = None
        self._lost_since: float | None = None
        """Since when every worker that Ray placed was lost before it began."""
        self._unusable: str | None = None
        self._stopping = False
        self._closing = False

    async def start(self) -> None:
        await self._launcher.open(self._drain)
        if self._launcher.places:  # items wait for the first one
            await self._grow(self._count)
            return
        for _ in range(self._count):
            if (problem := await self._spawn()) is not None:
                raise UserError(problem)

    async def execute(self, claim: Claim) -> AttemptResult:
        number = claim.item.number
        self._waiting.add(number)
        try:
            worker = await (self._reserved_worker(claim) if claim.alone else self._free_worker(claim))
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
        self._sort(worker)
        if worker.launched.node:
            self._homes[_attempt_of(claim)] = worker.launched.node
            worker.attempts[ticket] = _attempt_of(claim)
        worker.channel.send(wire.Execute(ticket, claim))
        limit = self._begin.item_timeout
        try:
            async with self._pause.time_limit(None if limit is None else limit + self._grace):
                return await future
        except TimeoutError:  # trust the worker no more to end it
            worker.launched.kill()
            return Failed(ItemError(Cause.TIMEOUT, "its process did not answer in time, and was killed"))
        finally:
            del worker.items[number]
            if claim.alone:
                self._reserve(worker, False)

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

    def over(self, item: int, attempt: int, *, failed: bool | None) -> None:
        """An attempt goes on no more: have its node remove what it keeps of it. ``failed``: how its item ended; None if that goes on with
        another attempt."""
        name = f"{item}-{attempt}"
        if (node := self._homes.pop(name, None)) is None:
            return
        staying = [each for each in self._nodes.get(node, ()) if not (each.unusable or each.is_leaving)]
        if staying:  # else the next one there says what it finds
            min(staying, key=lambda each: (each.draining, not each.ready)).channel.send(wire.Over(name, failed))

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._gathered()
        self._trust()
        if self._launcher.places:  # those that are not there yet may never come
            for task in self._spawning:
                task.cancel()
        await asyncio.gather(*self._spawning, return_exceptions=True)
        workers = list(self._workers)
        over = not (self._stopping or self._homes or any(worker.tickets for worker in workers))
        for worker in workers:
            if worker.launched.node:  # it has something to say before it closes its end
                worker.channel.send(wire.Farewell(over))
            else:
                worker.channel.close()
        try:
            await self._all_ended(self._clearing_seconds if self._launcher.places and over else CLOSE_SECONDS)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._launcher.close()

    async def _all_ended(self, seconds: float) -> None:
        """Hear what each worker still has to say, and wait until it has ended, and what it left behind was cleared away; also of those
        that were lost before. One that doesn't end in ``seconds`` is killed."""
        late = set(self._listening)
        if late:
            _, late = await asyncio.wait(late, timeout=min(seconds, CLOSE_SECONDS))
        if late and seconds > CLOSE_SECONDS:
            where = ", ".join(sorted({worker.launched.address for worker in self._workers}))
            self._notice(f"what items left on {where} is still being removed, which may take {seconds:g} s")
            _, late = await asyncio.wait(late, timeout=seconds - CLOSE_SECONDS)
        if late:
            for worker in self._workers:
                worker.launched.kill()
                if left := worker.launched.may_leave:
                    self._notice(
                        f"the worker {worker.launched.name} had not ended after {seconds:g} s: {left} may be left"
                    )
            await asyncio.wait(late, timeout=KILL_SECONDS)

    def _drain(self, node: str) -> None:
        self._leaving.add(node)
        for worker in self._nodes.get(node, ()):
            worker.draining = True
            self._sort(worker)
            self._end_if_drained(worker)
        self._wake_all()

    def _end_if_drained(self, worker: _Worker) -> None:
        if worker.is_leaving:
            worker.channel.send(wire.Farewell(over=False))

    async def _grow(self, more: int) -> None:
        """Start further workers, as many as there is room for."""
        for _ in range(more):
            if self._launcher.places:
                self._ask()
            elif self._closing or self._stopping or await self._spawn() is not None:
                return

    def _ask(self, near: str = "", delay: float = 0.0, *, hope: bool = True) -> asyncio.Task[None]:
        """Ask for a worker where somebody else decides when and where it starts. ``near``: the node that lost one, whose items wait for
        this one. ``delay``: in so many seconds. ``hope``: not in place of one whose node can't be used."""
        task = self._background(self._spawn_patiently(near, delay))
        if hope:
            self._hopes.add(task)
            task.add_done_callback(self._hopes.discard)
        return task

    async def _spawn_patiently(self, near: str, delay: float) -> None:
        """Start a worker. What goes wrong may go well the next time, or on another node."""
        while True:
            await asyncio.sleep(delay)
            if self._closing or self._stopping or self._unusable:
                return
            delay = self._retry_seconds
            try:
                await self._started(near)
                return
            except FailedStart as error:
                delay = self._failed(error)
            except ConnectionError as error:  # it was lost before it began, for which no worker is to blame
                if self._is_hopeless():
                    self._fail_to_start(str(error))
            except OSError as error:
                delay = self._failed(FailedStart(_unable(error)))
            except (StorageError, UserError) as error:
                self._fail_to_start(str(error))
                return
            near = ""

    def _failed(self, failure: FailedStart) -> float:
        """The seconds after which a worker may be asked for again that did not get ready on a node."""
        node = failure.node
        self._failures[node] += 1
        if not (failure.unusable or self._failures[node] >= FAILED_STARTS):
            return self._retry_seconds
        self._unusable_nodes[node] = str(failure)
        if (task := asyncio.current_task()) is not None:
            self._hopes.discard(task)
        self._doubt(str(failure))
        return min(self._retry_seconds * 2.0 ** min(self._failures[node] - 1, 10), MAX_RETRY_SECONDS)

    def _doubt(self, why: str) -> None:
        """A node can't be used. The run goes on with the others, and waits for a while for the first worker on one of them."""
        if not self._launcher.places:
            self._give_up(why)
        elif self._has_workers():
            self._tell_unusable_nodes()
        elif self._failures.total() >= MIN_FAILED_STARTS and not self._may_start():
            self._despair_of(why)
        elif self._despair is None:
            self._despair = asyncio.get_running_loop().call_later(self._gather_seconds, self._despair_late, why)

    def _may_start(self) -> bool:
        """Whether a worker is asked for, or getting ready, of which no node has said that it can't be used."""
        return bool(self._hopes) or any(not worker.unusable for worker in (*self._workers, *self._ending))

    def _despair_late(self, why: str) -> None:
        self._despair = None
        if all(worker.unusable for worker in self._workers):  # else one is just getting ready
            self._despair_of(why)

    def _despair_of(self, why: str) -> None:
        others = len(self._unusable_nodes) - 1
        self._give_up(f"{why}; nor can {counted(others, 'other node')} be used" if others > 0 else why)

    def _trust(self, node: str | None = None) -> None:
        """A worker is ready, on this node."""
        if node is not None:
            del self._failures[node]
            self._unusable_nodes.pop(node, None)
            self._tell_unusable_nodes()
        if self._despair is not None:
            self._despair.cancel()
            self._despair = None

    def _tell_unusable_nodes(self) -> None:
        for node, why in self._unusable_nodes.items():
            if node not in self._told_nodes:
                self._told_nodes.add(node)
                self._notice(why)

    def _has_workers(self) -> bool:
        return any(worker.ready and not worker.unusable for worker in self._workers)

    def _fail_to_start(self, why: str) -> None:
        """No further worker can be had. On a cluster the run goes on with those that are there."""
        if self._launcher.places and self._has_workers():
            self._tell_once(why)
        else:
            self._give_up(why)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._notice(text)

    def _is_hopeless(self) -> bool:
        """Whether workers have been lost for long, with none that works."""
        now = asyncio.get_running_loop().time()
        if self._workers or self._lost_since is None:
            self._lost_since = now
        return now - self._lost_since > HOPELESS_SECONDS

    async def _let_return(self, node: str, spawning: asyncio.Task[None]) -> None:
        """Have items whose workspaces are on a node wait for the worker that is started there, though not for good: it may have no room."""
        await asyncio.wait([spawning], timeout=self._gather_seconds)
        self._returning[node] -= 1
        self._wake_all()

    async def _spawn(self) -> str | None:
        """Start a worker at once, or say why that can't be done."""
        try:
            await self._started()
        except OSError as error:
            return _unable(error)
        except UserError as error:
            return str(error)
        return None

    async def _started(self, near: str = "") -> None:
        """Start a worker; one that is begun is started to its end, so that it can be ended properly."""
        task = asyncio.ensure_future(self._start_worker(near))
        self._spawning.add(task)
        task.add_done_callback(self._spawning.discard)
        try:
            await asyncio.shield(task)
        except (FailedStart, OSError, StorageError, UserError):
            raise
        except Exception as error:
            raise UserError(f"worker processes can't be started: {describe(error)}") from error

    async def _start_worker(self, near: str) -> None:
        launched = await self._launcher.start(near)
        worker = _Worker(launched, launched.channel)
        worker.channel.send(self._begin)
        for attempt in launched.attempts:
            if attempt in self._homes:
                continue
            state = self._state_of(attempt)
            if state is None or state.final:
                worker.channel.send(wire.Over(attempt, None if state is None else state is ItemState.FAILED))
            else:
                self._homes[attempt] = launched.node
        self._workers.append(worker)
        if launched.node:
            self._nodes.setdefault(launched.node, []).append(worker)
        if launched.node in self._leaving:  # it was placed there just before that was known
            worker.draining = True
            self._end_if_drained(worker)
        listening = self._background(self._listen(worker))
        self._listening.add(listening)
        listening.add_done_callback(self._listening.discard)

    async def _listen(self, worker: _Worker) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                self._handle(worker, await worker.channel.receive())
            while (message := await worker.channel.receive()) is not None:
                self._handle(worker, message)
        except StorageError as error:  # what an item left can't be written here, whichever worker sends it
            self._give_up(str(error))
            worker.launched.kill()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this worker, its items must get an answer
            self._tell_once(f"the worker {worker.launched.name} was ended: {describe(error)}")
            worker.launched.kill()
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
            case wire.Done():
                self._done(worker, message)
            case wire.Ready():
                worker.ready = True
                self._lost_since = None
                self._trust(worker.launched.node)
                self._gather()
                if self._stopping:
                    worker.channel.send(wire.Stop())
                elif self._pause.active:
                    worker.channel.send(wire.Pause(True))
                self._sort(worker)
                self._offer(worker)
            case wire.Unusable(text):
                worker.unusable = text
                worker.launched.kill()
            case _:
                worker.launched.take(message)

    def _give_up(self, why: str) -> None:
        """No worker can ever be used."""
        self._unusable = self._unusable or why
        self._wake_all()

    def _done(self, worker: _Worker, done: wire.Done) -> None:
        future = worker.tickets.pop(done.ticket)
        attempt = worker.attempts.pop(done.ticket, None)
        if attempt is not None and not done.left:
            self._homes.pop(attempt, None)
        if not future.done():
            if done.result is not None:
                future.set_result(done.result)
            else:
                future.set_exception(done.error or UserError("the worker could not execute the item"))
        self._sort(worker)
        self._end_if_drained(worker)
        self._offer(worker)

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

    async def _free_worker(self, claim: Claim) -> _Worker | None:
        """A worker with a free slot; None if the item does not wait any more, or the run is stopping."""
        queue: Waiters | None = None
        while claim.item.number in self._waiting and not self._is_over():
            where, worker = self._best_worker(claim)
            if worker is not None and self._free_slots(worker) > 0:
                return worker
            before, queue = queue, self._queues[where]
            if before is not None and before is not queue:
                before.wake()  # somebody else may want the slot for which this one was woken
            await queue.wait()
        return None

    def _best_worker(self, claim: Claim) -> tuple[Hashable, _Worker | None]:
        """The one to execute an item, or to wait for, and in which queue: that of its group, or one on the node where its workspace is."""
        if claim.group is not None:
            worker = self._worker_of(claim.group)
            return worker, worker
        home = self._homes.get(_attempt_of(claim)) if claim.recorded else None
        if home is not None and (able := [each for each in self._nodes.get(home, ()) if not each.draining]):
            return home, max(able, key=self._free_slots)
        if home is not None and self._returning[home] > 0:
            return ("returning to", home), None
        if claim.recorded and self._gathering and home is None:
            return "gathering", None
        return None, self._by_load.least_loaded()

    def _gather(self) -> None:
        """A worker is ready. The others may be just behind it, and on one of their nodes may be what an earlier session left."""
        if self._gathering and sum(worker.ready for worker in self._workers) >= self._count:
            self._gathered()
        elif self._gathering and self._gatherer is None:
            self._gatherer = asyncio.get_running_loop().call_later(self._gather_seconds, self._gathered)

    def _gathered(self) -> None:
        self._gathering = False
        if self._gatherer is not None:
            self._gatherer.cancel()
        self._wake_all()

    def _worker_of(self, group: str) -> _Worker | None:
        """The worker that executes a group: the same for as long as it lives, and one that is to go until it has ended what it has."""
        worker = self._groups.get(group)
        if worker is None or worker.is_leaving:
            able = (each for each in self._workers if not each.draining)  # also one that is just starting
            worker = min(able, key=lambda each: len(each.groups), default=None)
            if worker is not None:
                self._groups[group] = worker
                worker.groups.add(group)
        return worker

    async def _reserved_worker(self, claim: Claim) -> _Worker | None:
        """A worker that executes nothing else, and takes nothing else until its ``reserved`` is reset; None as of ``_free_worker``."""
        reserved: _Worker | None = None
        try:
            while claim.item.number in self._waiting and not self._is_over():
                if reserved is None or reserved.draining or reserved.lost:
                    reserved = self._reserve_one(claim)
                if reserved is not None and not reserved.tickets:
                    found, reserved = reserved, None
                    return found
                await self._alone.wait()
        finally:
            if reserved is not None:
                self._reserve(reserved, False)
        return None

    def _reserve_one(self, claim: Claim) -> _Worker | None:
        """Reserve a worker with a free slot for an item, if there is one."""
        _, worker = self._best_worker(claim)
        if worker is None or self._free_slots(worker) == 0:
            return None
        self._reserve(worker, True)
        return worker

    def _reserve(self, worker: _Worker, reserved: bool) -> None:
        worker.reserved = reserved
        self._sort(worker)
        self._offer(worker)

    def _free_slots(self, worker: _Worker) -> int:
        return worker.free_slots(self._concurrency)

    def _sort(self, worker: _Worker) -> None:
        """What a worker has, or whether it takes more, has changed."""
        if worker.takes_items:
            self._by_load.set(worker, len(worker.tickets))
        else:
            self._by_load.remove(worker)

    def _is_over(self) -> bool:
        if self._unusable is not None:
            raise UserError(self._unusable)
        return self._stopping

    def _offer(self, worker: _Worker) -> None:
        """Wake as many of those who wait as a worker has free slots. Waking all for each of thousands of slots would take longer than
        everything else."""
        free = self._free_slots(worker)
        for where in (worker, worker.launched.node, None):
            queue = self._queues.get(where)
            while free > 0 and queue and queue.wake():
                free -= 1
        self._alone.wake_all()

    def _wake_all(self) -> None:
        """Something else than a slot has changed, so that all who wait look again."""
        queues = [*self._queues.values(), self._alone]
        self._queues.clear()
        for queue in queues:
            queue.wake_all()

    async def _lost(self, worker: _Worker) -> None:
        """A worker's channel closed: it died, or had to end."""
        self._forget(worker)
        self._ending.add(worker)
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
        self._ending.discard(worker)
        if not self._closing:
            await self._replace(worker, death)

    def _forget(self, worker: _Worker) -> None:
        """Give a worker nothing more, and its groups to others."""
        worker.lost = True
        self._workers.remove(worker)
        if worker.launched.node:
            self._nodes[worker.launched.node].remove(worker)
        self._sort(worker)
        for group in worker.groups:
            if self._groups.get(group) is worker:
                del self._groups[group]
        self._wake_all()

    async def _replace(self, worker: _Worker, death: Death) -> None:
        failure = self._failure(worker, death)
        delay = 0.0 if failure is None else self._failed(failure)
        if self._launcher.places:
            hope = failure is None or failure.node not in self._unusable_nodes
            near = worker.launched.node if hope and not (death.node_lost or worker.draining) else ""
            spawning = self._ask(near, delay, hope=hope)
            if near:
                self._returning[near] += 1
                self._background(self._let_return(near, spawning))
        elif self._unusable is None and not self._stopping:
            problem = await self._spawn()
            if not self._workers and problem is not None:
                self._give_up(problem)
        self._wake_all()

    def _failure(self, worker: _Worker, death: Death) -> FailedStart | None:
        """Of a worker that ended: why it could not begin, if its machine is to blame."""
        node, address = worker.launched.node, worker.launched.address
        if worker.unusable:
            why = f"the node {address}: {worker.unusable}" if address else worker.unusable
            return FailedStart(why, node, unusable=True)
        if worker.ready or worker.draining or death.node_lost:
            return None
        which = f"workers on {address}" if address else "worker processes"
        return FailedStart(
            f"{which} die before they are ready ({death.how}); see {self._begin.folder}/workers.log", node
        )

    def _background(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _unable(error: OSError) -> str:
    return f"worker processes can't be started: {error.strerror or error}"


def _attempt_of(claim: Claim) -> str:
    return f"{claim.item.number}-{claim.attempt}"
