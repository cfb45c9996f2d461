"""Which worker executes which item.

An item that was interrupted goes back to the node on which its attempt has its workspace, for as long as there is a worker: it would start
afresh anywhere else, and be paid for again. The items of a group are executed by one worker.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial

from manyhands.core.errors import UserError
from manyhands.engine.attempt import AttemptResult, Claim
from manyhands.engine.backlog import Waiters
from manyhands.engine.executors import wire
from manyhands.engine.executors.workers.launching import Launched
from manyhands.engine.executors.workers.slots import ByLoad


@dataclass(slots=True, eq=False)
class Worker:
    """A worker process, and what it has to do."""

    launched: Launched
    channel: wire.Channel
    tickets: dict[int, asyncio.Future[AttemptResult]] = field(default_factory=dict)
    """What comes of the items that it executes, by their tickets: each execution has a number of its own."""
    items: dict[int, int] = field(default_factory=dict)
    """The tickets of these items, by their numbers."""
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

    def end_if_drained(self) -> None:
        """Have it end, if it is to go and has nothing left."""
        if self.is_leaving:
            self.channel.send(wire.Farewell(over=False))


class Assignment:
    """The workers that are there, and the items that wait for one of them. Made and used on one event loop."""

    def __init__(self, concurrency: int, *, gathers: bool, gather: float) -> None:
        """``concurrency``: items that each worker executes at once. ``gathers``: items that were begun wait at first for a worker on the
        node where they were, for ``gather`` seconds after the first worker is ready. So they do after a worker of that node was lost."""
        self.concurrency = concurrency
        self.workers: list[Worker] = []
        self.ending: set[Worker] = set()
        """Those that were lost, whose ends are waited for."""
        self.homes: dict[str, str] = {}
        """The nodes on which unfinished attempts (``3-1``) have their workspaces, if they have any."""
        self.stopping = False
        self.unusable: str | None = None
        """Why no worker can ever be used."""
        self._by_load = ByLoad[Worker]()
        """Those that take items."""
        self._nodes: dict[str, list[Worker]] = {}
        """The workers of each node."""
        self._leaving: set[str] = set()
        """The nodes that are about to go."""
        self._returning = defaultdict[str, set[asyncio.Task[None]]](set)
        """What starts workers in place of lost ones, by the nodes that lost them."""
        self._groups: dict[str, Worker] = {}
        """What executes each group of items."""
        self._queues = defaultdict[Hashable, Waiters](Waiters)
        """Who waits: for a free slot of a certain worker, of one on a certain node or of any (None), or for something else."""
        self._alone = Waiters()
        """Who waits for a worker without other items."""
        self._waiting: set[int] = set()
        """Items that wait for a worker, but for those that were cancelled meanwhile."""
        self._ticket = 0
        self._gathering = gathers
        """Whether workers on further nodes may be about to say which attempts they have."""
        self._gather_seconds = gather
        self._gatherer: asyncio.TimerHandle | None = None

    # --- Workers come and go

    def add(self, worker: Worker) -> None:
        """A worker was started, and will be ready soon."""
        self.workers.append(worker)
        node = worker.launched.node
        if node:
            self._nodes.setdefault(node, []).append(worker)
        if node in self._leaving:  # it was placed there just before that was known
            worker.draining = True
            worker.end_if_drained()

    def is_ready(self, worker: Worker, wanted: int) -> None:
        """A worker takes items now. ``wanted``: so many workers are wanted in all. The others may be just behind it, and on one of their
        nodes may be what an earlier session left."""
        if self._gathering and sum(each.ready for each in self.workers) >= wanted:
            self.gathered()
        elif self._gathering and self._gatherer is None:
            self._gatherer = asyncio.get_running_loop().call_later(self._gather_seconds, self.gathered)
        self.freed(worker)

    def gathered(self) -> None:
        """Wait for no worker any more that may have what an earlier session left."""
        self._gathering = False
        if self._gatherer is not None:
            self._gatherer.cancel()
        self.wake_all()

    def drain(self, node: str) -> None:
        """A node is about to go: it gets nothing more."""
        self._leaving.add(node)
        for worker in self._nodes.get(node, ()):
            worker.draining = True
            self._sort(worker)
            worker.end_if_drained()
        self.wake_all()

    def remove(self, worker: Worker) -> None:
        """Give a worker nothing more, and its groups to others."""
        worker.lost = True
        self.workers.remove(worker)
        self.ending.add(worker)
        if worker.launched.node:
            self._nodes[worker.launched.node].remove(worker)
        self._sort(worker)
        for group in worker.groups:
            if self._groups.get(group) is worker:
                del self._groups[group]
        self.wake_all()

    def let_return(self, node: str, start: asyncio.Task[None]) -> None:
        """Have items whose workspaces are on a node wait for the worker that is started there, though not for good: it may have no room."""
        self._returning[node].add(start)
        start.add_done_callback(partial(self._has_returned, node))
        asyncio.get_running_loop().call_later(self._gather_seconds, self._has_returned, node, start)

    def _has_returned(self, node: str, start: asyncio.Task[None]) -> None:
        self._returning[node].discard(start)
        self.wake_all()

    def staying_on(self, node: str) -> Worker | None:
        """The worker on a node that is most likely to be there for a while."""
        staying = [each for each in self._nodes.get(node, ()) if not (each.unusable or each.is_leaving)]
        return min(staying, key=lambda each: (each.draining, not each.ready), default=None)

    def stop(self) -> None:
        """No item gets a worker any more."""
        self.stopping = True
        self.wake_all()

    def give_up(self, why: str) -> None:
        """No worker can ever be used: have those who wait for one raise UserError."""
        self.unusable = self.unusable or why
        self.wake_all()

    # --- Items get a worker

    async def worker_for(self, claim: Claim) -> Worker | None:
        """A worker with a free slot; None if the item does not wait any more, or the run is stopping. If the item has to be alone, the
        worker executes nothing else, and takes nothing else until ``reserve`` says so. Raises UserError if no worker can ever be used."""
        number = claim.item.number
        self._waiting.add(number)
        try:
            return await (self._reserved_worker(claim) if claim.alone else self._free_worker(claim))
        finally:
            self._waiting.discard(number)

    def assign(self, worker: Worker, claim: Claim) -> tuple[int, asyncio.Future[AttemptResult]]:
        """Have a worker execute an item: the ticket of that, and what comes of it."""
        self._ticket += 1
        ticket = self._ticket
        future: asyncio.Future[AttemptResult] = asyncio.get_running_loop().create_future()
        worker.tickets[ticket] = future
        worker.items[claim.item.number] = ticket
        self._sort(worker)
        if worker.launched.node:
            worker.attempts[ticket] = attempt = _attempt_of(claim)
            self.homes[attempt] = worker.launched.node
        return ticket, future

    def stop_waiting(self, items: set[int]) -> None:
        """These items need no worker any more."""
        if self._waiting & items:
            self._waiting -= items
            self.wake_all()

    def reserve(self, worker: Worker, reserved: bool) -> None:
        """A worker is kept for an item that has to be alone, or no more."""
        worker.reserved = reserved
        self.freed(worker)

    def freed(self, worker: Worker) -> None:
        """A worker may have a free slot more."""
        self._sort(worker)
        self._offer(worker)

    def wake_all(self) -> None:
        """Something else than a slot has changed, so that all who wait look again."""
        queues = [*self._queues.values(), self._alone]
        self._queues.clear()
        for queue in queues:
            queue.wake_all()

    async def _free_worker(self, claim: Claim) -> Worker | None:
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

    async def _reserved_worker(self, claim: Claim) -> Worker | None:
        reserved: Worker | None = None
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
                self.reserve(reserved, False)
        return None

    def _reserve_one(self, claim: Claim) -> Worker | None:
        """Reserve a worker with a free slot for an item, if there is one."""
        _, worker = self._best_worker(claim)
        if worker is None or self._free_slots(worker) == 0:
            return None
        self.reserve(worker, True)
        return worker

    def _best_worker(self, claim: Claim) -> tuple[Hashable, Worker | None]:
        """The one to execute an item, or to wait for, and in which queue: that of its group, or one on the node where its workspace is."""
        if claim.group is not None:
            worker = self._worker_of(claim.group)
            return worker, worker
        home = self.homes.get(_attempt_of(claim)) if claim.recorded else None
        if home is not None and (able := [each for each in self._nodes.get(home, ()) if not each.draining]):
            return home, max(able, key=self._free_slots)
        if home is not None and self._returning.get(home):
            return ("returning to", home), None
        if claim.recorded and self._gathering and home is None:
            return "gathering", None
        return None, self._by_load.least_loaded()

    def _worker_of(self, group: str) -> Worker | None:
        """The worker that executes a group: the same for as long as it lives, and one that is to go until it has ended what it has."""
        worker = self._groups.get(group)
        if worker is None or worker.is_leaving:
            able = (each for each in self.workers if not each.draining)  # also one that is just starting
            worker = min(able, key=lambda each: len(each.groups), default=None)
            if worker is not None:
                self._groups[group] = worker
                worker.groups.add(group)
        return worker

    def _free_slots(self, worker: Worker) -> int:
        return self.concurrency - len(worker.tickets) if worker.takes_items else 0

    def _sort(self, worker: Worker) -> None:
        """What a worker has, or whether it takes more, has changed."""
        if worker.takes_items:
            self._by_load.set(worker, len(worker.tickets))
        else:
            self._by_load.remove(worker)

    def _is_over(self) -> bool:
        if self.unusable is not None:
            raise UserError(self.unusable)
        return self.stopping

    def _offer(self, worker: Worker) -> None:
        """Wake as many of those who wait as a worker has free slots. Waking all for each of thousands of slots would take longer than
        everything else."""
        free = self._free_slots(worker)
        for where in (worker, worker.launched.node, None):
            queue = self._queues.get(where)
            while free > 0 and queue and queue.wake():
                free -= 1
        self._alone.wake_all()


def _attempt_of(claim: Claim) -> str:
    """The name of an attempt: ``3-1``, for item 3, attempt 1."""
    return f"{claim.item.number}-{claim.attempt}"
