"""How many calls of one key may be in flight, found out by trying.

The limiter follows TCP's congestion control (RFC 5681) with calls in flight as its window: it doubles each round trip
until the first rate limit, then shrinks by a factor once per rate-limit episode and grows by a constant each round
trip, and it grows only while the window is really used. Where a person has requested more calls at once than the window begins
with, it begins with those; a rate limit before so many were answered takes it back to where it begins otherwise, still doubling.
"""

from __future__ import annotations

import asyncio
from collections import deque

from manyhands.core.clock import Clock
from manyhands.core.digests import derived_random
from manyhands.engine.contract import CallReport
from manyhands.engine.limits.budget import give_up

FIRST_LIMIT = 64
"""Calls in flight that a key starts with."""
CUT = 0.7
GROWTH = 4.0
"""Calls in flight gained per round trip after the first rate limit. More than TCP's 1, because a provider's limit is a
rate rather than a queue: losing one call to find the edge again is cheap, and idle capacity is not."""
MAX_HOLD_SECONDS = 1800.0
"""Seconds for which one rate limit can hold a key at most, whatever the server asks for."""
MAX_OWN_PAUSE = 60.0


class AdaptiveLimiter:
    """How many calls of one key may be in flight, found out by trying.

    ``acquire`` returns the episode that the call starts in, to be given back to ``release``. Waiters are served in
    order of arrival. Not for use from several threads.
    """

    def __init__(
        self,
        key: str,
        clock: Clock,
        *,
        initial: int = FIRST_LIMIT,
        wanted: int = 0,
        ceiling: int | None = None,
        first_pause: float = 1.0,
    ) -> None:
        """``initial``: calls in flight to begin with; ``wanted``: as many as a person wants in flight, if that is more."""
        if initial < 1 or (ceiling is not None and ceiling < 1):
            raise ValueError("at least one call must be allowed in flight")
        self._key = key
        self._clock = clock
        self._ceiling = float(ceiling) if ceiling is not None else float("inf")
        self._initial = min(float(initial), self._ceiling)
        self._limit = max(self._initial, min(float(wanted), self._ceiling))
        self._unproven = int(self._limit) if self._limit > self._initial else 0
        """Answers until it is known that the endpoint bears what was requested."""
        self._first_pause = first_pause
        self._slow_start = True
        self._waiters: deque[asyncio.Future[int]] = deque()
        self._held_until = 0.0
        self._hold: asyncio.Task[None] | None = None
        self._pauses = 0
        self.in_flight = 0
        self.episodes = 0

    @property
    def limit(self) -> int:
        """Calls that may be in flight now."""
        return int(self._limit)

    @property
    def waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiters)

    @property
    def held_for(self) -> float:
        """Seconds for which no call may start; 0 if calls may."""
        if not self._held_until:
            return 0.0
        left = self._held_until - self._clock.monotonic()
        if left <= 0:
            self._held_until = 0.0
            return 0.0
        return left

    @property
    def has_capacity(self) -> bool:
        """Whether a call could start at once."""
        return not self._waiters and self.in_flight < int(self._limit) and not self.held_for

    def want(self, calls: int) -> None:
        """A person wants as many calls in flight; they are tried where no rate limit was met so far."""
        wanted = min(float(calls), self._ceiling)
        if not self.episodes and wanted > self._limit:
            self._limit = wanted
            self._unproven = int(wanted)
            self._admit()

    def stop(self) -> None:
        """Give up all waits: they raise Interrupted."""
        give_up(self._waiters)

    def acquire_now(self) -> int | None:
        """As ``acquire``, where nothing has to be waited for; else None."""
        if self._waiters or self.in_flight >= int(self._limit) or self._held_until:
            return None
        self.in_flight += 1
        return self.episodes

    async def acquire(self) -> int:
        """Wait until one more call may be in flight. A cancelled wait leaves nothing behind."""
        episode = self.acquire_now()
        if episode is not None:
            return episode
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._admit()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # it was admitted in the same turn of the loop
                self.in_flight -= 1
            self._admit()
            raise

    def release(self, episode: int, report: CallReport) -> None:
        """End a call and learn from how the call went."""
        saturated = self.in_flight >= int(self._limit)
        self.in_flight -= 1
        if report.rate_limited:
            self._limited(episode, report.retry_after)
        elif not report.failed and episode == self.episodes:
            self._pauses = 0
            if self._unproven:
                self._unproven -= 1
            if saturated:
                self._grow()
        if report.remaining is not None and report.remaining <= 0 and report.reset_after:
            self._hold_until(report.reset_after)
        if self._waiters:
            self._admit()

    def _grow(self) -> None:
        self._limit = min(self._limit + (1.0 if self._slow_start else GROWTH / self._limit), self._ceiling)

    def _limited(self, episode: int, retry_after: float | None) -> None:
        if episode == self.episodes:
            self.episodes += 1
            self._cut()
            self._pauses += 1
            pause = self._own_pause() if retry_after is None else max(retry_after, self._min_pause())
            self._hold_until(pause)
        elif retry_after is not None:
            self._hold_until(retry_after)

    def _cut(self) -> None:
        if self._unproven:
            self._unproven = 0
            self._limit = min(self._limit * CUT, self._initial)
        else:
            self._slow_start = False
            self._limit = max(1.0, self._limit * CUT)

    def _own_pause(self) -> float:
        pause = min(MAX_OWN_PAUSE, self._first_pause * 2.0 ** min(self._pauses - 1, 16))
        return pause * (1.0 + 0.25 * derived_random("pause", self._key, self.episodes).random())

    def _min_pause(self) -> float:
        """So that a server that always says ``Retry-After: 0`` is not called in a tight loop."""
        return min(1.0, 0.01 * 2.0 ** min(self._pauses - 1, 16))

    def _hold_until(self, seconds: float) -> None:
        end = self._clock.monotonic() + min(seconds, MAX_HOLD_SECONDS)
        self._held_until = max(self._held_until, end)

    def _admit(self) -> None:
        waiters = self._waiters
        while waiters:
            if waiters[0].done():
                waiters.popleft()
            elif self.in_flight >= int(self._limit):
                return
            elif self.held_for > 0:
                self._wake_after_hold()
                return
            else:
                self.in_flight += 1
                waiters.popleft().set_result(self.episodes)

    def _wake_after_hold(self) -> None:
        if self._hold is None or self._hold.done():
            self._hold = asyncio.get_running_loop().create_task(self._wait_for_hold())

    async def _wait_for_hold(self) -> None:
        while (left := self.held_for) > 0:
            await self._clock.sleep(max(left, 0.001))
        self._hold = None
        self._admit()
