"""Which item is next, and whether one that failed is executed again.

Next are the items never tried, in order of the input; those put back, when they are due; at last those that were refused up to the end of
an earlier session, since others may be answered. Attempts that an endpoint refused are kept while it is open whether their items or the
endpoint are to blame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError
from manyhands.core.failures import FAILURES, FailureRule
from manyhands.core.outcomes import ItemState
from manyhands.engine.attempt import AttemptResult, Failed
from manyhands.engine.contract import BEHIND_INPUT, Item, Workload
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.records import Claimed
from manyhands.engine.limits.adaptive import MAX_HOLD_SECONDS
from manyhands.engine.limits.shared import Refusals

PAGE = 256
LAST = -1.0
"""In place of the time from which on an item may be executed again: after all others."""
DUE_INTERVAL = 0.25
"""Seconds between looks for items that have become due, while others wait."""
MAX_REFUSED = 200
"""Refused attempts whose end is left open at most."""


class Claims:
    """Reads claimable items from the journal, a page at a time. Never gives out an item twice before it was put back."""

    def __init__(
        self, reader: JournalReader, clock: Clock, must_wait: Callable[[Item], bool], limit: int | None = None
    ) -> None:
        """``must_wait``: whether an item has to wait; it is not given out before it was freed. ``limit``: how many items, from the
        beginning of the input, are given out; None: all."""
        self._reader = reader
        self._clock = clock
        self._must_wait = must_wait
        self._freed: deque[int] = deque()
        self._fresh = _Pages(reader.fresh_items, limit)
        self._refused = _Pages(reader.refused_items, limit)
        self._due: deque[Claimed] = deque()
        self._looked_at = float("-inf")
        self._held: set[int] = set()
        self._steered: set[int] = set()
        """Items that a person had cancelled or executed again, which no page gives out: it may have been read before that."""
        self._cancelled: set[int] = set()
        """Items that were cancelled, as long as that is not on disk."""

    def take(self) -> Claimed | None:
        """The next item, or None if there is none at this moment."""
        while (claimed := self._next()) is not None:
            self._held.add(claimed.item.number)
            if not self._must_wait(claimed.item):
                return claimed
        return None

    def _next(self) -> Claimed | None:
        return self._take_due() or self._take_freed() or self._take_page(self._fresh) or self._take_page(self._refused)

    def _take_page(self, pages: _Pages) -> Claimed | None:
        while (claimed := pages.take()) is not None and claimed.item.number in self._steered:
            continue
        return claimed

    def cancel(self, number: int) -> None:
        """Give out an item no more that waits to be executed."""
        self._steered.add(number)
        self._held.add(number)
        self._cancelled.add(number)

    def reopen(self, numbers: Sequence[int]) -> None:
        """Ended items are to be executed again; the journal has them as pending, so that a page may have given them out already."""
        self._steered.update(numbers)
        known = self._held.union(self._freed)
        self.free([number for number in dict.fromkeys(numbers) if number not in known])

    def free(self, numbers: Iterable[int]) -> bool:
        """Items that were held are to be looked at again; whether there are any."""
        self._freed.extend(numbers)
        return bool(self._freed)

    def release(self, number: int) -> None:
        """The item's end, or its return to the journal, is on disk."""
        self._held.discard(number)
        self._cancelled.discard(number)

    def next_due(self) -> float | None:
        """The time of day when the next item becomes due; None if none waits."""
        return self._reader.next_due()

    def look_again(self) -> None:
        """Items may have become due."""
        self._looked_at = float("-inf")

    def _take_freed(self) -> Claimed | None:
        while self._freed:
            row = self._reader.item(str(self._freed.popleft()))
            if row is not None and row.state is ItemState.PENDING and row.number not in self._cancelled:
                return Claimed(row.item, row.attempt, row.performances, row.failures, row.position)
        return None

    def _take_due(self) -> Claimed | None:
        if not self._due and self._clock.monotonic() - self._looked_at >= DUE_INTERVAL:
            self._looked_at = self._clock.monotonic()
            due = self._reader.due_items(self._clock.now(), PAGE + len(self._held))
            self._due.extend(claimed for claimed in due if claimed.item.number not in self._held)
        while self._due:
            claimed = self._due.popleft()
            if claimed.item.number not in self._held:
                return claimed
        return None


class _Pages:
    """Items in order of the input, a page at a time, up to ``limit``. ``read``: gives the next behind a position, up to a number of
    them."""

    def __init__(self, read: Callable[[int, int], list[Claimed]], limit: int | None) -> None:
        self._read = read
        self._end = BEHIND_INPUT if limit is None else limit
        self._page: deque[Claimed] = deque()
        self._position = -1
        self._left = True

    def take(self) -> Claimed | None:
        if not self._page and self._left:
            self._page.extend(each for each in self._read(self._position, PAGE) if each.position < self._end)
            self._left = len(self._page) == PAGE
            if self._page:
                self._position = self._page[-1].position
        return self._page.popleft() if self._page else None


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
        return rule.max_attempts if self._max_attempts is None else self._max_attempts


def delay(rule: FailureRule, failures: int, retry_after: float | None) -> float:
    """Seconds before an item that failed so often is executed again."""
    seconds = min(rule.max_delay, rule.delay * 2.0 ** max(0, failures - 1))
    return max(seconds, min(retry_after or 0.0, MAX_HOLD_SECONDS), 0.001)


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

    def numbers(self) -> set[int]:
        """The numbers of the items of which an attempt is kept."""
        return {claimed.item.number for claimed, _ in self._waiting}

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
