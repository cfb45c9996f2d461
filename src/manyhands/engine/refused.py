"""Attempts that an endpoint refused, while it is open whether their items or the endpoint are to blame."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from manyhands.core.failures import FAILURES
from manyhands.engine.attempt import AttemptResult, Failed
from manyhands.engine.journal.records import Claimed
from manyhands.engine.limits.shared import Refusals

MAX_REFUSED = 200
"""Refused attempts whose end is left open at most."""


class RefusedAttempts:
    """Failed attempts at an endpoint that has refused everything since its last answer, in order.

    Whether their items have failed is seen when it answers something, or when nothing else is left to do; up to then the items are in
    hand, neither ended nor put back.
    """

    def __init__(self, refusals: Refusals, *, counts_failures: bool) -> None:
        """``counts_failures``: nothing is left open, as the workload must hear of each failure at once."""
        self._refusals = refusals
        self._counts_failures = counts_failures
        self._waiting: deque[tuple[Claimed, Failed]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keeps(self, claimed: Claimed, result: AttemptResult) -> bool:
        """Whether an attempt was refused in that way; it is kept then."""
        if self._counts_failures or not isinstance(result, Failed) or FAILURES[result.failure.cause].stops_run:
            return False
        refused = self._refusals.explains(result.failure.message)
        if refused:
            self._waiting.append((claimed, result))
        return refused

    def known(self) -> tuple[Claimed, Failed] | None:
        """The first, if its item is to blame: the endpoint has answered since, or too many are open."""
        if not self._waiting:
            return None
        is_open = self._refusals.explains(self._waiting[0][1].failure.message)
        return None if is_open and len(self._waiting) <= MAX_REFUSED else self.first()

    def first(self) -> tuple[Claimed, Failed]:
        """The first, whoever is to blame."""
        return self._waiting.popleft()

    def drain(self) -> Iterator[tuple[Claimed, Failed]]:
        """All that are left."""
        while self._waiting:
            yield self._waiting.popleft()
