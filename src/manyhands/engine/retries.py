"""How often an item may be executed when it fails, and how long it waits in between."""

from __future__ import annotations

from manyhands.core.errors import ItemError
from manyhands.core.failures import FAILURES, FailureRule
from manyhands.engine.contract import Item, Workload
from manyhands.engine.limits.adaptive import MAX_HOLD_SECONDS


class Retries:
    """The failure table, with what the run's settings and the workload say instead."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._max_attempts = workload.execution.max_attempts

    def max_attempts(self, item: Item, failure: ItemError) -> int:
        """How often an item may be executed, given this failure."""
        own = self._workload.max_attempts(item, failure)
        return self.allowed(FAILURES[failure.cause]) if own is None else own

    def allowed(self, rule: FailureRule) -> int:
        """How often an item may be executed under a rule of the table."""
        if not rule.retried:
            return 1
        return rule.performances if self._max_attempts is None else self._max_attempts


def delay(rule: FailureRule, failures: int, retry_after: float | None) -> float:
    """Seconds before an item that failed so often is executed again."""
    seconds = min(rule.longest_delay, rule.delay * 2.0 ** max(0, failures - 1))
    return max(seconds, min(retry_after or 0.0, MAX_HOLD_SECONDS), 0.001)
