"""Items that are cancelled while they are in flight, wherever they are just then: they end as that, also if the process dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.attempt import AttemptSettings, Claim, Ended, Stopped
from manyhands.engine.contract import Context, Effect, Item
from manyhands.engine.executors import wire
from manyhands.engine.executors.local import LocalExecutor
from manyhands.engine.executors.processes import ProcessExecutor
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.records import StepRow, pack
from manyhands.engine.limits.shared import SharedLimits
from manyhands.runs.registry import workload_target
from manyhands.runs.steering.client import give_order
from tests.support.engine_runs import ProgramWorkload, start_steps_run
from tests.support.steered_runs import EXECUTORS, effects, program_run, slow_disk, steps, total

ONE = {"executor": "local", "workers": 1, "concurrency": 1}


class Nothing:
    """A journal that records nothing."""

    async def record(self, row: StepRow) -> None:
        return


@asynccontextmanager
async def worker(
    folder: Path, spec: dict[str, Any], one_item_a_process: bool = False
) -> AsyncIterator[ProcessExecutor]:
    """One worker process, for one item."""
    begin = wire.Begin(workload_target("steps"), spec, {}, str(folder), 0, item_timeout=None)
    executor = ProcessExecutor(
        begin,
        "test",
        Nothing(),
        SharedLimits(),
        workers=1,
        concurrency=1,
        one_item_a_process=one_item_a_process,
    )
    try:
        await executor.start()
        yield executor
    finally:
        await executor.close()


async def until_begun(log: Path, steps: int) -> None:
    async with asyncio.timeout(20):
        while not log.exists() or len(log.read_text().split()) < steps:
            await asyncio.sleep(0.02)


def claim(number: int = 1, attempt: int = 1, recorded: Any = ()) -> Claim:
    return Claim(Item(number, f"item-{number}", {"position": number}), attempt, recorded)


@pytest.mark.parametrize("execution", EXECUTORS, ids=lambda each: each["executor"])
async def test_what_is_being_cancelled_is_cancelled_when_the_run_is_stopped_at_once(
    tmp_path: Path, execution: dict[str, Any]
) -> None:
    site = steps(tmp_path / "run", execution, items=2, steps=1, delay=60.0)
    await site.until(lambda counts: counts["running"] == 2)
    answer = await site.order("cancel", numbers=[2], firm=False)
    assert (answer["items"], answer["in_flight"]) == (1, 1)
    site.controls.stop()
    site.controls.stop()
    result = await site.ended()
    assert (result.ledger["cancelled"], result.ledger["pending"]) == (1, 1)
    result = await steps(tmp_path / "run", execution, items=2, steps=1).ended()
    assert (total(result), result.ledger["cancelled"], result.ledger["completed"]) == (2, 1, 1)


@pytest.mark.parametrize("execution", EXECUTORS, ids=lambda each: each["executor"])
async def test_what_is_being_cancelled_is_cancelled_when_the_run_is_killed(
    tmp_path: Path, execution: dict[str, Any]
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    spec = {"items": 2, "steps": 1, "delay": 60.0, "log": str(log), "execution": execution}
    child = start_steps_run(folder, spec)
    await until_begun(log, 2)
    answer, by_owner = await give_order(folder, "cancel", numbers=[1], firm=False)
    assert (answer["items"], answer["in_flight"], by_owner) == (1, 1, True)
    child.kill()
    child.communicate(timeout=20)
    log.unlink()
    child = start_steps_run(folder, {**spec, "delay": 0.0})
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 1, errors
    ledger = json.loads(output)["ledger"]
    assert (ledger["cancelled"], ledger["completed"], effects(folder)) == (1, 1, ["item-1/0"])
    with closing(JournalReader(folder)) as reader:
        row = reader.item("1")
        assert row is not None
        assert (row.state, row.cause) == (ItemState.CANCELLED, Cause.CANCELLED)
        assert row.message is not None
        assert row.message.startswith("cancelled by ")
        assert row.finished_at is not None


async def test_a_step_that_ends_before_its_time_completes_the_item_all_the_same(tmp_path: Path) -> None:
    site = steps(tmp_path / "run", ONE, items=2, steps=1, delay=0.5)
    await site.until(lambda counts: counts["running"] == 1)
    answer = await site.order("cancel", numbers=[1, 2], firm=False)
    assert (answer["items"], answer["in_flight"]) == (2, 1)
    result = await site.ended()
    assert (total(result), result.ledger["completed"], result.ledger["cancelled"]) == (2, 1, 1)


async def test_an_item_whose_start_is_not_on_disk_yet_begins_no_step(tmp_path: Path) -> None:
    done: list[str] = []

    async def program(context: Context) -> Outcome:
        async def effect() -> Effect:
            done.append(context.item.key)
            return Effect(1)

        if context.attempt == 1:
            raise ItemError(Cause.WORKER_ERROR, "once", retry_after=0.0)
        await context.step("call", {}, effect)
        return Outcome(ItemState.COMPLETED)

    site = program_run(tmp_path / "run", ProgramWorkload(program, claim_first=True))
    await site.until(lambda counts: counts["pending"] == 1 and not site.in_flight)  # it waits for a second
    with slow_disk(site.folder):
        await site.until_in_flight(1)
        order = asyncio.create_task(site.order("cancel", numbers=[1], firm=True))
        await asyncio.sleep(0.1)
    assert (await order)["in_flight"] == 1
    result = await site.ended()
    assert (done, result.ledger["cancelled"]) == ([], 1)


async def test_a_failed_item_is_cancelled_though_it_is_just_being_put_back(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def program(context: Context) -> Outcome:
        await gate.wait()
        raise ItemError(Cause.MODEL_ERROR, "later", retry_after=60.0)

    site = program_run(tmp_path / "run", ProgramWorkload(program))
    await site.until(lambda counts: counts["running"] == 1)
    with slow_disk(site.folder):
        gate.set()
        await asyncio.sleep(0.1)
        order = asyncio.create_task(site.order("cancel", numbers=[1], firm=False))
        await asyncio.sleep(0.1)
    assert (await order)["items"] == 1
    result = await site.ended(10)
    assert (result.ledger["cancelled"], result.ledger["by_cause"]) == (1, {"cancelled": {"cancelled": 1}})


async def test_an_item_that_has_just_ended_is_not_cancelled_though_that_is_not_on_disk(tmp_path: Path) -> None:
    gates = {"first": asyncio.Event(), "last": asyncio.Event()}

    async def program(context: Context) -> Outcome:
        if (gate := gates.get(context.item.key)) is not None:
            await gate.wait()
        return Outcome(ItemState.COMPLETED)

    site = program_run(tmp_path / "run", ProgramWorkload(program, ("last", "first", "second"), concurrency=2))
    await site.until(lambda counts: counts["running"] == 2)
    with slow_disk(site.folder):
        gates["first"].set()
        await asyncio.sleep(0.1)  # the second item begins and ends, too
        order = asyncio.create_task(site.order("cancel", numbers=[3], firm=False))
        await asyncio.sleep(0.1)
    assert (await order)["items"] == 0
    gates["last"].set()
    result = await site.ended(10)
    assert (result.ledger["completed"], result.ledger["cancelled"]) == (3, 0)


async def test_a_cancellation_that_comes_too_late_for_an_item_does_not_stop_its_next_execution(tmp_path: Path) -> None:
    """It crosses the item's end on the way between the processes."""
    request = {"number": 0, "tag": "", "total": 0, "filler": "item-1"}
    recorded = (("", 0, "count", digest("count", request), pack(0)),)
    async with worker(tmp_path, {"steps": 1}) as executor:
        assert isinstance(await executor.execute(claim(recorded=recorded)), Ended)
        executing = asyncio.create_task(executor.execute(claim(recorded=recorded)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is sent
        time.sleep(0.5)  # noqa: ASYNC251 - it ends meanwhile, which is not known here yet
        executor.cancel([1])
        assert isinstance(await executing, Ended)
        assert isinstance(await executor.execute(claim(attempt=2)), Ended)


@pytest.mark.parametrize("alone", [False, True])
async def test_a_cancelled_item_waits_for_no_worker(tmp_path: Path, alone: bool) -> None:
    log = tmp_path / "log"
    async with worker(tmp_path, {"steps": 1, "delay": 60.0, "log": str(log)}) as executor:
        first = asyncio.create_task(executor.execute(claim(1)))
        await until_begun(log, 1)
        waiting = claim(2)
        waiting = Claim(waiting.item, waiting.attempt, alone=alone)
        second = asyncio.create_task(executor.execute(waiting))
        await asyncio.sleep(0.1)
        executor.cancel([2])
        async with asyncio.timeout(5):
            assert isinstance(await second, Stopped)
        executor.abandon(1)
        assert isinstance(await first, Stopped)
        third = asyncio.create_task(executor.execute(claim(3)))
        await until_begun(log, 2)
        executor.abandon(3)
        assert isinstance(await third, Stopped)  # it was kept from no worker


async def test_where_no_further_worker_can_be_started_those_that_there_are_go_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with worker(tmp_path, {"steps": 1, "log": str(log), "delay": 0.5}, one_item_a_process=True) as executor:
        assert isinstance(await executor.execute(claim(1)), Ended)
        bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, bounds[1]))
            executor.resize(8)
            results = await asyncio.gather(*(executor.execute(claim(number)) for number in (2, 3)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, bounds)
        assert [type(result) for result in results] == [Ended, Ended]
        executor.resize(2)
        await asyncio.gather(*(executor.execute(claim(number)) for number in (4, 5)))


async def test_a_workload_that_will_not_be_stopped_takes_nothing_else_along(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if context.item.number == 1:
                return Outcome(ItemState.COMPLETED)
            raise
        return Outcome(ItemState.COMPLETED)

    settings = AttemptSettings(Nothing(), SharedLimits(), SystemClock(), 0, tmp_path)
    executor = LocalExecutor(ProgramWorkload(program), settings, None)

    async def slot() -> list[object]:
        return [await executor.execute(claim(number)) for number in (1, 2, 3)]

    slots = asyncio.create_task(slot())
    for number in (1, 2, 3):
        await asyncio.sleep(0.1)
        executor.abandon(number)
    async with asyncio.timeout(5):
        results = await slots
    assert [type(each) for each in results] == [Ended, Stopped, Stopped]
