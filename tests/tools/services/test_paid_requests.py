"""Steps of a tool's own: what is paid for is recorded and counted, whatever else fails meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import Interrupted, ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.openai.errors import Retries
from manyhands.testing.context import MemoryContext
from manyhands.tools.services.artifacts import data_of
from manyhands.tools.services.steps import Charge, ServiceAnswer, ServiceError, ToolSteps, together

SEARCH = Charge("searches", "search", 0.1)


def steps_of(context: MemoryContext) -> ToolSteps:
    return ToolSteps("tool", lambda: context.scope("tool"), retries=Retries(tries=3, delay=0.001))


class Service:
    """Answers after a while, and counts what it was asked."""

    def __init__(self, *answers: ServiceAnswer | Exception) -> None:
        self.answers = list(answers)
        self.asked, self.answered = 0, 0
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def __call__(self) -> ServiceAnswer:
        self.asked += 1
        self.began.set()
        await self.goes_on.wait()
        self.answered += 1
        answer = self.answers.pop(0) if self.answers else ServiceAnswer("found")
        if isinstance(answer, Exception):
            raise answer
        return answer


async def failing(after: asyncio.Event, error: Exception) -> None:
    await after.wait()
    raise error


OVER = ItemError(Cause.OVER_BUDGET, "no money is left")


@pytest.mark.parametrize("error", [OVER, Interrupted(), ToolError("broken")], ids=["budget", "stop", "tool"])
async def test_what_is_being_asked_when_another_call_fails_is_recorded(error: Exception) -> None:
    context, service = MemoryContext(), Service()

    async def twice() -> None:
        steps = steps_of(context)
        await steps.request(SEARCH, {"query": "first"}, service)
        await steps.request(SEARCH, {"query": "second"}, service)

    async def both() -> None:
        await together([nested(), failing(service.began, error)])

    async def nested() -> None:
        await together([twice(), asyncio.sleep(60)])

    running = asyncio.ensure_future(both())
    await service.began.wait()
    await asyncio.sleep(0)
    service.goes_on.set()
    with pytest.raises(type(error)) as caught:
        await running
    assert caught.value is error
    assert (service.asked, service.answered) == (1, 1)
    again = MemoryContext(context.journal)
    assert await steps_of(again).request(SEARCH, {"query": "first"}, service) == "found"
    assert service.asked == 1


async def test_a_conversation_that_is_cancelled_waits_for_nothing() -> None:
    context, service = MemoryContext(), Service()
    asked = steps_of(context).request(SEARCH, {}, service)
    running = asyncio.ensure_future(together([asked, asyncio.sleep(60)]))
    await service.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (service.answered, context.steps) == (0, [])


async def test_of_several_failures_the_runs_own_is_raised() -> None:
    began = asyncio.Event()
    began.set()
    with pytest.raises(ItemError) as caught:
        await together([failing(began, ToolError("one")), failing(began, ValueError("two")), failing(began, OVER)])
    assert caught.value is OVER
    with pytest.raises(Interrupted):
        await together([failing(began, Interrupted()), failing(began, Interrupted())])


@pytest.mark.parametrize(
    ("answers", "cost"),
    [
        ([ServiceError("nothing was found", unknown=True, cost=0.05)], 0.05),
        ([ServiceError("broken off", passing=True, unknown=True, cost=0.05), ServiceAnswer("found", 0.07)], 0.12),
        ([ServiceError("busy", rate_limited=True), ServiceAnswer("found")], 0.1),
        ([ServiceError("wrong", usage=Usage(calls=1, input_tokens=5))], 0.1),
    ],
    ids=["a failure", "tries", "what was refused", "tokens"],
)
async def test_what_was_billed_counts_whether_it_was_of_use_or_not(
    answers: list[ServiceAnswer | Exception], cost: float
) -> None:
    limits = SharedLimits(SystemClock(), budget=Budget(max_cost=10.0))
    context, service = MemoryContext(limits=limits), Service(*answers)
    service.goes_on.set()

    async def used(context: MemoryContext) -> Usage:
        steps = steps_of(context)
        try:
            assert await steps.request(SEARCH, {}, service) == "found"
        except ServiceError:
            assert isinstance(answers[-1], ServiceError)
        return steps.usage

    first = await used(context)
    assert first.cost == pytest.approx(cost) == limits.budget.spent.cost
    assert limits.budget.assumed is ZERO
    assert await used(MemoryContext(context.journal)) == first
    (step,) = context.steps
    assert Usage.from_json(dict(step.usage)).cost == pytest.approx(cost)


@pytest.mark.parametrize("address", ["data:image/png;base64,é", "data:;base64,A"])
def test_a_data_address_without_base64_is_an_error_that_the_model_can_mend(address: str) -> None:
    with pytest.raises(ToolError, match="base64"):
        data_of(address)


def test_other_addresses_hold_no_data() -> None:
    others: list[Any] = ["data:,text", "https://example.com/a.png", "data:image/png;base64"]
    assert [data_of(each) for each in others] == [None] * 3
