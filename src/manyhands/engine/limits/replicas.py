"""Which of several replicas a call is made with: servers of the same model, API keys of the same endpoint, or both.

A conversation stays with its replica, in whose prefix cache it is, as long as that is healthy and has capacity. Others go where they are
expected to wait least: calls in flight times the seconds that a call takes there, an exponential moving average (after the
"peak EWMA" of Finagle and Linkerd, without its peaks). Among replicas that are about alike, it is each one's turn.

A replica is left out if a call shows that nothing comes of it (no connection, a refused key), or if ``OUT_AFTER`` calls in a row
failed. After a pause, which doubles each time, one call tries it again. If all are left out, calls are made with the one
that is to be tried first, so that what follows is what follows of a single endpoint that is down.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from manyhands.core.clock import Clock
from manyhands.core.text import shape
from manyhands.engine.contract import GIVEN_BACK, CallReport, OneOf
from manyhands.engine.limits.adaptive import AdaptiveLimiter
from manyhands.engine.limits.budget import give_up

OUT_AFTER = 3
"""Failures in a row that leave a replica out, where one could be chance."""
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
"""Seconds until a replica that was left out is tried again; a call that took longer to fail makes it as long as that."""
FREE_ELSEWHERE = 0.75
"""A conversation leaves a replica that has no capacity left if another one uses no more than this share of its own."""
ALIKE = 1.25
"""Replicas whose expected waits differ by no more than this factor take turns."""
NEWEST = 0.2
"""The weight of the newest call in the average of their seconds."""
MIN_SECONDS = 0.05
"""Quicker calls count as this long: what they differ by then is chance."""
LOOK_SECONDS = 1.0
"""Calls that wait look at least as often for a replica that can take them."""
GONE_SECONDS = 30.0
"""A replica that no call might choose for so long is shown no more."""
MAX_TOLD = 1000
"""Different failures that are told."""
LimiterAmong = Callable[[str, int], AdaptiveLimiter]
"""The limiter of a key, which is one of so many."""


@dataclass(slots=True)
class _Replica:
    key: str
    limiter: AdaptiveLimiter
    offered_at: float
    """When a call might last choose it (monotonic)."""
    among: int
    """How many there were then, itself included."""
    answered: int = 0
    failed: int = 0
    in_a_row: int = 0
    """Failures since the last answer."""
    turn: int = 0
    """When a call last chose it, counted in choices."""
    out_since: float | None = None
    """The time of day since which it is left out."""
    out_until: float = 0.0
    """When it is to be tried again (monotonic)."""
    pauses: int = 0
    trying: bool = False
    """Whether a call tries it that was left out."""
    why: str = ""
    """Why it is left out."""
    told: bool = False
    """Whether it was told that it is left out."""

    @property
    def use(self) -> float:
        """The share of its capacity that is in use."""
        return self.limiter.in_flight / self.limiter.limit

    @property
    def address(self) -> str:
        return self.key.partition("#")[0]


class Replicas:
    """The replicas that calls of a run choose among. Not for use from several threads."""

    def __init__(self, limiter_among: LimiterAmong, clock: Clock, notice: Callable[[str], None]) -> None:
        self.by_key: dict[str, _Replica] = {}
        """All that calls might ever choose; empty in a run whose endpoints have none."""
        self._limiter_among = limiter_among
        self._clock = clock
        self._notice = notice
        self._seconds: dict[str, float] = {}
        """That a call takes, by address: keys make no difference."""
        self._choices = 0
        self._began: dict[int, float] = {}
        self._waited = 0
        self._waiters: dict[OneOf, deque[tuple[int, asyncio.Future[tuple[str, int]]]]] = {}
        """By what they want, numbered in the order in which they came. For calls that want the same, the same replica is chosen."""
        self._looking: asyncio.Task[None] | None = None
        self._told: set[tuple[str, str]] = set()

    # --- Choosing

    def acquire_now(self, wanted: OneOf) -> tuple[str, int] | None:
        """The key that a call is to be made with, and the episode in which it starts (see ``AdaptiveLimiter``); None if it must wait."""
        now = self._clock.monotonic()
        replica = self._chosen(wanted, [self._offered(key, len(wanted.keys), now) for key in wanted.keys], now)
        episode = None if replica is None else replica.limiter.acquire_now()
        if replica is None or episode is None:
            return None
        self._choices += 1
        replica.turn = self._choices
        replica.trying = replica.out_since is not None
        return replica.key, episode

    async def acquire(self, wanted: OneOf) -> tuple[str, int]:
        """As ``acquire_now``, waiting if need be. A cancelled wait leaves nothing behind. Raises Interrupted if the run stops."""
        taken = self.acquire_now(wanted)
        if taken is not None:
            return taken
        waiter: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        self._waited += 1
        self._waiters.setdefault(wanted, deque()).append((self._waited, waiter))
        self._look_later()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                key, episode = waiter.result()  # it was admitted in the same turn of the loop
                self.by_key[key].limiter.release(episode, GIVEN_BACK)
                self.given_back(key)
            raise

    def given_back(self, key: str) -> None:
        """A call that was let begin with a replica did not begin; others may."""
        if key in self.by_key:
            self.by_key[key].trying = False
            self.admit()

    def share(self, key: str, calls: int) -> int:
        """How many of all calls in flight are for a key, which may be no replica's."""
        return share_of(calls, self.by_key[key].among if key in self.by_key else 1)

    def stop(self) -> None:
        """Give up all waits: they raise Interrupted."""
        give_up(waiter for queue in self._waiters.values() for _, waiter in queue)

    def waiting(self) -> tuple[str | None, int]:
        """How many calls wait because no replica may take one for a while, and the key of the one that may first."""
        waiting = [
            (number, wanted) for wanted, queue in self._waiters.items() for number, waiter in queue if not waiter.done()
        ]
        if not waiting:
            return None, 0
        _, wanted = min(waiting, key=itemgetter(0))
        return min(wanted.keys, key=lambda key: self.by_key[key].limiter.held_for), len(waiting)

    def _offered(self, key: str, count: int, now: float) -> _Replica:
        replica = self.by_key.get(key)
        if replica is None:
            replica = self.by_key[key] = _Replica(key, self._limiter_among(key, count), now, count)
        replica.offered_at, replica.among = now, count
        return replica

    def _chosen(self, wanted: OneOf, replicas: Sequence[_Replica], now: float) -> _Replica | None:
        """The replica for a call; None if it must wait for one."""
        others = [replica for replica in replicas if replica.key not in wanted.avoid]
        healthy = [replica for replica in replicas if replica.out_since is None]
        usable = [replica for replica in healthy if replica.key not in wanted.avoid] or healthy
        if not usable:
            return min(others or replicas, key=lambda replica: replica.out_until)
        last = next((replica for replica in usable if replica.key == wanted.last), None)
        if last is not None and last.limiter.has_capacity:
            return last
        if (last is None or last.limiter.held_for) and (
            due := [replica for replica in others if _is_due(replica, now)]
        ):
            return due[0]
        free = [replica for replica in usable if replica.limiter.has_capacity]
        if last is not None and not last.limiter.held_for:
            free = [replica for replica in free if replica.use <= FREE_ELSEWHERE]
        return self._least_loaded(free) if free else None

    def _least_loaded(self, replicas: Sequence[_Replica]) -> _Replica:
        """The one where a call is expected to wait least. One of which nothing is known counts as quick as the quickest."""
        known = [self._seconds.get(replica.address) for replica in replicas]
        quickest = min((seconds for seconds in known if seconds is not None), default=1.0)
        waits = [
            (replica.limiter.in_flight + 1) * (quickest if seconds is None else seconds)
            for replica, seconds in zip(replicas, known, strict=True)
        ]
        least = min(waits)
        alike = [replica for replica, wait in zip(replicas, waits, strict=True) if wait <= ALIKE * least]
        return min(alike, key=lambda replica: replica.turn)

    def admit(self) -> None:
        """Let calls begin that wait, in their order, as far as there is capacity."""
        first = [(self._waiters[wanted][0][0], wanted) for wanted in list(self._waiters) if self._still(wanted)]
        heapq.heapify(first)
        full: set[tuple[str, ...]] = set()
        while first:
            _, wanted = heapq.heappop(first)
            taken = None if wanted.keys in full else self.acquire_now(wanted)
            if taken is None:  # nor is there anything for others that want the same
                if not self._may_take(wanted.keys):
                    full.add(wanted.keys)
                continue
            self._waiters[wanted].popleft()[1].set_result(taken)
            if self._still(wanted):
                heapq.heappush(first, (self._waiters[wanted][0][0], wanted))
        self._look_later()

    def _still(self, wanted: OneOf) -> bool:
        """Whether a call waits for this. Those that were given up are forgotten as far as they would be next."""
        queue = self._waiters[wanted]
        while queue and queue[0][1].done():
            queue.popleft()
        if not queue:
            del self._waiters[wanted]
        return bool(queue)

    def _may_take(self, keys: Sequence[str]) -> bool:
        """Whether one of them may take some call."""
        replicas, now = [self.by_key[key] for key in keys], self._clock.monotonic()
        usable = [replica for replica in replicas if replica.out_since is None or _is_due(replica, now)]
        return any(replica.limiter.has_capacity for replica in usable or replicas)

    def _look_later(self) -> None:
        if self._waiters and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Once a hold is over, or in a while, see who may begin."""
        held = [held for replica in self.by_key.values() if (held := replica.limiter.held_for) > 0]
        await self._clock.sleep(max(0.001, min([*held, LOOK_SECONDS])))
        self._looking = None
        self.admit()

    # --- Learning

    def began(self, key: str, permit: int) -> None:
        """A call begins."""
        if key in self.by_key:
            self._began[permit] = self._clock.monotonic()

    def released(self, key: str, permit: int, report: CallReport) -> None:
        """Learn from how a call went, and let others begin."""
        replica, now = self.by_key.get(key), self._clock.monotonic()
        if replica is None:
            return
        seconds = now - self._began.pop(permit, now)
        if report.unhealthy:
            self._failed(replica, report, seconds, now)
        elif not report.failed or report.said is not None:
            self._alive(replica, report, seconds)
        else:  # a call that was given up, or never begun, says nothing
            replica.trying = False
        if self._waiters:
            self.admit()

    def _alive(self, replica: _Replica, report: CallReport, seconds: float) -> None:
        if not report.failed:
            replica.answered += 1
            seconds, before = max(seconds, MIN_SECONDS), self._seconds.get(replica.address)
            self._seconds[replica.address] = seconds if before is None else before + NEWEST * (seconds - before)
        replica.in_a_row = replica.pauses = 0
        replica.trying = False
        if replica.out_since is None:
            return
        away, replica.out_since = self._clock.now() - replica.out_since, None
        if replica.told:
            replica.told = False
            self._notice(f"{self._label(replica)} answers again after {away:.0f} s")

    def _failed(self, replica: _Replica, report: CallReport, seconds: float, now: float) -> None:
        replica.failed += 1
        replica.in_a_row += 1
        tried, replica.trying = replica.trying, False
        replica.why = (report.said or "the call failed").removeprefix(f"{replica.address}: ")
        if replica.out_since is None:
            if report.unknown and replica.in_a_row < OUT_AFTER:
                return
            replica.out_since = self._clock.now()
            self._tell_out(replica)
        elif not tried and now < replica.out_until:  # it began before
            return
        replica.pauses += 1
        replica.out_until = now + max(seconds, min(FIRST_PAUSE * 2.0 ** min(replica.pauses - 1, 16), MAX_PAUSE))

    def _tell_out(self, replica: _Replica) -> None:
        cause = replica.key, shape(replica.why)
        if len(self.by_key) > 1 and cause not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(cause)
            replica.told = True
            self._notice(f"{self._label(replica)} is left out, and tried again from time to time: {replica.why}")

    # --- Showing

    def snapshot(self) -> list[dict[str, Any]]:
        """Where each replica stands, as JSON. ``seconds``: of a call; ``out_since``: seconds since 1970 UTC."""
        latest = max((replica.offered_at for replica in self.by_key.values()), default=0.0)
        return [
            {
                "replica": self._label(replica),
                "in_flight": replica.limiter.in_flight,
                "window": replica.limiter.limit,
                "answered": replica.answered,
                "failed": replica.failed,
                "seconds": _rounded(self._seconds.get(replica.address)),
                "out_since": replica.out_since,
                "reason": replica.why if replica.out_since is not None else None,
            }
            for replica in self.by_key.values()
            if replica.limiter.in_flight or latest - replica.offered_at <= GONE_SECONDS
        ]

    def _label(self, replica: _Replica) -> str:
        """Its address; with the number of its key where that has several."""
        same = [each.key for each in self.by_key.values() if each.address == replica.address]
        return replica.address if len(same) == 1 else f"{replica.address} (key {same.index(replica.key) + 1})"


def _is_due(replica: _Replica, now: float) -> bool:
    """Whether a replica that was left out is to be tried again."""
    return (
        replica.out_since is not None
        and not replica.trying
        and now >= replica.out_until
        and replica.limiter.has_capacity
    )


def share_of(calls: int, among: int) -> int:
    """The share of each of so many replicas, rounded up."""
    return -(-calls // among)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
