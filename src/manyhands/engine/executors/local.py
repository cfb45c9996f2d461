"""Items executed in this process's event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from manyhands.engine.attempt import AttemptResult, AttemptSettings, Claim, run_attempt
from manyhands.engine.contract import Workload


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
