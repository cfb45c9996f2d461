"""Waits are told once they are long: why, until when, and not again and again."""

from __future__ import annotations

import asyncio
from datetime import datetime

from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import CallReport
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits
from manyhands.engine.limits.waits import LINE_SECONDS, Wait, WaitLines, long_waits
from tests.support.clocks import ManualClock


def told(limits: SharedLimits, clock: ManualClock) -> list[str]:
    return [wait.text(clock.now()) for wait in long_waits(limits.waits(), clock.now())]


async def test_a_rate_limit_says_until_when_and_how_many_wait() -> None:
    clock = ManualClock()
    limits = SharedLimits(clock)
    permit = await limits.acquire("host#1", Reserve())
    said = "https://host: HTTP 429: Rate limit reached"
    limits.release(permit, CallReport(failed=True, rate_limited=True, retry_after=25.0, said=said))
    assert told(limits, clock) == []  # nobody waits for it
    waiting = [asyncio.ensure_future(limits.acquire("host#1", Reserve())) for _ in range(12)]
    await asyncio.sleep(0)
    until = datetime.fromtimestamp(clock.time + 25).strftime("%H:%M:%S")
    assert told(limits, clock) == [f"waiting until {until} (25 s): {said}; 12 calls wait"]
    clock.time += 10
    assert told(limits, clock) == [f"waiting until {until} (15 s): {said}; 12 calls wait"]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert told(limits, clock) == []


async def test_short_pauses_are_told_once_the_trouble_has_lasted() -> None:
    clock = ManualClock()
    limits = SharedLimits(clock)

    async def fails(again_in: float) -> None:
        permit = await limits.acquire("host#1", Reserve())
        limits.release(permit, CallReport(failed=True, said="host: HTTP 500: broken", again_in=again_in))

    await fails(2.0)
    assert told(limits, clock) == []
    clock.time += 4.5
    assert told(limits, clock) == []  # the call is in flight again
    await fails(3.0)
    assert [line.partition("): ")[2] for line in told(limits, clock)] == ["host: HTTP 500: broken; 1 call waits"]
    limits.release(await limits.acquire("host#1", Reserve()), CallReport(Usage()))
    await fails(3.0)
    assert told(limits, clock) == []  # an answer in between: it begins anew


async def test_a_server_that_says_that_its_allowance_is_used_up() -> None:
    clock = ManualClock()
    limits = SharedLimits(clock)
    permit = await limits.acquire("https://host#1", Reserve())
    limits.release(permit, CallReport(remaining=0, reset_after=60.0))
    waiting = asyncio.ensure_future(limits.acquire("https://host#1", Reserve()))
    await asyncio.sleep(0)
    (line,) = told(limits, clock)
    assert "(60 s): https://host: what it allows in a while is used up" in line
    waiting.cancel()


async def test_calls_that_the_budget_holds_back() -> None:
    clock = ManualClock()
    limits = SharedLimits(clock, budget=Budget(max_total_tokens=100, clock=clock))
    await limits.acquire("host", Reserve(80))
    waiting = asyncio.ensure_future(limits.acquire("host", Reserve(50)))
    await asyncio.sleep(0)
    assert told(limits, clock) == []
    clock.time += 6
    (line,) = told(limits, clock)
    assert line == (
        "waiting: the budget: calls in flight may use up what is left of it (0 tokens used, 80 reserved, of 100); 1 call waits"
    )
    waiting.cancel()


def test_one_line_for_each_cause_and_change() -> None:
    lines, began = WaitLines(), 1_700_000_000.0

    def news(at: float, until: float, why: str = "HTTP 429: slow down (request 1234)") -> int:
        return len(lines.news([Wait(why, began, began + until, 3)], began + at))

    assert news(0, 30) == 1
    assert [news(at, 30, f"HTTP 429: slow down (request {at})") for at in range(1, 30)] == [0] * 29
    assert news(1, 40, "HTTP 500") == 1
    assert news(2, 60) == 0  # too soon after the last of this cause
    assert news(LINE_SECONDS, 60) == 1
    assert sum(news(at / 10, at / 10 + 2) for at in range(200, 1200)) < 100 / LINE_SECONDS + 2


def test_an_end_that_is_far_away_has_its_day() -> None:
    wait = Wait("why", 0.0, 200_000.0, 1, "item")
    assert wait.text() == f"waiting until {datetime.fromtimestamp(200_000):%Y-%m-%d %H:%M:%S}: why; 1 item waits"
