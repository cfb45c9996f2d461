"""Limits of a workload's own: as many permits as it says, in the order in which they were wanted."""

from __future__ import annotations

import asyncio

import pytest

from manyhands.engine.contract import GIVEN_BACK, NOTHING, OwnLimit
from manyhands.engine.executors import wire
from manyhands.engine.limits.shared import SharedLimits

ONE = OwnLimit("one")


async def waiting(limits: SharedLimits, count: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(limits.acquire(ONE, NOTHING)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_as_many_permits_as_the_workload_says_in_the_order_of_asking() -> None:
    limits = SharedLimits(own_limit={"one": 2}.get)
    tasks = await waiting(limits, 4)
    assert [task.done() for task in tasks] == [True, True, False, False]
    assert limits.acquire_now(ONE, NOTHING) is None
    assert limits.acquire_now(OwnLimit("other"), NOTHING) is not None
    limits.release(tasks[0].result(), GIVEN_BACK)
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True, True, True, False]
    with pytest.raises(ValueError, match="is not held"):
        limits.release(tasks[0].result(), GIVEN_BACK)


async def test_a_wait_that_is_given_up_takes_nothing_whenever_that_is() -> None:
    limits = SharedLimits(own_limit={"one": 1}.get)
    first, second, third = await waiting(limits, 3)
    second.cancel()
    await asyncio.sleep(0)
    limits.release(first.result(), GIVEN_BACK)
    third.cancel()  # its turn has come in this very moment
    await asyncio.gather(second, third, return_exceptions=True)
    assert limits.acquire_now(ONE, NOTHING) is not None


async def test_another_maximum_lets_those_in_who_wait_also_while_the_run_stops() -> None:
    maximum: dict[str, int] = {"one": 1}
    limits = SharedLimits(own_limit=maximum.get)
    tasks = await waiting(limits, 3)
    limits.stop()
    del maximum["one"]
    limits.own.admit()
    assert len(await asyncio.wait_for(asyncio.gather(*tasks), 5)) == 3


def test_an_own_limit_is_the_same_at_the_other_end() -> None:
    maker, values = wire.Acquire(3, ONE, NOTHING).plain()
    assert maker(*values) == wire.Acquire(3, ONE, NOTHING)
