"""Which item is next: those never tried, in order of the input; those put back, when they are due; at last those that were refused up to
the end of an earlier session, since others may be answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from manyhands.core.clock import Clock
from manyhands.engine.contract import Item
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.records import Claimed

PAGE = 256
LAST = -1.0
"""In place of the time from which on an item may be executed again: after all others."""
DUE_INTERVAL = 0.25
"""Seconds between looks for items that have become due, while others wait."""


class Claims:
    """Reads claimable items from the journal, a page at a time. Never gives out an item twice before it was put back."""

    def __init__(self, reader: JournalReader, clock: Clock, must_wait: Callable[[Item], bool]) -> None:
        """``must_wait``: whether an item has to wait; it is not given out before it was freed."""
        self._reader = reader
        self._clock = clock
        self._must_wait = must_wait
        self._freed: deque[int] = deque()
        self._fresh = _Pages(reader.fresh_items)
        self._refused = _Pages(reader.refused_items)
        self._due: deque[Claimed] = deque()
        self._looked_at = float("-inf")
        self._held: set[int] = set()

    def take(self) -> Claimed | None:
        """The next item, or None if there is none at this moment."""
        while (claimed := self._next()) is not None:
            self._held.add(claimed.item.number)
            if not self._must_wait(claimed.item):
                return claimed
        return None

    def _next(self) -> Claimed | None:
        return self._take_due() or self._take_freed() or self._fresh.take() or self._refused.take()

    def free(self, numbers: Iterable[int]) -> bool:
        """Items that were held are to be looked at again; whether there are any."""
        self._freed.extend(numbers)
        return bool(self._freed)

    def release(self, number: int) -> None:
        """The item's end, or its return to the journal, is on disk."""
        self._held.discard(number)

    def next_due(self) -> float | None:
        """The time of day when the next item becomes due; None if none waits."""
        return self._reader.next_due()

    def look_again(self) -> None:
        """Items may have become due."""
        self._looked_at = float("-inf")

    def _take_freed(self) -> Claimed | None:
        row = self._reader.item(str(self._freed.popleft())) if self._freed else None
        if row is None:
            return None
        return Claimed(row.item, row.attempt, row.performances, row.failures, row.position)

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
    """Items in order of the input, a page at a time. ``read``: gives the next behind a position, up to a number of them."""

    def __init__(self, read: Callable[[int, int], list[Claimed]]) -> None:
        self._read = read
        self._page: deque[Claimed] = deque()
        self._position = -1
        self._left = True

    def take(self) -> Claimed | None:
        if not self._page and self._left:
            self._page.extend(self._read(self._position, PAGE))
            self._left = len(self._page) == PAGE
            if self._page:
                self._position = self._page[-1].position
        return self._page.popleft() if self._page else None
