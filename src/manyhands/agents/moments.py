"""The time as a step, where what depends on it must be the same on a replay."""

from __future__ import annotations

from manyhands.engine.context import Context, Effect

CLOCK = "clock"
"""The kind of a step that reads the clock."""


async def moment(context: Context) -> float:
    """Now, in seconds since 1970 UTC: when this was first asked at the context's place."""

    async def effect() -> Effect:
        return Effect(context.clock.now())

    return float(await context.step(CLOCK, {}, effect))
