"""The adaptive limiter, the budget, and the two together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import CallReport
from manyhands.engine.limits.adaptive import AdaptiveLimiter
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits
from tests.support.clocks import ManualClock, settle

OK = CallReport()
LIMITED = CallReport(rate_limited=True)
NOTHING = Reserve()


async def fill(limiter: AdaptiveLimiter) -> list[int]:
    """Take every free place."""
    return [await limiter.acquire() for _ in range(limiter.limit - limiter.in_flight)]


@asynccontextmanager
async def started(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    tasks = [asyncio.create_task(one) for one in work]
    await settle()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_slow_start_doubles_each_round_trip_while_saturated() -> None:
    limiter = AdaptiveLimiter("k", ManualClock(), initial=4)
    limits = []
    for _ in range(3):
        held = await fill(limiter)
        async with started(*(limiter.acquire() for _ in range(100))) as waiters:
            for episode in held:
                limiter.release(episode, OK)
            await settle()
            limits.append(limiter.limit)
            for waiter in waiters:
                if waiter.done():
                    limiter.release(waiter.result(), CallReport(failed=True))
        assert limiter.waiting == 0
        while limiter.in_flight:
            limiter.release(limiter.episodes, CallReport(failed=True))
    assert limits == [8, 16, 32]


async def test_it_does_not_grow_when_the_places_are_not_used() -> None:
    limiter = AdaptiveLimiter("k", ManualClock(), initial=10)
    for _ in range(100):
        limiter.release(await limiter.acquire(), OK)
    assert limiter.limit == 10


async def test_failures_do_not_grow_it() -> None:
    limiter = AdaptiveLimiter("k", ManualClock(), initial=2)
    for _ in range(10):
        for episode in await fill(limiter):
            limiter.release(episode, CallReport(failed=True))
    assert limiter.limit == 2


async def test_one_cut_per_episode_however_many_calls_report_it() -> None:
    clock = ManualClock()
    limiter = AdaptiveLimiter("k", clock, initial=100)
    for episode in await fill(limiter):
        limiter.release(episode, LIMITED)
    assert limiter.limit == 70
    assert limiter.episodes == 1
    await clock.advance(10)
    for episode in await fill(limiter):
        limiter.release(episode, LIMITED)
    assert limiter.limit == 49
    assert limiter.episodes == 2


async def test_it_never_falls_below_one() -> None:
    clock = ManualClock()
    limiter = AdaptiveLimiter("k", clock, initial=2)
    for _ in range(10):
        limiter.release(await limiter.acquire(), LIMITED)
        await clock.advance(100)
    assert limiter.limit == 1
    await limiter.acquire()


async def test_growth_is_additive_after_the_first_rate_limit() -> None:
    clock = ManualClock()
    limiter = AdaptiveLimiter("k", clock, initial=100)
    held = await fill(limiter)
    limiter.release(held.pop(), LIMITED)
    for episode in held:
        limiter.release(episode, OK)
    assert limiter.limit == 70, "successes of calls from before the cut do not count"
    await clock.advance(10)
    for episode in await fill(limiter):
        limiter.release(episode, OK)
    grown = limiter.limit
    assert grown == 70, "only the first of them found the places used up"
    for _ in range(70):
        held = await fill(limiter)
        limiter.release(held.pop(), OK)
        for episode in held:
            limiter.release(episode, CallReport(failed=True))
    assert 72 <= limiter.limit <= 76


async def test_what_a_person_asked_for_is_tried_first_and_given_up_at_a_rate_limit() -> None:
    clock = ManualClock()
    limiter = AdaptiveLimiter("k", clock, initial=8, wanted=100)
    held = await fill(limiter)
    assert len(held) == 100
    for episode in held[:60]:
        limiter.release(episode, OK)
    for episode in held[60:]:
        limiter.release(episode, LIMITED)
    assert (limiter.limit, limiter.episodes) == (8, 1)
    await clock.advance(10)
    async with started(*(limiter.acquire() for _ in range(100))) as waiters:
        for waiter in waiters[:8]:
            limiter.release(waiter.result(), OK)
        assert limiter.limit == 16, "it doubles until the next rate limit"


async def test_what_a_person_asked_for_is_kept_once_so_many_calls_were_answered() -> None:
    limiter = AdaptiveLimiter("k", ManualClock(), initial=8, wanted=100)
    for _ in range(100):
        limiter.release(await limiter.acquire(), OK)
    limiter.release(await limiter.acquire(), LIMITED)
    assert limiter.limit == 70


async def test_asking_for_less_changes_nothing_and_the_ceiling_counts() -> None:
    assert AdaptiveLimiter("k", ManualClock(), initial=8, wanted=5).limit == 8
    assert AdaptiveLimiter("k", ManualClock(), initial=8, wanted=50, ceiling=20).limit == 20


async def test_all_calls_wait_for_retry_after() -> None:
    clock = ManualClock()
    limiter = AdaptiveLimiter("k", clock, initial=10)
    limiter.release(await limiter.acquire(), CallReport(rate_limited=True, retry_after=5.0))
    async with started(limiter.acquire(), limiter.acquire()) as waiters:
        await clock.advance(4.9)
        assert not any(waiter.done() for waiter in waiters)
        assert limiter.held_for == pytest.approx(0.1)
        await clock.advance(0.2)
        assert all(waiter.done() for waiter in waiters)


async def test_a_later_report_lengthens_the_wait() -> None:
    clock = ManualClock()
    limiter = AdaptiveLimiter("k", clock, initial=10)
    first, second = await limiter.acquire(), await limiter.acquire()
    limiter.release(first, CallReport(rate_limited=True, retry_after=1.0))
    limiter.release(second, CallReport(rate_limited=True, retry_after=3.0))
    async with started(limiter.acquire()) as waiters:
        await clock.advance(2.9)
        assert not waiters[0].done()
        await clock.advance(0.2)
        assert waiters[0].done()


async def test_own_pauses_grow_and_are_the_same_each_time() -> None:
    async def pauses() -> list[float]:
        clock = ManualClock()
        limiter = AdaptiveLimiter("k", clock, initial=10)
        found = []
        for _ in range(10):
            limiter.release(await limiter.acquire(), LIMITED)
            found.append(limiter.held_for)
            await clock.advance(limiter.held_for)
        return found

    first = await pauses()
    assert first == await pauses()
    assert all(2.0**n <= pause <= 1.25 * 2.0**n for n, pause in enumerate(first[:6]))
    assert all(60 <= pause <= 75 for pause in first[6:])


async def test_a_success_shortens_the_next_pause() -> None:
    clock = ManualClock()
    limiter = AdaptiveLimiter("k", clock, initial=10)
    for _ in range(4):
        limiter.release(await limiter.acquire(), LIMITED)
        await clock.advance(100)
    limiter.release(await limiter.acquire(), OK)
    limiter.release(await limiter.acquire(), LIMITED)
    assert limiter.held_for <= 1.25


async def test_a_server_that_says_retry_at_once_is_not_asked_in_a_tight_loop() -> None:
    limiter = AdaptiveLimiter("k", ManualClock(), initial=10)
    limiter.release(await limiter.acquire(), CallReport(rate_limited=True, retry_after=0.0))
    assert limiter.held_for > 0


async def test_no_requests_remaining_holds_until_the_reset_without_a_cut() -> None:
    clock = ManualClock()
    limiter = AdaptiveLimiter("k", clock, initial=10)
    limiter.release(await limiter.acquire(), CallReport(remaining=0, reset_after=7.0))
    assert limiter.held_for == 7.0
    assert (limiter.limit, limiter.episodes) == (10, 0)
    limiter = AdaptiveLimiter("k", clock, initial=10)
    limiter.release(await limiter.acquire(), CallReport(remaining=3, reset_after=7.0))
    assert limiter.held_for == 0.0


async def test_the_ceiling_is_never_passed() -> None:
    limiter = AdaptiveLimiter("k", ManualClock(), initial=4, ceiling=5)
    for _ in range(20):
        for episode in await fill(limiter):
            limiter.release(episode, OK)
    assert limiter.limit == 5


async def test_waiters_are_served_in_order_of_arrival() -> None:
    limiter = AdaptiveLimiter("k", ManualClock(), initial=1, ceiling=1)
    held = await limiter.acquire()
    served = []

    async def call(number: int) -> None:
        episode = await limiter.acquire()
        served.append(number)
        limiter.release(episode, OK)

    async with started(*(call(number) for number in range(20))):
        limiter.release(held, OK)
        await settle()
        for _ in range(20):
            await settle()
    assert served == list(range(20))


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    limiter = AdaptiveLimiter("k", ManualClock(), initial=1, ceiling=1)
    held = await limiter.acquire()
    async with started(limiter.acquire(), limiter.acquire()) as (first, second):
        first.cancel()
        await settle()
        assert limiter.waiting == 1
        limiter.release(held, OK)
        await settle()
        assert second.done()
        limiter.release(second.result(), OK)
    assert limiter.in_flight == 0
    await limiter.acquire()


async def test_a_waiter_cancelled_in_the_turn_in_which_it_was_served_gives_its_place_to_the_next() -> None:
    limiter = AdaptiveLimiter("k", ManualClock(), initial=1, ceiling=1)
    held = await limiter.acquire()
    async with started(limiter.acquire(), limiter.acquire()) as (first, second):
        limiter.release(held, OK)
        first.cancel()
        await settle()
        assert first.cancelled()
        assert second.done()
        assert limiter.in_flight == 1


@given(st.lists(st.tuples(st.sampled_from(["start", "cancel", "ok", "limited", "wait"]), st.integers(0, 30))))
def test_places_are_never_lost_or_given_twice(actions: list[tuple[str, int]]) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        limiter = AdaptiveLimiter("k", clock, initial=3)
        tasks: list[asyncio.Task[int]] = []
        for action, number in actions:
            await execute(action, number, clock, limiter, tasks)
            running = [task for task in tasks if task.done() and not task.cancelled()]
            assert limiter.in_flight == len(running)
            if action not in ("limited", "ok"):
                assert not (limiter.waiting and limiter.in_flight < limiter.limit and not limiter.held_for)
        for task in tasks:
            task.cancel()
        await settle()

    asyncio.run(scenario())


async def execute(
    action: str, number: int, clock: ManualClock, limiter: AdaptiveLimiter, tasks: list[asyncio.Task[int]]
) -> None:
    running = [task for task in tasks if task.done() and not task.cancelled()]
    waiting = [task for task in tasks if not task.done()]
    if action == "start":
        tasks.append(asyncio.create_task(limiter.acquire()))
    elif action == "cancel" and waiting:
        waiting[number % len(waiting)].cancel()
    elif action in ("ok", "limited") and running:
        task = running[number % len(running)]
        tasks.remove(task)
        limiter.release(task.result(), OK if action == "ok" else LIMITED)
        if waiting and number % 3 == 0:
            waiting[0].cancel()
    elif action == "wait":
        await clock.advance(float(number))
    await settle()


# Budget


def test_a_call_that_does_not_fit_what_is_left_is_refused_with_the_figures() -> None:
    budget = Budget(max_cost=1.0, spent=Usage(cost=0.9))
    with pytest.raises(ItemError, match=r"up to \$0\.2000.*\$0\.1000 is left.*\$1 \(max_cost\)") as caught:
        budget.reserve_now(Reserve(10, 0.2))
    assert caught.value.cause is Cause.OVER_BUDGET
    assert budget.reason is not None
    assert "max_cost" in (budget.reason or "")
    assert budget.reserve_now(Reserve(10, 0.05)), "a smaller call of an item under way still fits"


def test_tokens_are_bounded_like_dollars() -> None:
    budget = Budget(max_total_tokens=1000, spent=Usage(input_tokens=500, output_tokens=100))
    assert budget.reserve_now(Reserve(400))
    with pytest.raises(ItemError, match=r"up to 401 tokens, and 400 are left of the budget of 1,000"):
        budget.reserve_now(Reserve(401))


def test_what_was_spent_exhausts_it() -> None:
    budget = Budget(max_total_tokens=100)
    assert budget.reason is None
    assert budget.reserve_now(Reserve(50))
    budget.settle(Reserve(50), Usage(calls=1, input_tokens=60, output_tokens=40))
    assert budget.reason is not None
    assert budget.reason == "the budget of 100 tokens (max_total_tokens) is used up: 100 used"


def test_wall_time_counts_from_earlier_sessions_on() -> None:
    clock = ManualClock()
    budget = Budget(max_seconds=100, elapsed=90, clock=clock)
    assert budget.reserve_now(NOTHING)
    clock.time += 10
    assert budget.reason is not None
    with pytest.raises(ItemError, match="100 seconds of wall time"):
        budget.reserve_now(NOTHING)


def test_an_unbounded_budget_counts_only() -> None:
    budget = Budget()
    assert not budget.bounded
    assert budget.reserve_now(Reserve(10**9, 10.0**6))
    budget.settle(Reserve(10**9, 10.0**6), Usage(calls=1, cost=2.0))
    assert budget.spent.cost == 2.0
    assert budget.reason is None


async def test_a_call_waits_for_reservations_in_flight_to_settle() -> None:
    budget = Budget(max_cost=1.0)
    await budget.reserve(Reserve(0, 0.6))
    async with started(budget.reserve(Reserve(0, 0.6))) as (waiter,):
        assert not waiter.done()
        budget.settle(Reserve(0, 0.6), Usage(cost=0.1))
        await settle()
        assert waiter.done()
        assert waiter.exception() is None


async def test_a_waiting_call_is_refused_when_the_calls_in_flight_used_it_up() -> None:
    budget = Budget(max_cost=1.0)
    await budget.reserve(Reserve(0, 0.6))
    async with started(budget.reserve(Reserve(0, 0.6)), budget.reserve(Reserve(0, 0.6))) as waiters:
        budget.settle(Reserve(0, 0.6), Usage(cost=0.6))
        await settle()
        assert [type(waiter.exception()) for waiter in waiters] == [ItemError, ItemError]


def priced(cost: float, model: str = "m", output_tokens: int = 10) -> Reserve:
    return Reserve(100, cost, model, output_tokens, output_cost=cost / 2)


def unpriced() -> Reserve:
    return Reserve(100, 0.0, "m", 10, priced=False)


async def test_the_first_call_of_a_model_is_made_alone() -> None:
    budget = Budget(max_cost=1.0)
    first = budget.reserve_now(priced(0.1))
    assert first is not None
    assert budget.reserve_now(Reserve()) is not None, "what names no model is not concerned"
    async with started(budget.reserve(priced(0.1)), budget.reserve(priced(0.1, "n"))) as (same, other):
        assert not same.done()
        budget.settle(first, Usage(calls=1, input_tokens=50, output_tokens=5, cost=0.05))
        await settle()
        assert same.done(), "its price is right"
        assert not other.done(), "another model's first call waits until the calls in flight have ended"
        budget.settle(same.result(), Usage(cost=0.05))
        await settle()
        assert other.done()


async def test_calls_without_a_price_are_bounded_by_what_they_were_seen_to_cost() -> None:
    budget = Budget(max_cost=10.0)
    first = await budget.reserve(unpriced())
    budget.settle(first, Usage(calls=1, input_tokens=90, output_tokens=10, cost=1.0))
    held = budget.reserve_now(unpriced())
    assert held is not None
    assert held.cost == pytest.approx(1.0 + 1.0), (
        "all 90 tokens of the input, and all 10 of the answer, at the whole cost"
    )
    assert sum(budget.reserve_now(unpriced()) is not None for _ in range(9)) == 3
    for _ in range(4):
        budget.settle(held, Usage(calls=1, input_tokens=90, output_tokens=10, cost=1.0))
    budget.spent = Usage(cost=8.9)
    last = budget.reserve_now(unpriced())
    assert last is not None
    assert last.cost == pytest.approx(1.0), (
        "where both do not fit, a call is made alone as long as one like the dearest fits"
    )
    async with started(budget.reserve(unpriced())) as (waiter,):
        assert not waiter.done()
        budget.settle(last, Usage(calls=1, input_tokens=90, output_tokens=10, cost=1.0))
        await settle()
        assert isinstance(waiter.exception(), ItemError)


@pytest.mark.parametrize("said", [None, 0.005], ids=["no price", "a price that is wrong"])
async def test_requests_that_are_billed_as_such_are_bounded_by_the_dearest_so_far(said: float | None) -> None:
    budget, reserve = Budget(max_cost=1.0), Reserve(cost=said or 0.0, model="searches", priced=said is not None)
    first = await budget.reserve(reserve)
    budget.settle(first, Usage(calls=1, cost=0.2))
    held = [each for _ in range(20) if (each := budget.reserve_now(reserve)) is not None]
    assert [each.cost for each in held] == [0.2] * 4
    for each in held:
        budget.settle(each, Usage(calls=1, cost=0.2))
    assert budget.spent.cost == pytest.approx(1.0)


def test_tokens_of_requests_that_are_billed_as_such_count_and_stop_nothing() -> None:
    budget, reserve = Budget(max_total_tokens=5000), Reserve(model="paints", priced=False)
    budget.settle(budget.reserve_now(reserve) or NOTHING, Usage(calls=1, input_tokens=40, output_tokens=1300))
    held = [each for _ in range(9) if (each := budget.reserve_now(reserve)) is not None]
    assert [each.tokens for each in held] == [1340, 1340]
    assert budget.reason is None


def test_a_call_that_costs_more_than_its_price_shows_that_the_price_is_wrong() -> None:
    budget = Budget(max_cost=10.0)
    usage = Usage(input_tokens=9, output_tokens=1)  # a tenth of what is reserved
    budget.settle(budget.reserve_now(priced(0.1)) or NOTHING, replace(usage, cost=0.01))
    held = budget.reserve_now(priced(0.1))
    assert held is not None
    assert held.cost == 0.1
    budget.settle(held, replace(usage, cost=0.02))
    held = budget.reserve_now(priced(0.1))
    assert held is not None
    assert held.cost == pytest.approx(0.2 + 0.2)


def test_a_dearer_answer_than_reserved_raises_the_reserves_that_follow() -> None:
    budget = Budget(max_cost=10.0)
    budget.settle(budget.reserve_now(priced(0.1)) or NOTHING, Usage(input_tokens=90, output_tokens=10, cost=0.5))
    held = budget.reserve_now(priced(0.1))
    assert held is not None
    assert held.cost == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("limits", "reserve", "usage", "told"),
    [
        (
            {"max_total_tokens": 9999},
            priced(0),
            Usage(input_tokens=9, output_tokens=11),
            "11 tokens, where max_tokens was 10",
        ),
        ({"max_cost": 9.0}, priced(0.1), Usage(output_tokens=11, cost=0.1), "11 tokens, where max_tokens was 10"),
        ({"max_total_tokens": 9999}, priced(0), Usage(input_tokens=101), "used 101 tokens, where 100"),
        ({"max_cost": 9.0}, unpriced(), Usage(input_tokens=1, unpriced_calls=1), "no price is known for m"),
    ],
)
async def test_a_call_that_nothing_bounds_exhausts_the_budget(
    limits: dict[str, Any], reserve: Reserve, usage: Usage, told: str
) -> None:
    budget = Budget(**limits)
    held = await budget.reserve(reserve)
    assert budget.reason is None
    budget.settle(held, usage)
    assert told in (budget.reason or "")
    with pytest.raises(ItemError):
        budget.reserve_now(Reserve(1, 0.0))


def test_an_answer_without_a_bound_on_what_it_costs_is_no_matter_where_it_is_free() -> None:
    budget = Budget(max_cost=1.0)
    budget.settle(budget.reserve_now(priced(0.0)) or NOTHING, Usage(output_tokens=10_000))
    assert budget.reason is None


def test_a_call_whose_use_is_not_known_counts_as_its_reserve() -> None:
    budget = Budget(max_cost=1.0, max_total_tokens=1000)
    held = budget.reserve_now(priced(0.25))
    assert held is not None
    budget.settle(held, Usage(input_tokens=30), unknown=True)
    assert (budget.spent.cost, budget.spent.total_tokens) == (0.25, 100)
    assert (budget.assumed.cost, budget.assumed.total_tokens) == (0.25, 70)
    with pytest.raises(ItemError, match=r"of which \$0\.2500 is the most that calls without a readable answer cost"):
        budget.reserve_now(priced(0.9))


async def test_a_cancelled_reservation_leaves_nothing_behind() -> None:
    budget = Budget(max_cost=1.0)
    await budget.reserve(Reserve(0, 0.6))
    async with started(budget.reserve(Reserve(0, 0.6)), budget.reserve(Reserve(0, 0.6))) as (first, second):
        budget.settle(Reserve(0, 0.6), Usage())
        first.cancel()
        await settle()
        assert first.cancelled()
        assert second.done()
        budget.settle(Reserve(0, 0.6), Usage())
    assert budget.reserve_now(Reserve(0, 1.0))


@given(st.lists(st.tuples(st.floats(0.001, 0.5), st.floats(0, 1)), max_size=60))
def test_the_budget_is_never_overspent_when_no_call_passes_its_worst_case(calls: list[tuple[float, float]]) -> None:
    budget = Budget(max_cost=1.0)
    open_calls: list[tuple[float, float]] = []
    for worst, share in calls:
        try:
            if budget.reserve_now(Reserve(0, worst)):
                open_calls.append((worst, share))
        except ItemError:
            break
        if len(open_calls) > 3:
            settle_first(budget, open_calls)
    while open_calls:
        settle_first(budget, open_calls)
    assert budget.spent.cost <= 1.0 + 1e-6


def settle_first(budget: Budget, open_calls: list[tuple[float, float]]) -> None:
    worst, share = open_calls.pop(0)
    budget.settle(Reserve(0, worst), Usage(cost=worst * share))


# Both


async def test_keys_are_limited_apart() -> None:
    limits = SharedLimits(ManualClock(), ceiling=1)
    await limits.acquire("a", NOTHING)
    await limits.acquire("b", NOTHING)
    async with started(limits.acquire("a", NOTHING)) as (waiter,):
        assert not waiter.done()
        figures = limits.snapshot()["keys"]["a"]
        assert (figures["limit"], figures["in_flight"], figures["waiting"]) == (1, 1, 1)


async def test_release_settles_the_budget() -> None:
    limits = SharedLimits(ManualClock(), budget=Budget(max_cost=1.0))
    permit = await limits.acquire("a", Reserve(10, 1.0))
    limits.release(permit, CallReport(usage=Usage(calls=1, input_tokens=5, cost=0.25)))
    assert limits.budget.spent == Usage(calls=1, input_tokens=5, cost=0.25)
    permit = await limits.acquire("a", Reserve(10, 0.75))
    limits.release(permit, CallReport(failed=True))
    assert limits.snapshot()["budget"]["spent"]["cost"] == 0.25


async def test_calls_are_made_out_of_what_a_permit_holds() -> None:
    limits = SharedLimits(budget=Budget(1.0))
    whole = await limits.acquire("together", Reserve(cost=0.9))
    part = Reserve(cost=0.4, within=whole)
    first, second = [await limits.acquire("k", part) for _ in range(2)]
    async with started(limits.acquire("k", Reserve(cost=0.5))) as (waiting,):
        limits.release(first, CallReport(failed=True))  # what it did not use is there for another try
        again = await limits.acquire("k", part)
        limits.release(second, CallReport(Usage(cost=0.1)))
        limits.release(again, CallReport(unknown=True))
        await settle()
        assert not waiting.done()
        assert limits.budget.exposed[0] == pytest.approx(1.0 - 0.1)
        # Others that wait come later than calls that are held already: they wait for these.
        last = await limits.acquire("k", Reserve(cost=0.4, within=whole))
        limits.release(last, CallReport(Usage(cost=0.05)))
        assert not waiting.done()
        limits.release(whole, CallReport(unknown=True))  # as one is whose worker was killed
        assert limits.budget.spent.cost == pytest.approx(0.55)
        with pytest.raises(ItemError, match="may cost up to"):
            await waiting
    after = await limits.acquire("k", Reserve(cost=0.4, within=whole))
    limits.release(after, OK)
    assert limits.budget.exposed[0] == pytest.approx(0.55)


async def test_what_passes_a_hold_takes_of_what_is_left_or_is_refused() -> None:
    limits = SharedLimits(budget=Budget(1.0))
    whole, other = [await limits.acquire("together", Reserve(cost=0.4)) for _ in range(2)]
    permit = await limits.acquire("k", Reserve(cost=0.6, within=whole))
    with pytest.raises(ItemError, match="more than was held"):
        await asyncio.wait_for(limits.acquire("k", Reserve(cost=0.5, within=other)), 5)
    limits.release(whole, OK)
    limits.release(permit, CallReport(Usage(cost=0.2)))
    limits.release(other, OK)
    assert limits.budget.exposed[0] == pytest.approx(0.2)


@given(st.lists(st.tuples(st.floats(0.0, 0.5), st.floats(0.0, 1.0), st.booleans()), max_size=12), st.floats(0.0, 1.0))
def test_holds_leave_nothing_behind(calls: list[tuple[float, float, bool]], whole: float) -> None:
    async def made() -> None:
        limits = SharedLimits(budget=Budget(3.0))
        permit = await limits.acquire("together", Reserve(cost=whole))
        used = 0.0
        for number, (cost, share, unknown) in enumerate(calls):
            if number == 8:
                limits.release(permit, OK)
            with suppress(ItemError):
                call = await limits.acquire("k", Reserve(cost=cost, within=permit))
                limits.release(call, CallReport(Usage(cost=cost * share), unknown=unknown))
                used += cost if unknown else cost * share
            assert limits.budget.exposed[0] <= 3.0 + 1e-6
        if len(calls) <= 8:
            limits.release(permit, OK)
        assert limits.budget.exposed[0] == pytest.approx(used)

    asyncio.run(made())


async def test_a_permit_is_released_once() -> None:
    limits = SharedLimits(ManualClock())
    permit = await limits.acquire("a", NOTHING)
    limits.release(permit, OK)
    with pytest.raises(ValueError, match="not held"):
        limits.release(permit, OK)


async def test_a_cancelled_acquire_gives_its_reservation_back() -> None:
    limits = SharedLimits(ManualClock(), ceiling=1, budget=Budget(max_cost=1.0))
    permit = await limits.acquire("a", Reserve(0, 0.5))
    async with started(limits.acquire("a", Reserve(0, 0.5))) as (waiter,):
        waiter.cancel()
        await settle()
    limits.release(permit, OK)
    await limits.acquire("a", Reserve(0, 1.0))


async def test_a_thousand_performers_never_pass_the_limit_and_all_get_through() -> None:
    limits = SharedLimits(initial=8, first_pause=0.001)
    most = 0
    done = 0

    async def perform_one(number: int) -> None:
        nonlocal most, done
        permit = await limits.acquire("a", NOTHING)
        figures = limits.snapshot()["keys"]["a"]
        most = max(most, figures["in_flight"])
        await asyncio.sleep(0)
        limits.release(permit, CallReport(rate_limited=number % 100 == 99, retry_after=0.001))
        done += 1

    await asyncio.gather(*(perform_one(number) for number in range(1000)))
    assert done == 1000
    assert limits.snapshot()["keys"]["a"]["in_flight"] == 0
    assert most < 1000


async def test_an_acquire_and_release_cost_little() -> None:
    limits = SharedLimits()
    reserve = Reserve(100, 0.0)
    report = CallReport(usage=Usage(calls=1, input_tokens=10))

    async def many(acquire: Callable[[str, Reserve], Coroutine[Any, Any, int]]) -> None:
        for _ in range(2000):
            limits.release(await acquire("a", reserve), report)

    loop = asyncio.get_running_loop()
    best = float("inf")
    for _ in range(3):
        began = loop.time()
        await many(limits.acquire)
        best = min(best, (loop.time() - began) / 2000)
    assert best < 0.0001, f"{best * 1e6:.1f} microseconds"
