"""The limits that a workload sets itself: how many do something at once in the whole run, wherever its items are executed."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable


class OwnLimits:
    """Who asks first gets in first. What is waiting gets its turn also while the run stops, as what is executed comes to its end then."""

    def __init__(self, maximum: Callable[[str], int | None]) -> None:
        """``maximum``: of a limit, by its name, at this moment; None for no limit."""
        self._maximum = maximum
        self._taken = Counter[str]()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def take_now(self, name: str) -> bool:
        """Take one, if nobody has to wait for that."""
        if name in self._waiting or not self._has_room(name):
            return False
        self._taken[name] += 1
        return True

    async def take(self, name: str) -> None:
        """Take one as soon as there is one."""
        if self.take_now(name):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._taken[name] -= 1
            self._admit(name)
            raise

    def give_back(self, name: str) -> None:
        self._taken[name] -= 1
        self._admit(name)

    def admit(self) -> None:
        """A maximum has changed. With a lower one, those that are at it come to their end."""
        for name in list(self._waiting):
            self._admit(name)

    def _has_room(self, name: str) -> bool:
        maximum = self._maximum(name)
        return maximum is None or self._taken[name] < maximum

    def _admit(self, name: str) -> None:
        waiting = self._waiting.get(name, deque())
        while waiting and (waiting[0].done() or self._has_room(name)):
            turn = waiting.popleft()
            if not turn.done():
                self._taken[name] += 1
                turn.set_result(None)
        if not waiting:
            self._waiting.pop(name, None)
