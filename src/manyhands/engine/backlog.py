"""Ends of items that are not on disk yet, and how far whoever claims items may be ahead of the disk."""

from __future__ import annotations

import asyncio
from collections import deque

MAX_UNSETTLED = 1000
"""Ends of items that may wait for their commit before nothing more is claimed, where there are not more slots than that anyway."""


class Waiters:
    """Those who wait for something, in their order. Made and used on one event loop."""

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def wait(self) -> None:
        """Wait to be woken."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        await future

    def wake(self) -> bool:
        """Wake the first that still waits; False if none does."""
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)
                return True
        return False

    def wake_all(self) -> None:
        """Wake all."""
        while self.wake():
            pass


class Backlog:
    """How many ends of items wait for their commit. Made and used on one event loop."""

    def __init__(self, slots: int) -> None:
        self._items = 0
        self._waiters = Waiters()
        self._woken = False
        self._empty: asyncio.Future[None] | None = None
        self.resize(slots)

    def __len__(self) -> int:
        return self._items

    def resize(self, slots: int) -> None:
        """There are so many slots from now on."""
        self._most = max(MAX_UNSETTLED, slots)

    def add(self) -> None:
        """An item has ended."""
        self._items += 1

    def remove(self) -> None:
        """An end is on disk, or can't be written."""
        self._items -= 1
        self.wake()
        if self._empty is not None and not self._empty.done() and not self._items:
            self._empty.set_result(None)

    @property
    def full(self) -> bool:
        """Whether nothing more may be claimed."""
        return self._items >= self._most

    async def room(self) -> None:
        """Wait for a commit. Items that take no step never wait for one otherwise: a single slot would go through all of them, and
        neither the journal nor anybody else would get a turn."""
        try:
            await self._waiters.wait()
        finally:
            self._woken = False

    def wake(self) -> None:
        """Wake one who waits for room, and no other before that one had its turn: it may well begin all that may be begun."""
        if self._waiters and not self._woken and not self.full:
            self._woken = self._waiters.wake()

    def wake_all(self) -> None:
        """Wake all who wait for room."""
        self._waiters.wake_all()

    async def emptied(self) -> None:
        """Wait until all ends are on disk."""
        if self._items:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty
