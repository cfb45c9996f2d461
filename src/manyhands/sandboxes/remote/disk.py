"""The bound on the disk space of a world whose driver can tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.files.disk_watch import size_in_words

_EVERY = 10.0
_SECONDS = 60.0


class WorldWatch:
    """Looks at the size of a world every ten seconds while anything runs in it, and when asked. ``size``: bytes, None if that is not known;
    ``end``: ends the world and removes its files; ``busy``: whether anything runs; ``every``: seconds."""

    def __init__(
        self,
        limit: int,
        *,
        size: Callable[[], Awaitable[int | None]],
        end: Callable[[], Awaitable[None]],
        busy: Callable[[], bool],
        every: float = _EVERY,
    ) -> None:
        self._limit = limit
        self._size = size
        self._end = end
        self._busy = busy
        self._every = every
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self._failure: ItemError | None = None
        self._told = True
        """Whether the driver tells it at all, as far as is known."""

    def check(self) -> None:
        """Raises ItemError(SANDBOX_LIMIT) if the world was ended."""
        if self._failure is not None:
            raise ItemError(self._failure.cause, self._failure.message)

    def watch(self) -> None:
        """Something runs."""
        if self._told and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._go_on())

    async def look(self) -> int | None:
        """Look now: the size in bytes, None if that is not known; ends the world if it is too large."""
        async with self._looking:
            if not self._told or self._failure is not None:
                return None
            size = None
            with suppress(ItemError, TimeoutError):  # whoever uses the world learns what is wrong with it
                async with asyncio.timeout(_SECONDS):
                    size = await self._size()
                self._told = size is not None
            if size is not None and size > self._limit:
                what = f"disk quota exceeded: {size_in_words(size)} of {size_in_words(self._limit)}"
                self._failure = ItemError(Cause.SANDBOX_LIMIT, f"{what}; its files were removed")
                await self._end()
            return size

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _go_on(self) -> None:
        while self._told and self._failure is None:
            await asyncio.sleep(self._every)
            if not self._busy():
                return
            await self.look()
