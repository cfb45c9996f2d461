"""A pause of a run in one process: nothing new begins, what is in flight ends, and time limits stand still."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Pause:
    """Whether the run is paused. Made and used on one event loop."""

    def __init__(self) -> None:
        self.active = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._limits: dict[asyncio.Timeout, float | None] = {}
        """Time limits that hold now, and what was left of each when the pause began."""

    def begin(self) -> None:
        """Pause."""
        if not self.active:
            self.active = True
            self._limits = {limit: _stopped(limit) for limit in self._limits}

    def end(self) -> None:
        """Go on."""
        if self.active:
            self.active = False
            for limit, left in self._limits.items():
                _started(limit, left)
        self.wake()

    def wake(self) -> None:
        """Have everyone look again who waits for a change."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    async def change(self) -> None:
        """Wait until the pause has ended, or something else has changed that concerns those who wait."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    @asynccontextmanager
    async def time_limit(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """As ``asyncio.timeout``, with a time limit that stands still during a pause."""
        async with asyncio.timeout(seconds) as limit:
            self._limits[limit] = _stopped(limit) if self.active else None
            try:
                yield limit
            finally:
                del self._limits[limit]


def _stopped(limit: asyncio.Timeout) -> float | None:
    """Have a time limit stand still; the seconds that are left of it."""
    when = limit.when()
    if when is None:
        return None
    with suppress(RuntimeError):  # it is over
        limit.reschedule(None)
    return when - asyncio.get_running_loop().time()


def _started(limit: asyncio.Timeout, left: float | None) -> None:
    if left is not None:
        with suppress(RuntimeError):
            limit.reschedule(asyncio.get_running_loop().time() + left)
