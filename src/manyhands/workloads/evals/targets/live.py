"""Targets that are ready to answer tests: their protocol, and those that run in this process: the mock, a Python function, an agent or a
model.

The cost that commands and functions report counts as the run's cost, besides that of model calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from manyhands.core.jsonio import Json
from manyhands.core.usage import ZERO, Reserve, Usage, as_cost
from manyhands.engine.contract import CallReport, Context, Effect
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.targets.answers import Answer
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace


class LiveTarget(Protocol):
    """A target, ready to answer tests; one for each target of each eval file."""

    @property
    def simulated(self) -> bool:
        """Whether its answers are made up."""
        ...

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        """Answer a test. ``workspace``: where it works, if the test has a workspace; the target has it made when the target
        really runs.

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

    def conversing(self, context: Context, test: Test) -> AbstractAsyncContextManager[Talk]:
        """What answers all turns of one conversation, which ``test`` is. ``context``: the item's, of which each turn has a scope."""
        ...


# --- Steps and their cost

STEP = "target"
"""The kind of a step in which a target answered."""
COST = "cost"
"""The kind of a step that records a cost which was reported without a step of its own."""
Effects = Callable[[], Awaitable[Effect]]


def cost_usage(cost_usd: float | None) -> Usage:
    """A reported cost as usage; zero for None."""
    if not cost_usd:
        return ZERO
    cost = as_cost(cost_usd)
    return Usage(cost=cost or 0.0, unpriced_calls=int(cost is None))


async def answer_step(
    context: Context, identity: Json, test: Test, sample: int, workspace: TestWorkspace | None, effect: Effects
) -> Any:
    """The output of the one step in which a target answers a test. ``identity``: what makes it another target if it changes."""
    request = {"target": identity, "test": test.id, "prompt": test.prompt(), "trial": sample}
    inner = effect if workspace is None else workspace.around(effect)
    output = await context.step(STEP, request, _with_cost(context, f"target {identity}", inner))
    if workspace is not None:
        await workspace.recall(output)
    return output


async def record_cost(context: Context, name: str, cost_usd: float | None) -> None:
    """Record a cost that was reported with an answer which is no step. ``name``: of the target, for the budget."""
    if not cost_usd:
        return

    async def effect() -> Effect:
        return Effect(None, cost_usage(cost_usd))

    await context.scope(COST).step(COST, {"cost_usd": cost_usd}, _with_cost(context, name, effect))


def _with_cost(context: Context, name: str, effect: Effects) -> Effects:
    """The effect, with its usage counted against the run's budget. It raises ItemError(OVER_BUDGET) if that is used up before."""

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
