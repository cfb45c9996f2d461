"""Workers are started, and others in place of those that are lost; and what follows if that can't be done.

On this machine a worker starts at once or never. On a cluster it is somebody else who decides when and where: a node that can't be used is
no reason to end the run while there may be another one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from manyhands.core.errors import StorageError, UserError
from manyhands.core.redaction import describe
from manyhands.core.text import counted
from manyhands.engine.executors.workers.assignment import Assignment, Worker
from manyhands.engine.executors.workers.launching import Death, FailedStart, Launched, Launcher

HOPELESS_SECONDS = 60.0
"""Seconds after which a run ends of which every worker was lost before it began."""
ANOTHER_NODE_SECONDS = 300.0
"""Seconds for which a run that had workers waits for one on another node when those that are left can't be used: machines that are made
for a cluster take minutes."""
RETRY_SECONDS = 1.0
"""Seconds after which a worker that did not start on another machine is asked for again. The time doubles with each further one that its
node failed."""
MAX_RETRY_SECONDS = 60.0
FAILED_STARTS = 3
"""Workers in a row that died on a machine before they were ready, after which it can't be used."""
MIN_FAILED_STARTS = 2
"""Workers that are asked for at least before a run ends because no node can be used: the second one is another node's, if there is any."""


class Starting:
    """Sees to it that there are as many workers as are wanted."""

    def __init__(
        self,
        launcher: Launcher,
        assignment: Assignment,
        begin: Callable[[Launched], None],
        *,
        wanted: int,
        log: str,
        patience: float,
        another_node: float,
        retry: float,
        notice: Callable[[str], None],
    ) -> None:
        """``assignment``: the workers that there are, which is told if there will be none. ``begin`` is called with each that was started.
        ``wanted``: how many there are to be. ``log``: the file with what they print. ``patience``: seconds for which a run waits for its
        first worker once a node can't be used; ``another_node``: the same of a run that had workers. ``retry``: seconds after which one
        that did not start on a node is asked for again."""
        self.wanted = wanted
        self._launcher = launcher
        self._assignment = assignment
        self._begin = begin
        self._log = log
        self._patience = patience
        self._another_node_seconds = another_node
        self._retry_seconds = retry
        self._notice = notice
        self._told: set[str] = set()
        """What people were told, and of which nodes they were."""
        self._starts: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._hopes: set[asyncio.Task[None]] = set()
        """What asks for workers of which none has had a node yet that can't be used."""
        self._failures = Counter[str]()
        """By nodes: the workers that did not get ready there, in a row."""
        self._unusable_nodes: dict[str, str] = {}
        """Why the nodes that can't be used can't be."""
        self._had_workers = False
        self._despair: asyncio.TimerHandle | None = None
        self._lost_since: float | None = None
        """Since when every worker that Ray placed was lost before it began."""
        self._closing = False

    async def start(self) -> None:
        """Start the first workers; on a cluster, ask for them. Raises UserError."""
        for _ in range(self.wanted):
            if self._launcher.places:
                self._ask()
            elif (problem := await self._start_now()) is not None:
                raise UserError(problem)

    def grow(self, wanted: int) -> None:
        """Further workers are wanted: start as many as there is room for."""
        more, self.wanted = wanted - self.wanted, wanted
        if self._launcher.places:
            for _ in range(more):
                self._ask()
        else:
            self._background(self._start_more(more))

    def is_ready(self, worker: Worker) -> None:
        """A worker has begun, so that its node can be used."""
        self._lost_since, self._had_workers = None, True
        del self._failures[worker.launched.node]
        self._unusable_nodes.pop(worker.launched.node, None)
        self._tell_unusable_nodes()
        self._hope()

    async def replace(self, worker: Worker, death: Death) -> None:
        """A worker has ended: start another one, on the same node if items may wait for it there."""
        failure = self._failure(worker, death)
        delay = 0.0 if failure is None else self._failed(failure)
        if self._launcher.places:
            hope = failure is None or failure.node not in self._unusable_nodes
            near = worker.launched.node if hope and not (death.node_lost or worker.draining) else ""
            start = self._ask(near, delay, hope=hope)
            if near:
                self._assignment.let_return(near, start)
        elif not self._is_over():
            problem = await self._start_now()
            if not self._assignment.workers and problem is not None:
                self._assignment.give_up(problem)
        self._assignment.wake_all()

    async def close(self) -> None:
        """Start no further workers. Those that are just starting are there then; on a cluster, where they may never come, they are given
        up."""
        self._closing = True
        self._hope()
        for task in (*self._tasks, *(self._starts if self._launcher.places else ())):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._starts, return_exceptions=True)

    # --- One start

    async def _start_more(self, more: int) -> None:
        for _ in range(more):
            if self._is_over() or await self._start_now() is not None:
                return

    async def _start_now(self) -> str | None:
        """Start a worker at once, or say why that can't be done."""
        try:
            await self._started()
        except OSError as error:
            return _unable(error)
        except UserError as error:
            return str(error)
        return None

    def _ask(self, near: str = "", delay: float = 0.0, *, hope: bool = True) -> asyncio.Task[None]:
        """Ask for a worker where somebody else decides when and where it starts. ``near``: the node that lost one, whose items wait for
        this one. ``delay``: in so many seconds. ``hope``: not in place of one whose node can't be used."""
        task = self._background(self._start_patiently(near, delay))
        if hope:
            self._hopes.add(task)
            task.add_done_callback(self._hopes.discard)
        return task

    async def _start_patiently(self, near: str, delay: float) -> None:
        """Start a worker. What goes wrong may go well the next time, or on another node."""
        while True:
            await asyncio.sleep(delay)
            if self._is_over():
                return
            delay = self._retry_seconds
            try:
                await self._started(near)
                return
            except FailedStart as error:
                delay = self._failed(error)
            except ConnectionError as error:  # it was lost before it began, for which no worker is to blame
                if self._is_hopeless():
                    self._fail(str(error))
            except OSError as error:
                delay = self._failed(FailedStart(_unable(error)))
            except (StorageError, UserError) as error:
                self._fail(str(error))
                return
            near = ""

    async def _started(self, near: str = "") -> None:
        """Start a worker; one that is begun is started to its end, so that it can be ended properly."""
        task = asyncio.ensure_future(self._start(near))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)
        try:
            await asyncio.shield(task)
        except (FailedStart, OSError, StorageError, UserError):
            raise
        except Exception as error:
            raise UserError(f"worker processes can't be started: {describe(error)}") from error

    async def _start(self, near: str) -> None:
        self._begin(await self._launcher.start(near))

    def _is_over(self) -> bool:
        return self._closing or self._assignment.stopping or self._assignment.unusable is not None

    def _background(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- What goes wrong

    def _failure(self, worker: Worker, death: Death) -> FailedStart | None:
        """Of a worker that ended: why it could not begin, if its machine is to blame."""
        node, address = worker.launched.node, worker.launched.address
        if worker.unusable:
            why = f"the node {address}: {worker.unusable}" if address else worker.unusable
            return FailedStart(why, node, unusable=True)
        if worker.ready or worker.draining or death.node_lost:
            return None
        which = f"workers on {address}" if address else "worker processes"
        return FailedStart(f"{which} die before they are ready ({death.how}); see {self._log}", node)

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
        """A node can't be used. The run goes on with the others, and waits for a while for a worker on one of them."""
        if not self._launcher.places:
            self._assignment.give_up(why)
        elif self._had_workers:
            self._tell_unusable_nodes()
            if not self._has_workers() and self._despair is None:
                seconds = self._another_node_seconds
                self._notice(f"no worker is left: for {seconds:g} s the run waits for one on a node that can be used")
                self._despair_in(seconds, why)
        elif self._failures.total() >= MIN_FAILED_STARTS and not self._may_start():
            self._despair_of(why)
        else:
            self._despair_in(self._patience, why)

    def _despair_in(self, seconds: float, why: str) -> None:
        if self._despair is None:
            self._despair = asyncio.get_running_loop().call_later(seconds, self._despair_late, why)

    def _despair_late(self, why: str) -> None:
        self._despair = None
        if all(worker.unusable for worker in self._assignment.workers):  # else one is just getting ready
            self._despair_of(why)

    def _despair_of(self, why: str) -> None:
        others = len(self._unusable_nodes) - 1
        self._assignment.give_up(f"{why}; nor can {counted(others, 'other node')} be used" if others > 0 else why)

    def _hope(self) -> None:
        if self._despair is not None:
            self._despair.cancel()
            self._despair = None

    def _fail(self, why: str) -> None:
        """No further worker can be had. On a cluster the run goes on with those that are there."""
        if not self._has_workers():
            self._assignment.give_up(why)
        elif why not in self._told:
            self._told.add(why)
            self._notice(why)

    def _tell_unusable_nodes(self) -> None:
        for node, why in self._unusable_nodes.items():
            if node not in self._told:
                self._told.add(node)
                self._notice(why)

    def _has_workers(self) -> bool:
        return any(worker.ready and not worker.unusable for worker in self._assignment.workers)

    def _may_start(self) -> bool:
        """Whether a worker is asked for, or getting ready, of which no node has said that it can't be used."""
        workers = (*self._assignment.workers, *self._assignment.ending)
        return bool(self._hopes) or any(not worker.unusable for worker in workers)

    def _is_hopeless(self) -> bool:
        """Whether workers have been lost for long, with none that works."""
        now = asyncio.get_running_loop().time()
        if self._assignment.workers or self._lost_since is None:
            self._lost_since = now
        return now - self._lost_since > HOPELESS_SECONDS


def _unable(error: OSError) -> str:
    return f"worker processes can't be started: {error.strerror or error}"
