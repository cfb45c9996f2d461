"""What bounds the paid calls of a run: a limiter for each key, the run's budget, and the endpoints that refuse everything.

Requests that an endpoint refuses one after the other, as with a model that does not exist, are found out before every item has failed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.errors import Interrupted, StorageError
from manyhands.core.text import one_line, shape
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.engine.contract import GIVEN_BACK, CallReport, OneOf, OwnLimit
from manyhands.engine.journal.store import Store
from manyhands.engine.limits.adaptive import FIRST_LIMIT, AdaptiveLimiter
from manyhands.engine.limits.budget import Budget, Hold
from manyhands.engine.limits.own import OwnLimits
from manyhands.engine.limits.replicas import Replicas, share_of
from manyhands.engine.limits.waits import Trouble, Wait
from manyhands.engine.pause import Pause

MAX_REFUSALS = 20
"""Identical refusals without an answer in between, after which the run stops."""
MAX_FAILURE_CHARS = 4000
"""Characters of a failure that are looked through."""
MAX_SENTENCES = 100
"""Different refusals of one model that are counted and reported."""
META = "spending"
"""The fact in the journal that holds the mark."""
STEPS = 64
"""Into how many steps a budget is divided. The mark is raised by one at a time, and lowered when it is ``LOOSE`` too high."""
LOOSE = 8
"""Steps."""
_TINY = 1e-9


class Refusals:
    """Counts refusals by endpoint (a model at an endpoint) and by what was said, until an answer comes.

    Refusals are identical if they say the same but for numbers and ids.
    """

    def __init__(self) -> None:
        self._news: list[str] = []
        self._streaks: dict[str, Counter[str]] = {}
        self._answered: set[str] = set()
        self._reported: set[str] = set()
        self.reason: str | None = None
        """Why nothing comes of going on; None if something may."""

    def refused(self, target: str, said: str, *, by_content: bool = False) -> None:
        """A call was refused. ``by_content``: perhaps for its content, which is so if another call was answered before."""
        if by_content and target in self._answered:
            return
        same = shape(said)
        streak = self._streaks.setdefault(target, Counter())
        if same not in streak and len(streak) >= MAX_SENTENCES:
            return
        streak[same] += 1
        if target not in self._answered and same not in self._reported and len(self._reported) < MAX_SENTENCES:
            self._reported.add(same)
            self._news.append(said)
        if streak[same] >= MAX_REFUSALS and self.reason is None:
            self.reason = (
                f"{said} ({MAX_REFUSALS} refusals of that kind and no answer in between, so that all others would be refused, too; "
                "what was refused stays pending)"
            )

    def news(self) -> list[str]:
        """Refusals that are new since this was last called, each kind once, as long as there has been no answer."""
        news, self._news = self._news, []
        return news

    def answered(self, target: str) -> None:
        """A call was answered."""
        self._answered.add(target)
        self._streaks.pop(target, None)

    def explains(self, message: str) -> bool:
        """Whether an item's failure is one of the refusals that no answer has followed."""
        if not self._streaks:
            return False
        same = shape(one_line(message, MAX_FAILURE_CHARS))
        return any(sentence in same for streak in self._streaks.values() for sentence in streak)


class SharedLimits:
    """The ``Limits`` of a run: a limiter per key and one budget, shared by everything that executes its items.

    ``initial`` and ``ceiling``: calls in flight that each key starts with, and has at most; ``wanted``: those that a person wants, with
    which it starts if they are more (of several keys that will do, each with its share). ``first_pause``: seconds of the first pause
    after a rate limit without ``Retry-After``. ``mark``: where it is kept what may have been spent. ``notice``: gets what calls remark,
    each once, and which of several keys are left out. ``own_limit``: see ``Workload.own_limit``.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        budget: Budget | None = None,
        initial: int = FIRST_LIMIT,
        wanted: int = 0,
        ceiling: int | None = None,
        first_pause: float = 1.0,
        mark: SpendingMark | None = None,
        notice: Callable[[str], None] = lambda text: None,
        own_limit: Callable[[str], int | None] = lambda name: None,
    ) -> None:
        self.own = OwnLimits(own_limit)
        self._own_permits: dict[int, str] = {}
        self._clock = clock or SystemClock()
        self.refusals = Refusals()
        self._when_refused: list[Callable[[], None]] = []
        self._troubles: dict[str, Trouble] = {}
        self.budget = budget or Budget(clock=self._clock)
        self.pause = Pause()
        """While it is active, whatever would begin a call waits."""
        self._kept_mark = mark
        self._mark = self._needed_mark()
        self._initial = initial if ceiling is None else min(initial, ceiling)
        self._wanted = wanted
        self._ceiling = ceiling
        self._first_pause = first_pause
        self._limiters: dict[str, AdaptiveLimiter] = {}
        self._replicas = Replicas(self._limiter_among, self._clock, notice)
        self._permits: dict[int, tuple[str, int, Reserve]] = {}
        self._holds: dict[int, Hold] = {}
        """By permit, of those of which calls were made."""
        self._next = 0
        self._stopped = False
        self._notice = notice
        self._remarked: set[str] = set()

    async def acquire(self, key: str | OneOf | OwnLimit, reserve: Reserve) -> int:
        """Reserve the call's worst case and wait for a permit; the permit is for ``release``, and has one of several keys (``key_of``).

        Raises ItemError(OVER_BUDGET), and StorageError if it can't be kept what may be spent. A cancelled or failed
        acquire leaves nothing behind.
        """
        if isinstance(key, OwnLimit):
            await self.own.take(key.name)
            return self._own_permit(key)
        while True:
            permit = self.acquire_now(key, reserve)
            if permit is None:
                permit = await (self.pause.change() if self.pause.active else self._acquire(key, reserve))
            if permit is not None:
                return permit

    async def _acquire(self, key: str | OneOf, reserve: Reserve) -> int | None:
        """A permit, once there is room for the call; None if the run was paused meanwhile."""
        held = await self.budget.reserve(reserve, self._hold(reserve.within))
        try:
            if self._mark is not None:
                await self._mark.cover(self.budget)
            if isinstance(key, OneOf):
                key, episode = await self._replicas.acquire(key)
            else:
                episode = await (self._limiters.get(key) or self._new_limiter(key)).acquire()
        except BaseException:
            self.budget.settle(held, ZERO)
            raise
        if self.pause.active:
            self.budget.settle(held, ZERO)
            self._limiters[key].release(episode, GIVEN_BACK)
            self._replicas.given_back(key)
            return None
        return self._permit(key, episode, held)

    def _hold(self, permit: int) -> Hold | None:
        """What a permit holds for further calls; None if it is none, or is released already."""
        if permit in self._permits and permit not in self._holds:
            self._holds[permit] = Hold(self._permits[permit][2])
        return self._holds.get(permit)

    async def acquire_one_of(self, wanted: OneOf, reserve: Reserve) -> tuple[int, str]:
        """As ``acquire``, with the key."""
        permit = await self.acquire(wanted, reserve)
        return permit, self.key_of(permit)

    def key_of(self, permit: int) -> str:
        """The key that a call with this permit is to be made with."""
        return self._permits[permit][0]

    def acquire_now(self, key: str | OneOf | OwnLimit, reserve: Reserve) -> int | None:
        """As ``acquire``, where nothing bounds the run and nothing has to be waited for; else None. Raises Interrupted."""
        if isinstance(key, OwnLimit):
            return self._own_permit(key) if self.own.take_now(key.name) else None
        if self._stopped:
            raise Interrupted
        if self.pause.active:
            return None
        held = None if self.budget.bounded else self.budget.reserve_now(reserve)
        if held is None:
            return None
        episode: int | None
        if isinstance(key, OneOf):
            key, episode = self._replicas.acquire_now(key) or ("", None)
        else:
            episode = (self._limiters.get(key) or self._new_limiter(key)).acquire_now()
        if episode is None:
            self.budget.settle(held, ZERO)
            return None
        return self._permit(key, episode, held)

    def _permit(self, key: str, episode: int, held: Reserve) -> int:
        self._next += 1
        self._permits[self._next] = (key, episode, held)
        if self._replicas.by_key:
            self._replicas.began(key, self._next)
        return self._next

    def _own_permit(self, limit: OwnLimit) -> int:
        self._next += 1
        self._own_permits[self._next] = limit.name
        return self._next

    def release(self, permit: int, report: CallReport) -> None:
        """End a call. Raises ValueError for a permit that is not held (never given, or released before)."""
        if (own := self._own_permits.pop(permit, None)) is not None:
            self.own.give_back(own)
            return
        held = self._permits.pop(permit, None)
        if held is None:
            raise ValueError(f"permit {permit} is not held")
        for remark in (report.remark or "").splitlines():
            if remark not in self._remarked:
                self._remarked.add(remark)
                self._notice(remark)
        key, episode, reserve = held
        if (hold := self._holds.pop(permit, None)) is not None:
            reserve, report = hold.end(), CallReport()  # with what is left of it, no call was made
        self.budget.settle(reserve, report.usage, unknown=report.unknown)
        if self._mark is not None:
            self._mark.settled(self.budget)
        self._limiters[key].release(episode, report)
        self._learn(key, reserve.model or key, report)
        if self._replicas.by_key:
            self._replicas.released(key, permit, report)

    def call_when_refused(self, call: Callable[[], None]) -> None:
        """Have a function called at every refusal."""
        self._when_refused.append(call)

    def waits(self) -> list[Wait]:
        """What calls wait for now."""
        now = self._clock.now()
        first_free, waiting = self._replicas.waiting()
        found = [
            trouble.wait(now, limiter.held_for, limiter.waiting + (waiting if key == first_free else 0))
            for key, trouble in self._troubles.items()
            for limiter in (self._limiters[key],)
        ]
        return [wait for wait in (*found, self.budget.wait(now)) if wait is not None]

    def _learn(self, key: str, target: str, report: CallReport) -> None:
        """What a call says about its endpoint."""
        if not report.failed and not report.rate_limited:
            self.refusals.answered(target)
            if key in self._troubles:
                self._troubles[key].answered()
        elif report.refused:
            self.refusals.refused(target, report.said or target, by_content=report.by_content)
            for call in self._when_refused:
                call()
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

    def want(self, calls: int) -> None:
        """A person wants as many calls in flight."""
        self._wanted = calls
        for key, limiter in self._limiters.items():
            limiter.want(self._replicas.share(key, calls))
        self._replicas.admit()

    def change_budget(self, **bounds: Any) -> None:
        """Set other bounds of the budget, see ``Budget.change``."""
        self.budget.change(**bounds)
        self._mark = self._needed_mark()

    def _needed_mark(self) -> SpendingMark | None:
        return self._kept_mark if self.budget.max_cost is not None or self.budget.max_total_tokens is not None else None

    def stop(self) -> None:
        """No further call may be made: whoever waits for one, or asks later, gets Interrupted."""
        self._stopped = True
        self.budget.stop()
        self._replicas.stop()
        for limiter in self._limiters.values():
            limiter.stop()
        self.pause.end()

    def replicas(self) -> list[dict[str, Any]]:
        """Where the replicas stand of which calls choose one, as JSON; see ``Replicas.snapshot``."""
        return self._replicas.snapshot()

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

    def _limiter_among(self, key: str, count: int) -> AdaptiveLimiter:
        """The limiter of one of so many keys, among which the calls that a person wants in flight are divided."""
        return self._limiters.get(key) or self._new_limiter(key, count)

    def _new_limiter(self, key: str, share: int = 1) -> AdaptiveLimiter:
        limiter = AdaptiveLimiter(
            key,
            self._clock,
            initial=self._initial,
            wanted=share_of(self._wanted, share),
            ceiling=self._ceiling,
            first_pause=self._first_pause,
        )
        self._limiters[key] = limiter
        return limiter


class SpendingMark:
    """What a run may have spent at most, on disk before it is spent. Made by the run's owner.

    The journal knows what recorded steps cost. Beyond that a run may have paid for calls that were in flight when it was killed, for
    answers that could not be read, and for steps that were given up. So that a budget holds over all sessions, a mark is kept that is never
    less than what is spent and reserved. It is raised a step ahead, so that few calls wait for it. ``assumed``: what counts besides the
    recorded steps of earlier sessions.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        kept = store.reader.meta(META) or {"assumed": (0.0, 0), "mark": None}
        cost, tokens = kept["assumed"]
        if kept["mark"] is not None:  # the last session did not come to its end
            cost, tokens = _beyond(kept["mark"], store.reader.usage(), (cost, tokens))
            store.set_meta(**{META: {"assumed": (cost, tokens), "mark": None}})
        self.assumed = Usage(input_tokens=tokens, cost=cost)
        self._mark = (0.0, 0)
        self._raising: asyncio.Task[None] | None = None

    async def cover(self, budget: Budget) -> None:
        """Done when it is on disk that as much may be spent as is spent and reserved. Raises StorageError."""
        while not self._covers(budget):
            if self._raising is None or self._raising.done():
                self._raising = asyncio.create_task(self._raise(budget))
            await asyncio.shield(self._raising)

    def settled(self, budget: Budget) -> None:
        """Lower the mark if it is far above what is spent and reserved, so that a kill costs little of the budget."""
        if self._raising is not None and not self._raising.done():
            return
        cost, tokens = budget.exposed
        step_cost, step_tokens = _step(budget)
        loose_cost = budget.max_cost is not None and self._mark[0] - cost > LOOSE * step_cost
        if loose_cost or (budget.max_total_tokens is not None and self._mark[1] - tokens > LOOSE * step_tokens):
            self._mark = self._write(budget)

    def close(self, budget: Budget) -> None:
        """Keep exactly what was spent beyond the recorded steps; once the session's writing has ended."""
        beyond = _beyond(budget.exposed, self._store.reader.usage())
        if beyond == (0.0, 0) and self._store.reader.meta(META) is None:
            return
        try:
            self._store.set_meta(**{META: {"assumed": beyond, "mark": None}})
        except StorageError:
            return  # the mark stays where it is, which is no less

    def _covers(self, budget: Budget) -> bool:
        cost, tokens = budget.exposed
        return (budget.max_cost is None or cost <= self._mark[0] + _TINY) and (
            budget.max_total_tokens is None or tokens <= self._mark[1]
        )

    async def _raise(self, budget: Budget) -> None:
        mark = self._write(budget)
        await self._store.writer.committed()
        self._mark = mark

    def _write(self, budget: Budget) -> tuple[float, int]:
        """Have a mark written that is a step above what is spent and reserved, but no higher than the budget."""
        (cost, tokens), (step_cost, step_tokens) = budget.exposed, _step(budget)
        max_cost_now = cost if budget.max_cost is None else max(cost, budget.max_cost)
        max_tokens_now = tokens if budget.max_total_tokens is None else max(tokens, budget.max_total_tokens)
        mark = min(max_cost_now, cost + step_cost), min(max_tokens_now, tokens + step_tokens)
        assumed = self.assumed.cost, self.assumed.total_tokens
        self._store.note_meta(META, {"assumed": assumed, "mark": mark})
        return mark


def _step(budget: Budget) -> tuple[float, int]:
    return (budget.max_cost or 0.0) / STEPS, -(-(budget.max_total_tokens or 0) // STEPS)


def _beyond(exposed: tuple[float, int], recorded: Usage, minimum: tuple[float, int] = (0.0, 0)) -> tuple[float, int]:
    """How much of what may have been spent is in no recorded step."""
    cost = exposed[0] - recorded.cost
    return max(minimum[0], cost if cost > _TINY else 0.0), max(minimum[1], exposed[1] - recorded.total_tokens)
