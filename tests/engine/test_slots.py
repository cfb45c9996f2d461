"""Free slots of many workers: whoever waits for one gets it, whatever becomes of the others who wait."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import StorageError, UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import ZERO, Reserve
from manyhands.engine.attempt import Claim, Ended, Failed, Stopped
from manyhands.engine.contract import CallReport, Item
from manyhands.engine.executors import wire
from manyhands.engine.executors.workers.executor import WorkerExecutor
from manyhands.engine.executors.workers.launching import Death, FailedStart
from manyhands.engine.executors.workers.slots import ByLoad
from manyhands.engine.journal.records import StepRow
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits

Operations = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 8)))
KILLED = Death("killed")
STEPS = (("", 0, "model", b"", b""),)
"""What is recorded of an item that was begun."""
DONE = Ended(Outcome(ItemState.COMPLETED))


@given(Operations)
def test_the_least_loaded_worker_is_found(operations: list[tuple[int, int | None]]) -> None:
    found, loads = ByLoad[int](), dict[int, int]()
    for worker, items in operations:
        if items is None:
            found.remove(worker)
            loads.pop(worker, None)
        else:
            found.set(worker, items)
            loads[worker] = items
        least = found.least_loaded()
        assert (least is None) if not loads else (least is not None and loads[least] == min(loads.values()))


class Nothing:
    """A journal that records nothing."""

    async def record(self, row: StepRow) -> None:
        return


@dataclass(eq=False)
class Pretended:
    """A worker, of which the test holds the other end."""

    channel: wire.Channel
    other: wire.Channel
    node: str
    address: str = "10.0.0.7"
    name: str = "pretended"
    attempts: frozenset[str] = frozenset()
    may_leave: str = "its folder"
    death: Death = KILLED
    says_ready: bool = True
    executed: dict[int, int] = field(default_factory=dict)
    """The tickets of the items that it executes."""

    over: list[str] = field(default_factory=list)
    """The attempts of which it is to remove what is on its node."""
    clearing: float = 0.0
    """Seconds that it takes to clear away what it left behind."""
    cleared: bool = False
    leaves: bool = True
    """Whether it ends when it is told to."""
    taken: Callable[[], Awaitable[None] | None] = lambda: None
    """Called for a message that is for its launcher."""

    def take(self, message: object) -> Awaitable[None] | None:
        return self.taken()

    def kill(self) -> None:
        self.other.close()

    async def ended(self) -> Death:
        await asyncio.sleep(self.clearing)
        self.cleared = True
        return self.death

    async def listen(self) -> None:
        if self.says_ready:
            self.other.send(wire.Ready())
        while (message := await self.other.receive()) is not None:
            match message:
                case wire.Execute(ticket, claim):
                    self.executed[claim.item.number] = ticket
                case wire.Over(attempt):
                    self.over.append(attempt)
                case wire.Farewell() if self.leaves:
                    for number in range(300):
                        self.other.send(wire.Stays(f"{number}-1", ""))
                    self.kill()

    def end(self, number: int) -> None:
        self.other.send(wire.Done(self.executed.pop(number), DONE, left=True))


class Pretending:
    """Starts pretended workers, two on each node."""

    def __init__(self, *, places: bool) -> None:
        self.places = places
        self.ready = True
        """Whether workers that are started say so."""
        self.room = True
        """Whether any can be started."""
        self.attempts: frozenset[str] = frozenset()
        """What is on the nodes of those that are started."""
        self.drain: Callable[[str], None] = lambda node: None
        self.failures: list[FailedStart] = []
        """Why workers that are started first do not begin."""
        self.starts = 0
        self.workers: list[Pretended] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, drain: Callable[[str], None]) -> None:
        self.drain = drain

    async def start(self, near: str) -> Pretended:
        self.starts += 1
        await until(lambda: self.room)
        if self.failures:
            raise self.failures.pop(0)
        ours, theirs = socket.socketpair()
        channel, other = await wire.Channel.over(ours), await wire.Channel.over(theirs)
        node = f"node-{len(self.workers) // 2}"
        worker = Pretended(channel, other, node, attempts=self.attempts, says_ready=self.ready)
        self.workers.append(worker)
        self._tasks.append(asyncio.create_task(worker.listen()))
        return worker

    async def close(self) -> None:
        for worker in self.workers:
            worker.other.close()
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def executing(workers: int, concurrency: int) -> AsyncIterator[tuple[WorkerExecutor, list[Pretended]]]:
    async with placing(workers, concurrency, places=False) as (executor, launcher, _):
        yield executor, launcher.workers


@asynccontextmanager
async def placing(
    workers: int, concurrency: int = 1, *, places: bool = True, limits: SharedLimits | None = None, **options: Any
) -> AsyncIterator[tuple[WorkerExecutor, Pretending, list[str]]]:
    """An executor, what starts its workers, and what people are told."""
    begin, launcher, told = wire.Begin("", {}, {}, "", 0, None), Pretending(places=places), list[str]()
    options |= {"workers": workers, "concurrency": concurrency, "notice": told.append}
    executor = WorkerExecutor(launcher, begin, Nothing(), limits or SharedLimits(), **options)
    await executor.start()
    try:
        async with asyncio.timeout(20):
            yield executor, launcher, told
    finally:
        await executor.close()


def begun(executor: WorkerExecutor, number: int, **claim: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(executor.execute(Claim(Item(number, str(number), None), 1, **claim)))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def settled() -> None:
    """Wait until what was said has been heard, and what follows from it."""
    await asyncio.sleep(0.03)


async def test_items_are_spread_evenly_and_all_that_wait_have_their_turn() -> None:
    async with executing(4, 5) as (executor, workers):
        tasks = [begun(executor, number) for number in range(100)]
        most, left = 0, 100
        while left:
            while sum(loads := [len(worker.executed) for worker in workers]) != min(20, left):
                await asyncio.sleep(0.001)
            assert left < 20 or loads == [5, 5, 5, 5]
            most = max(most, *loads)
            ended = [(worker, number) for worker in workers for number in list(worker.executed)[:3]]
            for worker, number in ended:
                worker.end(number)
            left -= len(ended)
        assert await asyncio.gather(*tasks) == [DONE] * 100
        assert most == 5


async def test_an_item_that_is_cancelled_just_when_a_slot_is_free_leaves_it_to_the_next() -> None:
    async with executing(1, 1) as (executor, [worker]):
        first, second, third = (begun(executor, number) for number in (1, 2, 3))
        await until(lambda: 1 in worker.executed)
        await settled()
        worker.taken = lambda: executor.cancel([2])
        worker.end(1)
        worker.other.send(wire.Stays("", ""))  # is heard before the item that was woken looks
        await until(lambda: 3 in worker.executed)
        worker.end(3)
        assert [await each for each in (first, second, third)] == [DONE, Stopped(), DONE]


async def test_a_worker_that_died_before_its_turn_makes_no_call_of_unknown_cost() -> None:
    limits = SharedLimits(initial=1, ceiling=1, budget=Budget(max_total_tokens=1000))
    async with placing(2, limits=limits, places=False) as (_, launcher, _):
        await until(lambda: len(launcher.workers) == 2)
        calls, waits = launcher.workers
        calls.other.send(wire.Acquire(1, "model", Reserve(tokens=10)))
        await until(lambda: limits.snapshot()["keys"] and limits.snapshot()["keys"]["model"]["in_flight"] == 1)
        waits.other.send(wire.Acquire(1, "model", Reserve(tokens=10)))
        await until(lambda: limits.snapshot()["keys"]["model"]["waiting"] == 1)
        waits.clearing = 0.1
        waits.kill()
        await settled()
        assert not waits.cleared
        calls.other.send(wire.Release(1, CallReport()))  # so that it would be the other's turn
        await until(lambda: waits.cleared)
        await settled()
        assert limits.budget.assumed == ZERO
        left = limits.snapshot()["keys"]["model"]
        assert (left["in_flight"], left["waiting"]) == (0, 0)


async def test_items_of_a_group_wait_for_its_worker_while_others_have_free_slots() -> None:
    async with executing(2, 1) as (executor, workers):
        tasks = [begun(executor, number, group="shared") for number in (1, 2, 3)]
        await until(lambda: any(worker.executed for worker in workers))
        await settled()
        busy, idle = sorted(workers, key=lambda worker: -len(worker.executed))
        assert (list(busy.executed), list(idle.executed)) == ([1], [])
        other = begun(executor, 4)
        await until(lambda: 4 in idle.executed)
        idle.end(4)
        assert await other == DONE
        await settled()
        assert not idle.executed
        busy.end(1)
        await until(lambda: 2 in busy.executed)
        busy.kill()  # then the group is another's
        await until(lambda: 3 in idle.executed)
        assert isinstance(await tasks[1], Failed)
        idle.end(3)
        assert await tasks[2] == DONE


async def test_an_interrupted_item_waits_for_the_node_with_its_workspace() -> None:
    async with executing(4, 1) as (executor, workers):
        first = begun(executor, 1)
        await until(lambda: any(worker.executed for worker in workers))
        home = next(worker for worker in workers if worker.executed)
        home.end(1)
        await first
        others = [begun(executor, number) for number in (2, 3, 4, 5)]
        await until(lambda: all(worker.executed for worker in workers))
        again = begun(executor, 1, recorded=STEPS)
        waiting = begun(executor, 6)
        await settled()
        far = next(worker for worker in workers if worker.node != home.node)
        far.end(next(iter(far.executed)))
        await until(lambda: 6 in far.executed)
        near = next(worker for worker in workers if worker.node == home.node and worker is not home)
        near.end(next(iter(near.executed)))
        await until(lambda: 1 in near.executed)
        for worker in workers:
            worker.end(next(iter(worker.executed)))
        assert await asyncio.gather(again, waiting, *others) == [DONE] * 6


@pytest.mark.parametrize(("begun", "workers"), [(0, 1), (2, 2), (9, 3)])
async def test_items_that_were_begun_have_workers_on_as_many_nodes(begun: int, workers: int) -> None:
    async with placing(3, 9, items=9, begun=begun) as (_, launcher, _told):
        await until(lambda: len(launcher.workers) == workers)
        await settled()
        assert launcher.starts == workers


async def test_an_item_that_moves_to_another_queue_leaves_its_slot_to_the_next() -> None:
    async with placing(2) as (executor, launcher, _):
        first, second = (begun(executor, number) for number in (1, 2))
        await until(lambda: sum(len(worker.executed) for worker in launcher.workers) == 2)
        mover, other = begun(executor, 3, recorded=STEPS), begun(executor, 4)
        stays, killed = sorted(launcher.workers, key=lambda worker: 2 in worker.executed)
        launcher.ready, launcher.attempts = False, frozenset(["3-1"])
        killed.death = Death("its node is gone", node_lost=True)
        killed.kill()
        assert isinstance(await second, Failed)
        await until(lambda: len(launcher.workers) == 3)
        await settled()
        stays.end(1)  # wakes the third item, which now waits for the node of the new worker
        await until(lambda: 4 in stays.executed)
        stays.end(4)
        assert [await first, await other] == [DONE, DONE]
        launcher.workers[2].other.send(wire.Ready())
        await until(lambda: 3 in launcher.workers[2].executed)
        launcher.workers[2].end(3)
        assert await mover == DONE


async def test_an_item_that_has_to_be_alone_goes_to_the_node_with_its_workspace() -> None:
    async with executing(4, 2) as (executor, workers):
        first = begun(executor, 1)
        await until(lambda: any(worker.executed for worker in workers))
        home = next(worker for worker in workers if worker.executed)
        home.end(1)
        await first
        beside = begun(executor, 2)
        await until(lambda: any(worker.executed for worker in workers))
        next(worker for worker in workers if worker.executed).end(2)
        await beside  # so that the least loaded worker is one of the other node
        again = begun(executor, 1, recorded=STEPS, alone=True)
        await until(lambda: any(worker.executed for worker in workers))
        found = next(worker for worker in workers if worker.executed)
        found.end(1)
        assert (await again, found.node) == (DONE, home.node)


async def test_an_item_that_is_to_be_alone_on_a_node_that_goes_is_executed_on_another_one() -> None:
    async with placing(3, 2, places=False) as (executor, launcher, _):
        workers = launcher.workers
        others = [begun(executor, number) for number in range(6)]
        await until(lambda: sum(len(worker.executed) for worker in workers) == 6)
        alone = begun(executor, 6, alone=True)
        await settled()
        workers[0].end(next(iter(workers[0].executed)))  # then this one is reserved
        await settled()
        launcher.drain(workers[0].node)
        for worker in list(workers):
            for number in list(worker.executed):
                worker.end(number)
        await until(lambda: any(6 in worker.executed for worker in workers))
        found = next(worker for worker in workers if 6 in worker.executed)
        found.end(6)
        assert (await alone, found.node != "node-0") == (DONE, True)
        assert await asyncio.gather(*others) == [DONE] * 6


async def test_what_an_attempt_left_on_a_node_is_removed_by_a_worker_that_stays_there() -> None:
    async with placing(4, places=False) as (executor, launcher, _):
        workers = launcher.workers
        tasks = [begun(executor, number) for number in range(4)]
        await until(lambda: all(worker.executed for worker in workers))
        of = {number: worker for worker in workers for number in worker.executed}
        leaving, staying = workers[:2]
        leaving.leaves = False
        launcher.drain("node-0")
        number, other = (next(iter(worker.executed)) for worker in (leaving, staying))
        leaving.end(number)
        await tasks[number]
        executor.over(number, 1, failed=True)
        await until(lambda: staying.over == [f"{number}-1"])
        leaving.leaves = True
        for number, worker in of.items():
            if worker is not leaving:
                worker.end(number)
        await asyncio.gather(*tasks)
        executor.over(other, 1, failed=True)  # all of its node are gone, or going
        far = workers[2]
        executor.over(next(number for number in of if of[number] is far), 1, failed=True)
        await until(lambda: far.over != [] or workers[3].over != [])
        assert leaving.over == []


async def test_an_item_ends_once_what_was_sent_before_is_taken_and_nobody_else_waits_for_that() -> None:
    async with placing(2) as (executor, launcher, _):
        await until(lambda: len(launcher.workers) == 2)
        tasks = [begun(executor, number) for number in range(2)]
        await until(lambda: all(worker.executed for worker in launcher.workers))
        one, other = launcher.workers
        on_disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one.taken = lambda: on_disk
        (number,), (another,) = one.executed, other.executed
        one.other.send(wire.Content("artifacts/large", b"", first=True, last=True))
        one.end(number)
        other.end(another)
        await tasks[another]
        await settled()
        assert not tasks[number].done()
        on_disk.set_result(None)
        await tasks[number]


@pytest.mark.parametrize("over", [True, False])
async def test_workers_that_do_not_end_are_named_with_what_they_may_leave(over: bool) -> None:
    """Of a run that is over they get time to remove all of it, however long they may take otherwise."""
    async with placing(2, clearing=0.2) as (executor, launcher, told):
        await until(lambda: len(launcher.workers) == 2)
        one, other = launcher.workers
        one.leaves = not over
        task = begun(executor, 1)
        await until(lambda: bool(one.executed or other.executed))
        (one if one.executed else other).end(1)
        await task
        executor.over(1, 1, failed=False)
        await executor.close()
        assert told == (["the worker pretended had not ended after 0.2 s: its folder may be left"] if over else [])


async def test_the_end_of_a_worker_that_was_just_lost_is_waited_for_when_the_run_closes() -> None:
    async with placing(2) as (executor, launcher, _):
        await until(lambda: len(launcher.workers) == 2)
        task = begun(executor, 1)
        await until(lambda: any(worker.executed for worker in launcher.workers))
        lost = next(worker for worker in launcher.workers if worker.executed)
        lost.clearing = 0.1
        lost.kill()
        await settled()
        await executor.close()
        assert lost.cleared
        assert isinstance(await task, Failed)


async def test_all_that_workers_say_before_they_end_is_heard_when_the_run_closes() -> None:
    heard = []
    async with placing(2) as (executor, launcher, _):
        await begun_and_ended(executor, launcher)
        for worker in launcher.workers:
            worker.taken = lambda: heard.append(1)
        await executor.close()
    assert len(heard) == 300 * len(launcher.workers)


async def test_a_worker_that_starts_on_a_node_that_goes_gets_nothing() -> None:
    async with placing(2, places=False) as (executor, launcher, told):
        launcher.drain("node-1")
        launcher.workers[0].kill()
        await until(lambda: len(launcher.workers) == 5)  # two on that node, and one on the next
        tasks = [begun(executor, number) for number in (1, 2)]
        await until(lambda: sum(len(worker.executed) for worker in launcher.workers) == 2)
        executing = [worker for worker in launcher.workers if worker.executed]
        for worker in executing:
            worker.end(next(iter(worker.executed)))
        assert await asyncio.gather(*tasks) == [DONE] * 2
        assert ({worker.node for worker in executing}, told) == ({"node-0", "node-2"}, [])


async def test_an_item_does_not_wait_for_good_for_a_node_that_has_no_room() -> None:
    async with placing(3, gather=0.01) as (executor, launcher, _):
        await until(lambda: len(launcher.workers) == 3)
        only = launcher.workers[2]  # on its node
        tasks = [begun(executor, number) for number in (1, 2, 3)]
        await until(lambda: all(worker.executed for worker in launcher.workers))
        number = next(iter(only.executed))
        launcher.room = False
        only.kill()
        assert isinstance(await tasks.pop(number - 1), Failed)
        for worker in launcher.workers[:2]:
            worker.end(next(iter(worker.executed)))
        assert await asyncio.gather(*tasks) == [DONE] * 2
        again = begun(executor, number, recorded=STEPS)
        await until(lambda: any(worker.executed for worker in launcher.workers[:2]))
        next(worker for worker in launcher.workers if number in worker.executed).end(number)
        assert await again == DONE


async def test_workers_that_die_with_their_node_before_they_are_ready_do_not_end_the_run() -> None:
    async with placing(1) as (executor, launcher, told):
        await until(lambda: len(launcher.workers) == 1)
        first = begun(executor, 1)
        await until(lambda: 1 in launcher.workers[0].executed)
        launcher.ready = False
        launcher.workers[0].end(1)
        assert await first == DONE
        for number in range(5):
            launcher.workers[number].death = Death("its node is gone", node_lost=True)
            launcher.workers[number].kill()
            launcher.ready = number == 4
            await until(lambda number=number: len(launcher.workers) == number + 2)  # type: ignore[misc]
        second = begun(executor, 2)
        await until(lambda: 2 in launcher.workers[5].executed)
        launcher.workers[5].end(2)
        assert (await second, told) == (DONE, [])


async def test_a_node_that_lacks_something_is_left_out_while_others_work() -> None:
    async with placing(2, another_node=0.05) as (executor, launcher, told):
        await until(lambda: len(launcher.workers) == 2)
        one, other = launcher.workers
        tasks = [begun(executor, number) for number in (1, 2)]
        await until(lambda: len(one.executed) == len(other.executed) == 1)
        other.end(next(iter(other.executed)))
        other.other.send(wire.Unusable("No module named 'x'"))
        await settled()
        assert (told, len(launcher.workers)) == (["the node 10.0.0.7: No module named 'x'"], 2)
        one.end(next(iter(one.executed)))
        assert await asyncio.gather(*tasks) == [DONE, DONE]
        one.other.send(wire.Unusable("No module named 'y'"))
        await settled()
        with pytest.raises(UserError, match="No module named 'y'"):
            await begun(executor, 3)
        assert told[1:] == ["no worker is left: for 0.05 s the run waits for one on a node that can be used"]


BAD = FailedStart("the node 10.0.0.8 has Python 3.5", "node-8", unusable=True)


async def test_a_node_that_says_first_that_it_can_not_be_used_leaves_the_run_to_the_others() -> None:
    async with placing(2, retry=0.01) as (executor, launcher, told):
        launcher.room, launcher.failures = False, [BAD]
        await until(lambda: launcher.starts == 2)
        item = begun(executor, 1)
        launcher.room = True
        await until(lambda: len(launcher.workers) == 2)
        await until(lambda: any(worker.executed for worker in launcher.workers))
        next(worker for worker in launcher.workers if worker.executed).end(1)
        assert await item == DONE
        assert told == ["the node 10.0.0.8 has Python 3.5"]


async def test_a_node_that_can_not_be_used_is_asked_again_less_and_less_often() -> None:
    async with placing(2, retry=0.01) as (executor, launcher, _):
        await until(lambda: len(launcher.workers) == 2)
        await begun_and_ended(executor, launcher)
        launcher.failures = [BAD] * 1000
        launcher.workers[0].kill()
        await asyncio.sleep(0.2)
        assert 1000 - len(launcher.failures) <= 6
        launcher.failures.clear()  # it was mended
        await until(lambda: len(launcher.workers) == 3)


async def begun_and_ended(executor: WorkerExecutor, launcher: Pretending) -> None:
    item = begun(executor, 0)
    await until(lambda: any(worker.executed for worker in launcher.workers))
    next(worker for worker in launcher.workers if worker.executed).end(0)
    assert await item == DONE


async def test_one_worker_is_asked_for_once_more_as_there_may_be_another_node() -> None:
    async with placing(1, retry=0.01) as (executor, launcher, told):
        launcher.failures = [BAD]
        await begun_and_ended(executor, launcher)
        assert told == [str(BAD)]


async def test_a_run_of_which_no_node_can_be_used_ends_with_one_line() -> None:
    async with placing(3) as (executor, launcher, told):
        launcher.failures = [BAD, BAD, FailedStart("the node 10.0.0.9 has Python 3.5", "node-9", unusable=True)]
        with pytest.raises(UserError, match=r"^the node 10\.0\.0\.9 has Python 3\.5; nor can 1 other node be used$"):
            await begun(executor, 1)
        assert (told, launcher.starts) == ([], 3)


async def test_a_run_waits_for_a_while_for_another_node_than_one_that_can_not_be_used() -> None:
    async with placing(2, gather=0.05) as (executor, launcher, _):
        launcher.ready = False
        await until(lambda: len(launcher.workers) == 2)
        starting, other = launcher.workers
        launcher.room = False
        other.other.send(wire.Unusable("No module named 'x'"))
        await asyncio.sleep(0.1)
        item = begun(executor, 1)
        await settled()
        assert not item.done()  # the other one is just getting ready
        starting.death = Death("its node is gone", node_lost=True)
        starting.kill()  # and is asked for again, but there is no room
        launcher.failures = [BAD]
        await until(lambda: launcher.starts == 3)
        launcher.room = True
        with pytest.raises(UserError, match=r"10\.0\.0\."):
            await item


async def test_workers_that_die_on_one_node_do_not_cost_the_others_any() -> None:
    async with placing(2, retry=0.01) as (executor, launcher, told):
        await until(lambda: len(launcher.workers) == 2)
        await begun_and_ended(executor, launcher)
        launcher.failures = [FailedStart("workers on 10.0.0.8 can't reach this process", "node-8") for _ in range(4)]
        launcher.workers[0].kill()
        await until(lambda: len(launcher.workers) == 3)
        assert told == ["workers on 10.0.0.8 can't reach this process"]


async def test_workers_that_die_on_the_only_node_end_the_run() -> None:
    async with placing(2, retry=0.01) as (executor, launcher, _):
        launcher.failures = [FailedStart("workers on 10.0.0.8 can't reach this process", "node-8") for _ in range(99)]
        with pytest.raises(UserError, match=r"^workers on 10\.0\.0\.8 can't reach this process$"):
            await begun(executor, 1)
        assert launcher.starts < 9


async def test_a_disk_that_is_full_here_is_said_and_costs_no_attempts() -> None:
    async with placing(1) as (executor, launcher, _):
        await until(lambda: len(launcher.workers) == 1)

        def full() -> None:
            raise StorageError("artifacts/a: can't be written (No space left on device)")

        first = begun(executor, 1)
        await until(lambda: 1 in launcher.workers[0].executed)
        launcher.workers[0].taken = full
        launcher.workers[0].other.send(wire.Stays("", ""))
        assert isinstance(await first, Failed)
        with pytest.raises(UserError, match="No space left on device"):
            await begun(executor, 1)
