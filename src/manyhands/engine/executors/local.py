"""What an executor is, and the one that executes items in this process's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Protocol

from manyhands.engine.attempt import AttemptResult, AttemptSettings, Claim, Stopped, run_attempt
from manyhands.engine.contract import Workload


class Executor(Protocol):
    """Executes items somewhere. Only the scheduler's own process writes the journal: an executor records steps through it."""

    async def start(self) -> None:
        """Get ready. Raises UserError if the workload can't be used as configured."""
        ...

    async def execute(self, claim: Claim) -> AttemptResult:
        """Execute an item once. Raises StorageError or UserError for what no item is to blame for."""
        ...

    def stop(self) -> None:
        """Begin no further steps; those in flight end and are recorded."""
        ...

    def pause(self) -> None:
        """Begin no further steps until ``go_on``."""
        ...

    def go_on(self) -> None:
        """Begin steps again."""
        ...

    def cancel(self, items: Iterable[int]) -> None:
        """Begin no further steps of these items, by their numbers: each ends with Stopped unless it comes to its end."""
        ...

    def abandon(self, item: int) -> None:
        """End what is executed of an item at once; it ends with Stopped."""
        ...

    def over(self, item: int, attempt: int, *, failed: bool | None) -> None:
        """An attempt goes on no more, which is on disk. ``failed``: how its item ended; None if that goes on with another attempt."""
        ...

    def resize(self, capacity: int) -> None:
        """Be able to have so many items in flight."""
        ...

    async def close(self) -> None:
        """End at once whatever still runs, and leave nothing behind. Idempotent."""
        ...


class LocalExecutor:
    """Items at once on the loop of the engine itself; thousands are fine."""

    def __init__(self, workload: Workload, settings: AttemptSettings, item_timeout: float | None) -> None:
        self._workload = workload
        self._settings = settings
        self._item_timeout = item_timeout
        self._stack = AsyncExitStack()
        self._tasks: dict[int, asyncio.Task[object] | None] = {}
        self._abandoned: set[int] = set()

    async def start(self) -> None:
        await self._stack.enter_async_context(self._workload.opened())

    async def execute(self, claim: Claim) -> AttemptResult:
        number = claim.item.number
        task = self._tasks[number] = asyncio.current_task()
        try:
            result = await run_attempt(self._workload, self._settings, claim, self._item_timeout)
            if task is not None and number in self._abandoned:  # the workload came to an end all the same
                task.uncancel()
            return result
        except asyncio.CancelledError:
            if task is None or number not in self._abandoned or task.uncancel():
                raise
            return Stopped()
        finally:
            del self._tasks[number]
            self._abandoned.discard(number)
            self._settings.cancelled.discard(number)

    def stop(self) -> None:
        self._settings.stopping = True
        self._settings.pause.end()

    def pause(self) -> None:
        self._settings.pause.begin()

    def go_on(self) -> None:
        self._settings.pause.end()

    def cancel(self, items: Iterable[int]) -> None:
        self._settings.cancelled.update(self._tasks.keys() & set(items))
        self._settings.pause.wake()

    def abandon(self, item: int) -> None:
        task = self._tasks.get(item)
        if task is not None and item not in self._abandoned:
            self._abandoned.add(item)
            task.cancel()

    def over(self, item: int, attempt: int, *, failed: bool | None) -> None:
        return

    def resize(self, capacity: int) -> None:
        return

    async def close(self) -> None:
        await self._stack.aclose()
