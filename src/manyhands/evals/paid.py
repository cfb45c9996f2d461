"""What commands and functions say that they cost counts as the run's cost, beside its model calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from manyhands.core.usage import ZERO, Reserve, Usage, as_cost
from manyhands.engine.context import CallReport, Context, Effect

COST = "cost"
"""The kind of a step in which a cost is noted that was told without a step of its own."""
Effects = Callable[[], Awaitable[Effect]]


def spent(cost_usd: float | None) -> Usage:
    """A cost as usage; none if nobody said one."""
    if not cost_usd:
        return ZERO
    cost = as_cost(cost_usd)
    return Usage(cost=cost or 0.0, unpriced_calls=int(cost is None))


def paid(context: Context, name: str, effect: Effects) -> Effects:
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


async def note_cost(context: Context, name: str, cost_usd: float | None) -> None:
    """Count a cost that was told with an answer which is no step."""
    if not cost_usd:
        return

    async def effect() -> Effect:
        return Effect(None, spent(cost_usd))

    await context.scope(COST).step(COST, {"cost_usd": cost_usd}, paid(context, name, effect))
