"""What a target is to the workload: something that answers a test.

What commands and functions say that they cost counts as the run's cost, beside its model calls. Here is also the simplest target, the mock,
which answers the same to everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from manyhands.core.usage import ZERO, Reserve, Usage, as_cost
from manyhands.engine.contract import CallReport, Context, Effect
from manyhands.workloads.evals.evalfile.tests import Test
from manyhands.workloads.evals.targets.answers import Answer, read_text
from manyhands.workloads.evals.targets.kinds import MockSettings
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace


class LiveTarget(Protocol):
    """A target, ready to answer tests; one for each target of each eval file."""

    @property
    def simulated(self) -> bool:
        """Whether its answers are made up."""
        ...

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        """``workspace``: where it works, if the test has a workspace; the target has it made when the target is really asked.

        Whatever is paid for or takes effect outside is a step of the context, so that a resumed run does not ask again. An answer
        with an ``error`` is a target that failed. Raises ItemError for what may pass (an endpoint that is down …).
        """
        ...


class Talk(LiveTarget, Protocol):
    """A target for all turns of one conversation."""

    def still(self) -> AbstractAsyncContextManager[None]:
        """Within this nothing that the target started runs, so that what is in its workspace can be looked at."""
        ...


@runtime_checkable
class Conversational(Protocol):
    """A target that keeps something from one turn of a conversation to the next."""

    def conversing(self, context: Context) -> AbstractAsyncContextManager[Talk]:
        """What answers all turns of one conversation. ``context``: the item's, of which each turn has a scope."""
        ...


COST = "cost"
"""The kind of a step in which a cost is noted that was told without a step of its own."""
Effects = Callable[[], Awaitable[Effect]]


def cost_usage(cost_usd: float | None) -> Usage:
    """A cost as usage; none if nobody said one."""
    if not cost_usd:
        return ZERO
    cost = as_cost(cost_usd)
    return Usage(cost=cost or 0.0, unpriced_calls=int(cost is None))


def with_cost(context: Context, name: str, effect: Effects) -> Effects:
    """The same effect, whose usage counts against the run's budget, which must not be used up before. ``name``: of who is paid.

    What it gives raises ItemError(OVER_BUDGET) besides.
    """

    async def limited() -> Effect:
        permit = await context.limits.acquire(name, Reserve())
        report = CallReport(failed=True)
        try:
            result = await effect()
            report = CallReport(result.usage)
            return result
        finally:
            context.limits.release(permit, report)

    return limited


async def record_cost(context: Context, name: str, cost_usd: float | None) -> None:
    """Count a cost that was told with an answer which is no step."""
    if not cost_usd:
        return

    async def effect() -> Effect:
        return Effect(None, cost_usage(cost_usd))

    await context.scope(COST).step(COST, {"cost_usd": cost_usd}, with_cost(context, name, effect))


class MockTarget:
    """A ``LiveTarget``. What it does costs nothing and is always the same, so that it is no step."""

    simulated = True

    def __init__(self, settings: MockSettings) -> None:
        self._settings = settings

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        if workspace is not None:
            await workspace.begin()
        settings = self._settings
        if settings.most > 0:
            await asyncio.sleep(context.random(f"delay-{trial}").uniform(settings.least, settings.most))
        if workspace is not None:
            await workspace.end()
        return read_text(settings.response)
