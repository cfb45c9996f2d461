"""What a run may have spent at most, on disk before it is spent.

The journal knows what recorded steps cost. Beyond that a run may have paid for calls that were in flight when it was killed, for answers
that could not be read, and for steps that were given up. So that a budget holds over all sessions, a mark is kept that is never less than
what is spent and reserved. It is raised a step ahead, so that few calls wait for it.
"""

from __future__ import annotations

import asyncio

from manyhands.core.errors import StorageError
from manyhands.core.usage import Usage
from manyhands.engine.journal.store import Store
from manyhands.engine.limits.budget import Budget

META = "spending"
STEPS = 64
"""Into how many steps a budget is divided. The mark is raised by one at a time, and lowered when it is ``LOOSE`` too high."""
LOOSE = 8
_TINY = 1e-9


class SpendingMark:
    """The mark of a run that its owner has opened. ``assumed``: what counts besides the recorded steps of earlier sessions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        kept = store.reader.meta(META) or {"assumed": (0.0, 0), "mark": None}
        cost, tokens = kept["assumed"]
        if kept["mark"] is not None:  # the last session did not come to its end
            cost, tokens = _beyond(kept["mark"], store.reader.usage(), (cost, tokens))
            store.set_meta(**{META: {"assumed": (cost, tokens), "mark": None}})
        self.assumed = Usage(input_tokens=tokens, cost=cost)
        self._mark = (0.0, 0)
        self._raising: asyncio.Task[None] | None = None

    async def cover(self, budget: Budget) -> None:
        """Done when it is on disk that as much may be spent as is spent and reserved. Raises StorageError."""
        while not self._covers(budget):
            if self._raising is None or self._raising.done():
                self._raising = asyncio.create_task(self._raise(budget))
            await asyncio.shield(self._raising)

    def settled(self, budget: Budget) -> None:
        """Lower the mark if it is far above what is spent and reserved, so that a kill costs little of the budget."""
        if self._raising is not None and not self._raising.done():
            return
        cost, tokens = budget.exposed
        step_cost, step_tokens = _step(budget)
        loose_cost = budget.max_cost is not None and self._mark[0] - cost > LOOSE * step_cost
        if loose_cost or (budget.max_total_tokens is not None and self._mark[1] - tokens > LOOSE * step_tokens):
            self._mark = self._write(budget)

    def close(self, budget: Budget) -> None:
        """Keep exactly what was spent beyond the recorded steps; once the session's writing has ended."""
        beyond = _beyond(budget.exposed, self._store.reader.usage())
        if beyond == (0.0, 0) and self._store.reader.meta(META) is None:
            return
        try:
            self._store.set_meta(**{META: {"assumed": beyond, "mark": None}})
        except StorageError:
            return  # the mark stays where it is, which is no less

    def _covers(self, budget: Budget) -> bool:
        cost, tokens = budget.exposed
        return (budget.max_cost is None or cost <= self._mark[0] + _TINY) and (
            budget.max_total_tokens is None or tokens <= self._mark[1]
        )

    async def _raise(self, budget: Budget) -> None:
        mark = self._write(budget)
        await self._store.writer.committed()
        self._mark = mark

    def _write(self, budget: Budget) -> tuple[float, int]:
        """Have a mark written that is a step above what is spent and reserved, but no higher than the budget."""
        (cost, tokens), (step_cost, step_tokens) = budget.exposed, _step(budget)
        most_cost = cost if budget.max_cost is None else max(cost, budget.max_cost)
        most_tokens = tokens if budget.max_total_tokens is None else max(tokens, budget.max_total_tokens)
        mark = min(most_cost, cost + step_cost), min(most_tokens, tokens + step_tokens)
        assumed = self.assumed.cost, self.assumed.total_tokens
        self._store.note_meta(META, {"assumed": assumed, "mark": mark})
        return mark


def _step(budget: Budget) -> tuple[float, int]:
    return (budget.max_cost or 0.0) / STEPS, -(-(budget.max_total_tokens or 0) // STEPS)


def _beyond(exposed: tuple[float, int], recorded: Usage, least: tuple[float, int] = (0.0, 0)) -> tuple[float, int]:
    """How much of what may have been spent is in no recorded step."""
    cost = exposed[0] - recorded.cost
    return max(least[0], cost if cost > _TINY else 0.0), max(least[1], exposed[1] - recorded.total_tokens)
