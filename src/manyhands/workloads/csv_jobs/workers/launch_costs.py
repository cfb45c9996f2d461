"""What launches of a worker command cost, and how the run's budget holds for them."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.agents.programs import Account, AgentProgram, read_account
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.engine.contract import CallReport, Context
from manyhands.models.pricing import PriceTable

NAME = "the worker command"
_KEY = "worker_command"
_UNSAID = Usage(calls=1, unpriced_calls=1)


class LaunchCosts:
    """Of one job. ``words``: of the command line; ``prices``: for programs that say their tokens only; ``bounded``: whether the run has a
    budget in dollars or tokens; ``earlier``: what recorded launches of earlier sessions used."""

    def __init__(
        self, words: Sequence[str], prices: PriceTable, *, bounded: bool = False, earlier: Usage = ZERO
    ) -> None:
        self._program = AgentProgram.of(words)
        self._prices = prices
        self.bounded = bounded
        count = max(1, earlier.calls)
        self._reserve = Reserve(
            tokens=-(-earlier.total_tokens // count),
            cost=self._program.most or earlier.cost / count,
            model=NAME,
            priced=False,
            open=True,
        )

    @property
    def told(self) -> bool:
        """Whether what a launch uses is waited for, also where it ends after its report: there is a budget, or the program is one that
        says it."""
        return self.bounded or (self._program.name is not None and self._program.why_silent() is None)

    def read(self, printed: str) -> Account:
        """What a launch says of itself."""
        return read_account(printed, self._cost)

    def usage(self, account: Account) -> Usage:
        """What counts for a launch. Where there is no budget, nobody has to say anything."""
        if account.usage is not None:
            return account.usage
        return _UNSAID if self.bounded else ZERO

    async def begin(self, context: Context) -> int | None:
        """Wait until a further launch fits the budget: a permit for ``end``. Raises ItemError(OVER_BUDGET)."""
        return await context.limits.acquire(_KEY, self._reserve) if self.bounded else None

    def end(self, context: Context, permit: int | None, account: Account | None, *, failed: bool) -> None:
        """Settle a launch. ``account``: None if it was not made. One that failed without a word counts as the dearest before."""
        if permit is None:
            return
        report = CallReport(failed=True)
        if account is not None:
            report = CallReport(self.usage(account), failed=failed, unknown=failed and account.usage is None)
        context.limits.release(permit, report)

    def _cost(self, usage: Usage) -> float | None:
        model = self._program.model
        price = None if model is None else self._prices.price(model)
        return None if price is None else price.cost(usage)
