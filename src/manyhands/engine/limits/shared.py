"""Requests that an endpoint refuses one after the other, as with a model that does not exist: found out before every item has failed.

What bounds paid calls: an adaptive limiter of concurrency for each key, and the run's budget (see ``budget``).

The limiter follows TCP's congestion control (RFC 5681) with calls in flight as its window: it doubles each round trip
until the first rate limit, then shrinks by a factor once per rate-limit episode and grows by a constant each round
trip, and it grows only while the window is really used.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.digests import derived_random
from manyhands.core.errors import Interrupted
from manyhands.core.text import one_line, shape
from manyhands.core.usage import ZERO, Reserve
from manyhands.engine.contract import CallReport
from manyhands.engine.limits.budget import Budget as Budget
from manyhands.engine.limits.budget import give_up
from manyhands.engine.limits.waits import Trouble, Wait

MOST = 20
"""Identical refusals without an answer in between, after which the run stops."""
LONGEST = 4000
"""Characters of a failure that are looked through."""
MOST_SENTENCES = 100
"""Different refusals of one model that are counted and told."""


class Refusals:
    """Counts refusals by what was asked (a model at an endpoint) and by what was said, until an answer comes.

    Refusals are identical if they say the same but for numbers and ids. ``notice`` is told of each that is new, as long as there has
    been no answer.
    """

    def __init__(self) -> None:
        self.notice: Callable[[str], None] = lambda text: None
        self._streaks: dict[str, Counter[str]] = {}
        self._answered: set[str] = set()
        self._told: set[str] = set()
        self.reason: str | None = None
        """Why nothing comes of going on; None if something may."""

    def refused(self, asked: str, said: str, *, by_content: bool = False) -> None:
        """A call was refused. ``by_content``: perhaps for what it asked, which is so if another call was answered before."""
        if by_content and asked in self._answered:
            return
        same = shape(said)
        streak = self._streaks.setdefault(asked, Counter())
        if same not in streak and len(streak) >= MOST_SENTENCES:
            return
        streak[same] += 1
        if asked not in self._answered and same not in self._told and len(self._told) < MOST_SENTENCES:
            self._told.add(same)
            self.notice(said)
        if streak[same] >= MOST and self.reason is None:
            self.reason = (
                f"{said} ({MOST} refusals of that kind and no answer in between, so that all others would be refused, too; "
                "what was refused stays pending)"
            )

    def answered(self, asked: str) -> None:
        """A call was answered."""
        self._answered.add(asked)
        self._streaks.pop(asked, None)

    def explains(self, message: str) -> bool:
        """Whether an item's failure is one of the refusals that no answer has followed."""
        if not self._streaks:
            return False
        same = shape(one_line(message, LONGEST))
        return any(sentence in same for streak in self._streaks.values() for sentence in streak)


FIRST_LIMIT = 64
"""Calls in flight that a key starts with."""
CUT = 0.7
GROWTH = 4.0
"""Calls in flight gained per round trip after the first rate limit. More than TCP's 1, because a provider's limit is a
rate rather than a queue: losing one call to find the edge again is cheap, and idle capacity is not."""
LONGEST_HOLD = 1800.0
"""Seconds for which one rate limit can hold a key at most, whatever the server asks for."""
LONGEST_OWN_PAUSE = 60.0


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
        ceiling: int | None = None,
        first_pause: float = 1.0,
    ) -> None:
        if initial < 1 or (ceiling is not None and ceiling < 1):
            raise ValueError("at least one call must be allowed in flight")
        self._key = key
        self._clock = clock
        self._ceiling = float(ceiling) if ceiling is not None else float("inf")
        self._limit = min(float(initial), self._ceiling)
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

    def stop(self) -> None:
        """Give up all waits: they raise Interrupted."""
        give_up(self._waiters)

    async def acquire(self) -> int:
        """Wait for a place. A cancelled wait leaves nothing behind."""
        if not self._waiters and self.in_flight < int(self._limit) and not self._held_until:
            self.in_flight += 1
            return self.episodes
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._admit()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # the place was given in the same turn of the loop
                self.in_flight -= 1
            self._admit()
            raise

    def release(self, episode: int, report: CallReport) -> None:
        """Give the place back and learn from how the call went."""
        saturated = self.in_flight >= int(self._limit)
        self.in_flight -= 1
        if report.rate_limited:
            self._limited(episode, report.retry_after)
        elif not report.failed and episode == self.episodes:
            self._pauses = 0
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
            self._slow_start = False
            self._limit = max(1.0, self._limit * CUT)
            self._pauses += 1
            pause = self._own_pause() if retry_after is None else max(retry_after, self._least_pause())
            self._hold_until(pause)
        elif retry_after is not None:
            self._hold_until(retry_after)

    def _own_pause(self) -> float:
        pause = min(LONGEST_OWN_PAUSE, self._first_pause * 2.0 ** min(self._pauses - 1, 16))
        return pause * (1.0 + 0.25 * derived_random("pause", self._key, self.episodes).random())

    def _least_pause(self) -> float:
        """So that a server that always says ``Retry-After: 0`` is not asked in a tight loop."""
        return min(1.0, 0.01 * 2.0 ** min(self._pauses - 1, 16))

    def _hold_until(self, seconds: float) -> None:
        end = self._clock.monotonic() + min(seconds, LONGEST_HOLD)
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


class Mark(Protocol):
    """Where it is on disk how much the run may have spent at most, so that a budget holds over a kill (see ``spending``)."""

    async def cover(self, budget: Budget) -> None:
        """Done when what is spent and reserved is covered."""
        ...

    def settled(self, budget: Budget) -> None:
        """A reservation ended."""
        ...


class SharedLimits:
    """The ``Limits`` of a run: a limiter per key and one budget, shared by everything that performs its items.

    ``initial`` and ``ceiling``: calls in flight that each key starts with, and has at most. ``first_pause``: seconds of
    the first pause after a rate limit without ``Retry-After``. ``mark``: where it is kept what may have been spent. ``notice``: is told
    what calls remark, each once.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        budget: Budget | None = None,
        initial: int = FIRST_LIMIT,
        ceiling: int | None = None,
        first_pause: float = 1.0,
        mark: Mark | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.refusals = Refusals()
        self.on_refused: Callable[[], None] = lambda: None
        """Is called at every refusal."""
        self._troubles: dict[str, Trouble] = {}
        self.budget = budget or Budget(clock=self._clock)
        self._mark = mark if self.budget.max_cost is not None or self.budget.max_total_tokens is not None else None
        self._initial = initial if ceiling is None else min(initial, ceiling)
        self._ceiling = ceiling
        self._first_pause = first_pause
        self._limiters: dict[str, AdaptiveLimiter] = {}
        self._permits: dict[int, tuple[str, int, Reserve]] = {}
        self._next = 0
        self._stopped = False
        self._notice = notice
        self._remarked: set[str] = set()

    async def acquire(self, key: str, reserve: Reserve) -> int:
        """Reserve the call's worst case and wait for a place; the permit is for ``release``.

        Raises ItemError(OVER_BUDGET), and StorageError if it can't be kept what may be spent. A cancelled or failed
        acquire leaves nothing behind.
        """
        if self._stopped:
            raise Interrupted
        limiter = self._limiters.get(key) or self._new_limiter(key)
        held = self.budget.reserve_now(reserve) or await self.budget.reserve(reserve)
        try:
            if self._mark is not None:
                await self._mark.cover(self.budget)
            episode = await limiter.acquire()
        except BaseException:
            self.budget.settle(held, ZERO)
            raise
        self._next += 1
        self._permits[self._next] = (key, episode, held)
        return self._next

    def release(self, permit: int, report: CallReport) -> None:
        """End a call. Raises ValueError for a permit that is not held (never given, or released before)."""
        held = self._permits.pop(permit, None)
        if held is None:
            raise ValueError(f"permit {permit} is not held")
        if report.remark is not None and report.remark not in self._remarked:
            self._remarked.add(report.remark)
            self._notice(report.remark)
        key, episode, reserve = held
        self.budget.settle(reserve, report.usage, unknown=report.unknown)
        if self._mark is not None:
            self._mark.settled(self.budget)
        self._limiters[key].release(episode, report)
        self._learn(key, reserve.model or key, report)

    def waits(self) -> list[Wait]:
        """What calls wait for now."""
        now = self._clock.now()
        found = [
            trouble.wait(now, self._limiters[key].held_for, self._limiters[key].waiting)
            for key, trouble in self._troubles.items()
        ]
        return [wait for wait in (*found, self.budget.wait(now)) if wait is not None]

    def _learn(self, key: str, asked: str, report: CallReport) -> None:
        """What a call says about its endpoint."""
        if not report.failed and not report.rate_limited:
            self.refusals.answered(asked)
            if key in self._troubles:
                self._troubles[key].answered()
        elif report.refused:
            self.refusals.refused(asked, report.said or asked, by_content=report.by_content)
            self.on_refused()
        used_up = report.remaining is not None and report.remaining <= 0 and report.reset_after
        if not (report.rate_limited or report.again_in is not None or used_up):
            return
        trouble, now = self._troubles.setdefault(key, Trouble()), self._clock.now()
        if not used_up:
            trouble.failed(now, report.said or "the call failed", report.again_in)
        if report.rate_limited:
            trouble.held(now, trouble.why)
        elif used_up:
            trouble.held(now, f"{key.partition('#')[0]}: what it allows in a while is used up, as it says itself")

    def stop(self) -> None:
        """No further call may be made: whoever waits for one, or asks later, gets Interrupted."""
        self._stopped = True
        self.budget.stop()
        for limiter in self._limiters.values():
            limiter.stop()

    def snapshot(self) -> dict[str, Any]:
        """Figures for display, as JSON."""
        return {
            "keys": {
                key: {
                    "limit": limiter.limit,
                    "in_flight": limiter.in_flight,
                    "waiting": limiter.waiting,
                    "episodes": limiter.episodes,
                    "held_for": round(limiter.held_for, 3),
                }
                for key, limiter in self._limiters.items()
            },
            "budget": {
                "spent": self.budget.spent.to_json(),
                "elapsed": round(self.budget.elapsed, 3),
                "reason": self.budget.reason,
            },
        }

    def _new_limiter(self, key: str) -> AdaptiveLimiter:
        limiter = AdaptiveLimiter(
            key, self._clock, initial=self._initial, ceiling=self._ceiling, first_pause=self._first_pause
        )
        self._limiters[key] = limiter
        return limiter
