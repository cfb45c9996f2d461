"""Items performed in this process's event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from manyhands.engine.performance import Claim, Performed, Surroundings, perform_item
from manyhands.engine.workload import Workload


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
