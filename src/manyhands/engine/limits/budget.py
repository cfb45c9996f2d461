"""What a run may use in all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.errors import Interrupted, ItemError
from manyhands.core.failures import Cause
from manyhands.core.usage import ZERO, Reserve, Usage
from manyhands.engine.limits.waits import Wait

_TINY = 1e-9
_ROUNDING, _MIN_COST = 0.01, 1e-6
"""By how much, as a share and in US dollars, a cost may pass a price without that the price is taken for wrong."""


@dataclass(slots=True)
class _Charges:
    """What calls of one model were seen to cost."""

    dearer: bool = False
    """Whether they cost more than their reserves, or had no price, so that the rest counts."""
    input: float = 0.0
    """US dollars per input token at most, as if the output were free."""
    output: float = 0.0
    """US dollars per output token at most, as if the input were free."""
    share: float = 0.0
    """US dollars per token reserved at most."""
    cost: float = 0.0
    """Of the dearest call."""
    tokens: int = 0
    """Of the call that used the maximum."""

    def learn(self, reserve: Reserve, usage: Usage) -> None:
        self.cost = max(self.cost, usage.cost)
        self.tokens = max(self.tokens, usage.total_tokens)
        self.input = max(self.input, usage.cost / max(1, usage.input_tokens - usage.cached_tokens))
        self.output = max(self.output, usage.cost / max(1, usage.output_tokens))
        self.share = max(self.share, usage.cost / max(1, reserve.tokens))

    def bound(self, reserve: Reserve) -> Reserve:
        """The reserve of a call at most, if a token costs the same in all of them."""
        input_tokens = reserve.tokens - reserve.output_tokens
        cost = input_tokens * self.input + reserve.output_tokens * self.output
        return replace(reserve, cost=max(reserve.cost, cost))

    def like_the_dearest(self, reserve: Reserve) -> Reserve:
        """The reserve of a call that nothing bounds: it may well be as dear as the dearest so far."""
        return replace(reserve, cost=max(reserve.cost, self.cost), tokens=max(reserve.tokens, self.tokens))

    def guess(self, reserve: Reserve) -> Reserve:
        """The reserve of a call that uses as large a share of it as the dearest before."""
        return replace(reserve, cost=max(reserve.cost, reserve.tokens * self.share))


class Hold:
    """What is reserved for several calls together, before the first of them is made. ``rest``: what none of them has now, or has used."""

    def __init__(self, whole: Reserve) -> None:
        self.rest = whole
        self.ended = False

    def take(self, cost: float, tokens: int) -> tuple[float, int]:
        """Take so much out of it, as far as it goes; what was taken."""
        taken = min(cost, self.rest.cost), min(tokens, self.rest.tokens)
        self.give(-taken[0], -taken[1])
        return taken

    def end(self) -> Reserve:
        """What is left of it, for ``Budget.settle``. Nothing goes back to it any more."""
        self.ended = True
        return self.rest

    def give(self, cost: float, tokens: int) -> None:
        self.rest = replace(self.rest, cost=self.rest.cost + cost, tokens=self.rest.tokens + tokens)


@dataclass(slots=True, eq=False)
class _Part(Reserve):
    """A reserve that comes out of a hold, and goes back there."""

    hold: Hold | None = None
    taken: tuple[float, int] = (0.0, 0)


class Budget:
    """What a run may use in all: US dollars, tokens, and seconds of wall time. None means no bound.

    A call's worst case is reserved before it is made, and settled with what it really used; with the whole reserve if that is not
    known. ``spent``, ``assumed`` (what is counted for calls whose use is not known) and ``elapsed`` carry over from earlier sessions.

    What the endpoint charges, and whether it keeps to what it is allowed, is seen in the first call of each model, during which
    no other model call is made. If it has no known price, or costs more than that, what was seen so far bounds the calls that
    follow: as if all of a call's cost were its input's, and all its output's. A call that does not fit by this bound is made
    alone, as long as the dearest share of a reserve so far fits. A call that uses more tokens than it was allowed, or whose cost
    nobody says, exhausts the budget: nothing can bound it.

    Calls with an ``open`` reserve (launches of commands) can't be limited, nor can requests that are billed as such, not by their tokens,
    where no price is known. The first of a session is made alone; each later one reserves as much as the dearest so far. So they pass a
    limit by no more than what the first one costs, or what those in flight cost beyond the dearest before them.
    """

    def __init__(
        self,
        max_cost: float | None = None,
        max_total_tokens: int | None = None,
        max_seconds: float | None = None,
        *,
        spent: Usage = ZERO,
        assumed: Usage = ZERO,
        elapsed: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.max_cost = max_cost
        self.max_total_tokens = max_total_tokens
        self.max_seconds = max_seconds
        self._clock = clock or SystemClock()
        self._began = self._clock.monotonic() - elapsed
        self._paused_at: float | None = None
        self.spent = spent + assumed
        self.assumed = assumed
        self._reserved_cost = 0.0
        self._reserved_tokens = 0
        self._reservations = 0
        self._model_calls = 0
        self._alone: Reserve | None = None
        """The reserve of a call during which no other model call is made."""
        self._charges: dict[str, _Charges] = {}
        self._waiters: deque[tuple[asyncio.Future[Reserve], Reserve, Hold | None, float]] = deque()
        """Who waits, for how much, what of it is held, and since when (a time of day)."""
        self._refused: str | None = None
        self._unbounded: str | None = None
        """Why nothing bounds a call any more."""

    @property
    def elapsed(self) -> float:
        """Seconds of wall time over all sessions of the run, without pauses."""
        return (self._clock.monotonic() if self._paused_at is None else self._paused_at) - self._began

    def pause(self) -> None:
        """Time does not count from now on."""
        if self._paused_at is None:
            self._paused_at = self._clock.monotonic()

    def go_on(self) -> None:
        """Time counts again."""
        if self._paused_at is not None:
            self._began += self._clock.monotonic() - self._paused_at
            self._paused_at = None

    def change(self, **bounds: Any) -> None:
        """Set other bounds, of the names that they have as arguments. They hold for what is reserved from now on."""
        for name, value in bounds.items():
            setattr(self, name, value)
        self._refused = None
        if self.max_cost is None and self.max_total_tokens is None:
            self._unbounded = None
        self._admit()

    @property
    def bounded(self) -> bool:
        return not (self.max_cost is None and self.max_total_tokens is None and self.max_seconds is None)

    @property
    def exposed(self) -> tuple[float, int]:
        """US dollars and tokens that are spent or reserved."""
        return self.spent.cost + self._reserved_cost, self.spent.total_tokens + self._reserved_tokens

    @property
    def reason(self) -> str | None:
        """Why no further work should be started, in one line; None if there is budget left. A call that was refused exhausts it, although
        smaller calls of items that are under way may still fit."""
        return self._unbounded or self._refused or self._used_up()

    def _used_up(self) -> str | None:
        if self.max_cost is not None and self.spent.cost >= self.max_cost - _TINY:
            spent = f"${self.spent.cost:.4f} spent{self._assumed_cost()}"
            return f"the budget of ${self.max_cost:g} (max_cost) is used up: {spent}"
        if self.max_total_tokens is not None and self.spent.total_tokens >= self.max_total_tokens:
            used = f"{self.spent.total_tokens:,} used{self._assumed_tokens()}"
            return f"the budget of {self.max_total_tokens:,} tokens (max_total_tokens) is used up: {used}"
        if self.max_seconds is not None and self.elapsed >= self.max_seconds:
            return f"the budget of {self.max_seconds:g} seconds of wall time is used up"
        return None

    def _assumed_cost(self) -> str:
        cost = self.assumed.cost
        return f", of which ${cost:.4f} is the most that calls without a readable answer cost" if cost > _TINY else ""

    def _assumed_tokens(self) -> str:
        tokens = self.assumed.total_tokens
        return f", of which {tokens:,} is the most that calls without a readable answer used" if tokens else ""

    def reserve_now(self, reserve: Reserve, hold: Hold | None = None) -> Reserve | None:
        """Reserve if it fits beside the reservations in flight: what was reserved, for ``settle``. None if it must wait for some of these
        to settle. ``hold``: has the reserve already.

        Raises ItemError(OVER_BUDGET) if it would not fit even then.
        """
        if not self.bounded:
            return self._take(reserve, alone=False)
        self._refuse_if_hopeless(reserve)
        return None if self._waiters and hold is None else self._taken_if_it_fits(reserve, hold)

    async def reserve(self, reserve: Reserve, hold: Hold | None = None) -> Reserve:
        """As ``reserve_now``, waiting for calls in flight to settle if need be. Raises ItemError(OVER_BUDGET).

        Who waits for room comes in turn. Not so a call whose reserve is held: those before it may wait for just this hold to end.
        """
        held = self.reserve_now(reserve, hold)
        if held is not None:
            return held
        waiter: asyncio.Future[Reserve] = asyncio.get_running_loop().create_future()
        entry = (waiter, reserve, hold, self._clock.now())
        if hold is None:
            self._waiters.append(entry)
        else:
            self._waiters.appendleft(entry)
        self._admit()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.settle(waiter.result(), ZERO)
            else:
                self._admit()
            raise

    def wait(self, now: float) -> Wait | None:
        """What calls wait for that would pass the budget if all those in flight cost what they may; None if none does."""
        waiting = [since for waiter, *_, since in self._waiters if not waiter.done()]
        if not waiting:
            return None
        if self._alone is not None:
            why = f"the budget: what a call of {self._alone.model} costs is seen in one call, beside which no other is made"
        else:
            why = f"the budget: calls in flight may use up what is left of it ({self._state()})"
        return Wait(why, waiting[0], None, len(waiting))

    def stop(self) -> None:
        """Give up all waits: they raise Interrupted."""
        give_up(waiter for waiter, *_ in self._waiters)

    def settle(self, reserve: Reserve, usage: Usage, *, unknown: bool = False) -> None:
        """End a reservation: ``usage`` is what the call really used (nothing if it was not made); ``unknown``: it used that or more."""
        self._reservations -= 1
        self._reserved_tokens -= reserve.tokens
        if isinstance(reserve, _Part) and reserve.hold is not None and not reserve.hold.ended:
            self._give_back(reserve, reserve.hold, usage, unknown)
        # Floats added and taken away leave crumbs; nothing reserved is exactly nothing.
        self._reserved_cost = self._reserved_cost - reserve.cost if self._reservations else 0.0
        if reserve.model is not None:
            self._model_calls -= 1
            self._alone = None if self._alone is reserve else self._alone
            self._see(reserve, usage, unknown)
        if unknown:
            usage = self._assume(reserve, usage)
        if usage is not ZERO:
            self.spent = self.spent + usage
        if self._waiters:
            self._admit()

    def _give_back(self, reserve: _Part, hold: Hold, usage: Usage, unknown: bool) -> None:
        """What a call did not use is held again: it may be made once more."""
        cost = 0.0 if unknown else max(0.0, reserve.cost - usage.cost)
        tokens = 0 if unknown else max(0, reserve.tokens - usage.total_tokens)
        cost, tokens = min(cost, reserve.taken[0]), min(tokens, reserve.taken[1])
        hold.give(cost, tokens)
        self._reserved_cost += cost
        self._reserved_tokens += tokens

    def _assume(self, reserve: Reserve, usage: Usage) -> Usage:
        """At least the reserve."""
        missing = Usage(
            input_tokens=max(0, reserve.tokens - usage.total_tokens), cost=max(0.0, reserve.cost - usage.cost)
        )
        self.assumed = self.assumed + missing
        return usage + missing

    def _see(self, reserve: Reserve, usage: Usage, unknown: bool) -> None:
        """Learn what a model's calls cost, and whether its endpoint keeps to its bounds."""
        if usage is ZERO and not unknown:
            return
        if reserve.open:
            self._unbounded = self._unbounded or self._silent(reserve, usage, unknown)
        else:
            self._unbounded = self._unbounded or self._passed(reserve, usage) or self._untold(reserve, usage, unknown)
        if reserve.model is None or unknown:
            return
        charges = self._charges.setdefault(reserve.model, _Charges())
        if reserve.open:
            charges.learn(reserve, usage)
            return
        if self.max_cost is not None or not reserve.tokens:
            fair = reserve.fair(usage) * (1.0 + _ROUNDING) + _MIN_COST
            charges.dearer = charges.dearer or not reserve.priced or usage.cost > fair
            charges.learn(reserve, usage)

    def _passed(self, reserve: Reserve, usage: Usage) -> str | None:
        """How a call passed what it was allowed."""
        counted = self.max_total_tokens is not None or (self.max_cost is not None and usage.cost + reserve.cost > 0)
        if counted and reserve.output_tokens and usage.output_tokens > reserve.output_tokens:
            passed = f"answered with {usage.output_tokens:,} tokens, where max_tokens was {reserve.output_tokens:,}"
        elif self.max_total_tokens is not None and usage.total_tokens > reserve.tokens > 0:
            passed = f"used {usage.total_tokens:,} tokens, where {reserve.tokens:,} were thought to be the most"
        else:
            return None
        return f"{reserve.model} {passed}, so that no budget can be kept there: {self._state()}"

    def _untold(self, reserve: Reserve, usage: Usage, unknown: bool) -> str | None:
        """That nobody knows what a call cost."""
        if self.max_cost is None or reserve.priced:
            return None
        if not usage.unpriced_calls and not (unknown and reserve.model not in self._charges):
            return None
        return (
            f"no price is known for {reserve.model}, and the endpoint did not say what a call cost, so that max_cost "
            f"can't be kept: give --prices FILE, or --max_total_tokens instead; {self._state()}"
        )

    def _silent(self, reserve: Reserve, usage: Usage, unknown: bool) -> str | None:
        """That a call which nothing bounds beforehand does not say afterwards what it used. One that failed (``unknown``) counts as the
        dearest so far, once there is one."""
        if unknown and reserve.model in self._charges:
            return None
        if self.max_cost is not None and (usage.unpriced_calls or unknown):
            lacking, limit = "what it cost", "max_cost"
        elif (
            self.max_total_tokens is not None
            and not usage.total_tokens
            and (usage.unpriced_calls or usage.cost or unknown)
        ):
            lacking, limit = "how many tokens it used", "max_total_tokens"
        else:
            return None
        return (
            f"a launch of {reserve.model} did not say {lacking}, so that {limit} can't be kept: have it say that, or leave {limit} out; "
            f"{self._state()}"
        )

    def _state(self) -> str:
        """What is spent and reserved, of what."""
        parts: list[str] = []
        if self.max_cost is not None:
            parts.append(f"${self.spent.cost:.4f} spent, ${self._reserved_cost:.4f} reserved, of ${self.max_cost:g}")
        if self.max_total_tokens is not None:
            spent, reserved = self.spent.total_tokens, self._reserved_tokens
            parts.append(f"{spent:,} tokens used, {reserved:,} reserved, of {self.max_total_tokens:,}")
        return "; ".join(parts)

    def _as_charged(self, reserve: Reserve) -> tuple[Reserve, bool]:
        """The reserve with the cost that calls of its model were seen to have; and whether no other may be made meanwhile."""
        if reserve.model is None or (self.max_cost is None and self.max_total_tokens is None):
            return reserve, False
        charges = self._charges.get(reserve.model)
        if charges is None:
            return reserve, True
        if reserve.open or not reserve.tokens:
            return charges.like_the_dearest(reserve), False
        if not charges.dearer:
            return reserve, False
        bound = charges.bound(reserve)
        return (bound, False) if self._fits(bound) else (charges.guess(reserve), True)

    def _taken_if_it_fits(self, reserve: Reserve, hold: Hold | None) -> Reserve | None:
        if hold is not None:
            return self._taken_out_of(hold, reserve)
        held, alone = self._as_charged(reserve)
        return self._take(held, alone=alone) if self._may_begin(held, alone) and self._fits(held) else None

    def _taken_out_of(self, hold: Hold, reserve: Reserve) -> Reserve | None:
        """As ``_taken_if_it_fits``. What does not fit although it was held is refused: if holds waited for one another, none would end."""
        cost, tokens = hold.take(reserve.cost, reserve.tokens)
        self._reserved_cost -= cost
        self._reserved_tokens -= tokens
        held, alone = self._as_charged(reserve)
        if self._may_begin(held, alone) and self._fits(held):
            values = {each.name: getattr(held, each.name) for each in fields(Reserve)}
            return self._take(_Part(**values, hold=hold, taken=(cost, tokens)), alone=alone)
        hold.give(cost, tokens)
        self._reserved_cost += cost
        self._reserved_tokens += tokens
        if not self._may_begin(held, alone):
            return None
        self._refused = f"{held.model} may cost or use more than was held for it, and no more is left ({self._state()})"
        raise ItemError(Cause.OVER_BUDGET, self._refused)

    def _may_begin(self, reserve: Reserve, alone: bool) -> bool:
        """Whether no call that is made alone is in the way."""
        return reserve.model is None or not (self._alone is not None or (alone and self._model_calls))

    def _take(self, reserve: Reserve, *, alone: bool) -> Reserve:
        self._reservations += 1
        self._reserved_tokens += reserve.tokens
        self._reserved_cost += reserve.cost
        if reserve.model is not None:
            self._model_calls += 1
            if alone:
                self._alone = reserve
        return reserve

    def _fits(self, reserve: Reserve) -> bool:
        cost, tokens = self.exposed
        return (self.max_cost is None or cost + reserve.cost <= self.max_cost + _TINY) and (
            self.max_total_tokens is None or tokens + reserve.tokens <= self.max_total_tokens
        )

    def _refuse_if_hopeless(self, reserve: Reserve) -> None:
        reason = self._unbounded or self._used_up() or self._too_large(self._as_charged(reserve)[0])
        if reason is None:
            return
        self._refused = reason
        raise ItemError(Cause.OVER_BUDGET, reason)

    def _too_large(self, reserve: Reserve) -> str | None:
        if self.max_cost is not None and self.spent.cost + reserve.cost > self.max_cost + _TINY:
            left = self.max_cost - self.spent.cost
            charges = self._charges.get(reserve.model or "")
            dearer = (
                f"{reserve.model} costs more than the price table says; "
                if charges and charges.dearer and reserve.priced
                else ""
            )
            if reserve.open:
                return (
                    f"{reserve.model} has cost up to ${reserve.cost:.4f} a launch, and ${left:.4f} is left of the budget of "
                    f"${self.max_cost:g} (max_cost); a higher max_cost goes on from here ({self._state()}{self._assumed_cost()})"
                )
            return (
                f"the next call may cost up to ${reserve.cost:.4f}, and ${left:.4f} is left of the budget of "
                f"${self.max_cost:g} (max_cost); {dearer}{_way_on('max_cost')} ({self._state()}{self._assumed_cost()})"
            )
        if self.max_total_tokens is not None and self.spent.total_tokens + reserve.tokens > self.max_total_tokens:
            left_tokens = self.max_total_tokens - self.spent.total_tokens
            if reserve.open:
                return (
                    f"{reserve.model} has used up to {reserve.tokens:,} tokens a launch, and {left_tokens:,} are left of the budget of "
                    f"{self.max_total_tokens:,} (max_total_tokens); a higher max_total_tokens goes on from here "
                    f"({self._state()}{self._assumed_tokens()})"
                )
            return (
                f"the next call may use up to {reserve.tokens:,} tokens, and {left_tokens:,} are left of the budget of "
                f"{self.max_total_tokens:,} (max_total_tokens); {_way_on('max_total_tokens')} "
                f"({self._state()}{self._assumed_tokens()})"
            )
        return None

    def _admit(self) -> None:
        while self._waiters:
            waiter, reserve, hold, _ = self._waiters[0]
            if waiter.done():
                self._waiters.popleft()
                continue
            try:
                self._refuse_if_hopeless(reserve)
                held = self._taken_if_it_fits(reserve, hold)
            except ItemError as error:
                self._waiters.popleft()
                waiter.set_exception(error)
                continue
            if held is None:
                return
            self._waiters.popleft()
            waiter.set_result(held)


def give_up(waiters: Iterable[asyncio.Future[Any]]) -> None:
    """Have waits raise Interrupted."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(Interrupted())


def _way_on(limit: str) -> str:
    # With another max_tokens, calls are other calls: items that have begun would be paid for again.
    return f"a higher {limit} goes on from here, and another run with a lower max_tokens needs less for a call"
