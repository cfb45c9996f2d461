"""Items performed in this process's event loop.

What the engine asks of an executor.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, Protocol

from manyhands.engine.attempt import Claim, Performed, Surroundings, perform_item
from manyhands.engine.contract import Workload


class LocalExecutor:
    """``capacity`` items at once on the loop of the engine itself; thousands are fine."""

    def __init__(
        self, workload: Workload, surroundings: Surroundings, capacity: int, item_timeout: float | None
    ) -> None:
        self._workload = workload
        self._surroundings = surroundings
        self._capacity = capacity
        self._item_timeout = item_timeout
        self._stack = AsyncExitStack()

    @property
    def capacity(self) -> int:
        return self._capacity

    async def start(self) -> None:
        await self._stack.enter_async_context(self._workload.performing())

    def perform(self, claim: Claim) -> Coroutine[Any, Any, Performed]:
        return perform_item(self._workload, self._surroundings, claim, self._item_timeout)

    def stop(self) -> None:
        self._surroundings.stopping = True

    async def close(self) -> None:
        await self._stack.aclose()


class Executor(Protocol):
    """Performs items somewhere. Only the engine's own process writes the journal: an executor records steps through it."""

    @property
    def capacity(self) -> int:
        """Items it can have in flight."""
        ...

    async def start(self) -> None:
        """Get ready. Raises UserError if the workload can't be performed as configured."""
        ...

    async def perform(self, claim: Claim) -> Performed:
        """Perform an item once. Raises StorageError or UserError for what no item is to blame for."""
        ...

    def stop(self) -> None:
        """Begin no further steps; those in flight end and are recorded."""
        ...

    async def close(self) -> None:
        """End at once whatever still runs, and leave nothing behind. Idempotent."""
        ...
