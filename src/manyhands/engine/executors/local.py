"""What an executor is, and the one that executes items in this process's event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, Protocol

from manyhands.engine.attempt import AttemptResult, AttemptSettings, Claim, run_attempt
from manyhands.engine.contract import Workload


class Executor(Protocol):
    """Executes items somewhere. Only the scheduler's own process writes the journal: an executor records steps through it."""

    @property
    def capacity(self) -> int:
        """Items it can have in flight."""
        ...

    async def start(self) -> None:
        """Get ready. Raises UserError if the workload can't be used as configured."""
        ...

    async def execute(self, claim: Claim) -> AttemptResult:
        """Execute an item once. Raises StorageError or UserError for what no item is to blame for."""
        ...

    def stop(self) -> None:
        """Begin no further steps; those in flight end and are recorded."""
        ...

    async def close(self) -> None:
        """End at once whatever still runs, and leave nothing behind. Idempotent."""
        ...


class LocalExecutor:
    """``capacity`` items at once on the loop of the engine itself; thousands are fine."""

    def __init__(
        self, workload: Workload, settings: AttemptSettings, capacity: int, item_timeout: float | None
    ) -> None:
        self._workload = workload
        self._settings = settings
        self._capacity = capacity
        self._item_timeout = item_timeout
        self._stack = AsyncExitStack()

    @property
    def capacity(self) -> int:
        return self._capacity

    async def start(self) -> None:
        await self._stack.enter_async_context(self._workload.opened())

    def execute(self, claim: Claim) -> Coroutine[Any, Any, AttemptResult]:
        return run_attempt(self._workload, self._settings, claim, self._item_timeout)

    def stop(self) -> None:
        self._settings.stopping = True

    async def close(self) -> None:
        await self._stack.aclose()
