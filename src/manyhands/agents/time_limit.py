"""How long a conversation may take, as a rule that gives the same on a replay.

What counts is the time in which its steps are had: a pause of the run, or the time between a crash and the resume, does not. Every step
says in what is recorded of it how much was used up by then (``elapsed``), and the end is recorded as the output of the model call that was
not made any more, or was cut off. So a replay knows both without a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from manyhands.core.clock import Clock

OVER = "time_limit"
"""In the output of a model step: the seconds after which there was no time left."""
ELAPSED = "elapsed"
"""In the outputs of steps: the seconds that were used up after it."""


class TimeLimit:
    """The time limit of one conversation."""

    __slots__ = ("_clock", "_in_flight", "_seconds", "_since", "_used")

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._used = 0.0
        self._in_flight = 0
        self._since = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds used up, to milliseconds."""
        running = self._clock.monotonic() - self._since if self._in_flight else 0.0
        return round(self._used + max(0.0, running), 3)

    @property
    def left(self) -> float:
        """Seconds that are left; negative when it is over."""
        return self._seconds - self.elapsed

    def replayed(self, output: Mapping[str, Any]) -> None:
        """A step was replayed: take over what it says."""
        self._used = max(self._used, float(output.get(ELAPSED, 0.0)))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Within this time counts; once, if several are within it."""
        if not self._in_flight:
            self._since = self._clock.monotonic()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._used += max(0.0, self._clock.monotonic() - self._since)

    @asynccontextmanager
    async def cutting_off(self) -> AsyncIterator[asyncio.Timeout]:
        """Cuts off what is awaited within it when no time is left; the timeout then has expired, and nothing is raised."""
        limit = asyncio.timeout(max(0.0, self.left))
        try:
            async with limit:
                yield limit
        except TimeoutError:
            if not limit.expired():
                raise
