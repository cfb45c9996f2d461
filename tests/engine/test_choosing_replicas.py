"""Which of several replicas gets a call, and which of those that wait get one, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from typing import Any

from manyhands.core.usage import Reserve
from manyhands.engine.contract import GIVEN_BACK, CallReport, OneOf
from manyhands.engine.limits.shared import SharedLimits
from tests.support.clocks import ManualClock, settle

A, B, GONE = "http://a/v1#0", "http://b/v1#0", "http://gone/v1#0"
BOTH = (A, B)
DEAD = CallReport(failed=True, unhealthy=True, said="can't connect")
LIMITED = CallReport(failed=True, rate_limited=True, retry_after=3600.0, said="slow down")


class CountingClock(ManualClock):
    """Counts how often it is looked at."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.time


async def release_one(limits: SharedLimits, key: str, report: CallReport) -> None:
    permit, _ = await limits.acquire_one_of(OneOf((key,)), Reserve())
    limits.release(permit, report)


def out(limits: SharedLimits, key: str) -> bool:
    found: dict[str, Any] = next(each for each in limits.replicas() if each["replica"] == key.partition("#")[0])
    return found["out_since"] is not None


async def test_a_conversation_whose_replica_is_held_tries_one_that_is_due_again() -> None:
    clock = ManualClock()
    limits = SharedLimits(clock)
    await release_one(limits, B, DEAD)
    await release_one(limits, A, LIMITED)
    waiting = asyncio.create_task(limits.acquire_one_of(OneOf(BOTH, last=A), Reserve()))
    await clock.advance(0.5)
    assert not waiting.done()
    await clock.advance(1.0)
    assert waiting.done(), "it would wait for its own for half an hour"
    permit, key = waiting.result()
    assert key == B
    limits.release(permit, CallReport())
    assert not out(limits, B)


async def test_a_permit_that_is_given_back_says_nothing_about_a_replica() -> None:
    clock, notices = ManualClock(), list[str]()
    limits = SharedLimits(clock, notice=notices.append)
    await release_one(limits, A, CallReport())
    seconds = limits.replicas()[0]["seconds"]
    await release_one(limits, B, DEAD)
    await clock.advance(1.0)
    permit, key = await limits.acquire_one_of(OneOf(BOTH), Reserve(model="m"))
    assert key == B
    limits.release(permit, GIVEN_BACK)
    await release_one(limits, A, GIVEN_BACK)
    assert out(limits, B)
    assert [(each["answered"], each["seconds"]) for each in limits.replicas()] == [(1, seconds), (0, None)]
    permit, key = await limits.acquire_one_of(OneOf(BOTH), Reserve(model="m"))
    assert key == B, "the next one tries it"
    limits.release(permit, CallReport(failed=True, said="HTTP 400: no such thing"))
    assert not out(limits, B), "it answers, if only with a refusal"
    assert len(notices) == 1 + 1


async def looks_of_a_release(clock: CountingClock, limits: SharedLimits, permit: int) -> int:
    clock.looks = 0
    limits.release(permit, CallReport())
    return clock.looks


async def test_a_release_does_not_ask_for_each_call_that_waits() -> None:
    clock = CountingClock()
    limits = SharedLimits(clock, initial=8, ceiling=8)
    await release_one(limits, GONE, CallReport())
    keys = (A, B)
    held = {key: [(await limits.acquire_one_of(OneOf((key,)), Reserve()))[0] for _ in range(8)] for key in keys}
    waiting = [asyncio.create_task(limits.acquire_one_of(OneOf(keys, last=A), Reserve())) for _ in range(500)]
    waiting += [asyncio.create_task(limits.acquire_one_of(OneOf(keys, (B,), A), Reserve())) for _ in range(500)]
    await settle()
    at_b = await looks_of_a_release(clock, limits, held[B].pop())
    assert at_b < 100
    await settle()
    assert not any(task.done() for task in waiting), "one that has a replica leaves it only for one with more to spare"
    at_a = await looks_of_a_release(clock, limits, held[A].pop())
    assert at_a < 100
    await settle()
    assert [task.done() for task in waiting[:2]] == [True, False]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_calls_that_want_different_things_are_served_in_their_order() -> None:
    clock = ManualClock()
    limits = SharedLimits(clock, initial=1, ceiling=1)
    held = [await limits.acquire_one_of(OneOf(BOTH), Reserve()) for _ in range(2)]
    order: list[int] = []

    async def call(number: int, wanted: OneOf) -> None:
        permit, _ = await limits.acquire_one_of(wanted, Reserve())
        order.append(number)
        limits.release(permit, CallReport())

    wanted = [OneOf(BOTH), OneOf(BOTH, last=A), OneOf(BOTH), OneOf(BOTH, (B,)), OneOf(BOTH, last=A), OneOf(BOTH)]
    calls = [asyncio.create_task(call(number, each)) for number, each in enumerate(wanted)]
    await settle()
    given_up = asyncio.create_task(limits.acquire_one_of(OneOf(BOTH), Reserve()))
    await settle()
    given_up.cancel()
    await settle()
    for permit, key in held:
        if key == A:
            limits.release(permit, CallReport())
    await settle()
    assert order == [0, 1, 2, 3, 4, 5]
    await asyncio.gather(*calls)
    assert limits.snapshot()["keys"][A]["in_flight"] == 0
