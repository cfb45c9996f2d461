"""The scheduler: slots that pull items, failures that go back or end, one way to stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from manyhands.core.clock import Clock
from manyhands.core.errors import RunError, StorageError, UserError
from manyhands.core.failures import FAILURES, Cause, FailureRule
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.text import one_line
from manyhands.engine.attempt import AttemptResult, Claim, Diverged, Ended, Failed, NeedsFreshAttempt, Stopped
from manyhands.engine.backlog import Backlog, Waiters
from manyhands.engine.claims import LAST, Claims, RefusedAttempts, Retries, delay
from manyhands.engine.contract import Item, Workload, Worlds
from manyhands.engine.discards import DiscardWatch
from manyhands.engine.executors.local import Executor
from manyhands.engine.journal.records import Claimed
from manyhands.engine.journal.store import Store
from manyhands.engine.limits.shared import SharedLimits
from manyhands.engine.limits.waits import Wait, long_waits
from manyhands.engine.outputs import OutputFiles
from manyhands.engine.workspaces import Workspaces

FRESH_ATTEMPTS = 5
"""Fresh attempts, one after the other, after which an item that keeps losing its world fails."""
REMARKS = 10
OUTAGE = 10
"""Attempts in a row, over all items, that failed because the model did not answer: then the run stops instead of failing everything."""
OUTAGE_CAUSES = frozenset({Cause.MODEL_ERROR, Cause.RATE_LIMIT})
CANCEL_SECONDS = 30.0
"""Seconds that a cancelled item gets to end the step that it takes; then that is stopped."""
_CHUNK = 500
"""Items that are cancelled before their commit is waited for."""


@dataclass(slots=True)
class Ending:
    """How a session ended."""

    stopped: str | None = None
    """Why it ended before the work was done (None: it is done)."""
    interrupted: bool = False
    """It was a person who stopped it."""
    error: Exception | None = None
    """What broke it."""


class Scheduler:
    """Has an executor execute what is pending in one store, until nothing is left or somebody says stop."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        outputs: OutputFiles,
        clock: Clock,
        workload: Workload,
        limits: SharedLimits,
        on_outcome: Callable[[Item, Outcome], None] | None = None,
        *,
        notice: Callable[[str], None] = lambda text: None,
        worlds: Worlds | None = None,
    ) -> None:
        """``on_outcome`` is called at every end of an item, once it is on disk; ``notice`` gets what a person should know at once;
        ``worlds``: what attempts keep elsewhere than in their folders."""
        self._store = store
        self._executor = executor
        self._outputs = outputs
        self._clock = clock
        self._workload = workload
        self._execution = workload.execution
        self._retries = Retries(workload)
        self._limits = limits
        limits.call_when_refused(self.check_limits)
        self._on_outcome = on_outcome
        self._notice = notice
        self._remarks: list[str] = []
        completed = any(state == ItemState.COMPLETED for state, _ in store.reader.counts())
        self._discards = DiscardWatch(workload.remedies, self._notify, completed=completed)
        self._refused = RefusedAttempts(limits.refusals, counts_failures=workload.counts_failures)
        self._later: dict[int, Wait] = {}
        """What items wait for that are executed again later, by their numbers."""
        self._workspaces = Workspaces(store, self._execution, self.fail, worlds)
        self._claims = Claims(store.reader, clock, workload.must_wait, self._execution.limit)
        self._idle = Waiters()
        self._in_flight: set[int] = set()
        """The numbers of the items that are executed, or whose attempt is just being concluded."""
        self._slots: set[asyncio.Task[None]] = set()
        self._max_slots = self._execution.max_in_flight or self._execution.workers * self._execution.concurrency
        self._pause = limits.pause
        self._paused_since: float | None = None
        self._settling: set[int] = set()
        """Items whose end is not on disk yet."""
        self._cancelled: dict[int, str] = {}
        """Items in flight that end as cancelled, and why, unless they come to their end before."""
        self._abandonments: set[asyncio.TimerHandle] = set()
        self._changing: set[asyncio.Future[None]] = set()
        """Changes of what is to be executed, until whose end the session goes on."""
        self._over = False
        self._backlog = Backlog(self._max_slots)
        self._timer: asyncio.TimerHandle | None = None
        self._outage = 0
        self._blameless = Counter[tuple[int, Cause]]()
        """Failures of items, by their numbers, that counted for nothing so far."""
        self.ending = Ending()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    async def run(self) -> Ending:
        """Schedule until done or stopped. Never raises for what went wrong with the run: see ``Ending.error``."""
        self._fill_slots()
        while waited := [*self._slots, *self._changing]:
            await asyncio.gather(*waited, return_exceptions=True)
        self._over = True
        for each in self._abandonments:
            each.cancel()
        await self._put_back_refused()
        self.report_refusals(but=self.ending.stopped)  # which is what the session ends with
        await self._backlog.emptied()
        await self._workspaces.removed()
        if self._timer is not None:
            self._timer.cancel()
        return self.ending

    def stop(self, reason: str, *, interrupted: bool = False) -> None:
        """Claim no more, begin no further step; what is in flight ends and is recorded."""
        if self.ending.stopped is None:
            self.ending.stopped = reason
            self.ending.interrupted = interrupted
            self.go_on()
            self._limits.stop()
            self._executor.stop()
            self._wake_all()

    @property
    def over(self) -> bool:
        """Whether nothing can be changed any more about what is executed."""
        return self._over or self.ending.stopped is not None

    @property
    def paused(self) -> bool:
        return self._pause.active

    @property
    def max_slots(self) -> int:
        """Items in flight at most."""
        return self._max_slots

    def pause(self) -> None:
        """Claim nothing, begin no step and no call, until ``go_on``; what is in flight ends and is recorded."""
        if not self.paused:
            self._store.pause()
            self._limits.budget.pause()
            self._paused_since = self._clock.now()
            self._pause.begin()
            self._executor.pause()

    def go_on(self) -> None:
        """End a pause."""
        if self.paused:
            self._store.go_on()
            self._limits.budget.go_on()
            self._paused_since = None
            self._pause.end()
            self._executor.go_on()

    def resize(self, slots: int) -> None:
        """Have no more than so many items in flight from now on; those that are more come to their end."""
        self._max_slots = slots
        self._limits.own.admit()
        self._backlog.resize(slots)
        self._fill_slots()
        self._wake_all()

    async def reopen(self, numbers: Sequence[int], why: str, *, fresh: bool = False) -> list[int]:
        """Execute ended items again, and say which those are, see ``Store.reopen_items``. Raises StorageError."""
        with self._change():
            reopened = await self._store.reopen(numbers, why, fresh=fresh)
            self._claims.reopen(reopened)
            self._fill_slots()
            self._idle.wake_all()
            return reopened

    async def cancel(self, numbers: Sequence[int], why: str, *, firm: bool = False) -> tuple[int, int]:
        """End items as cancelled: how many were, and how many more are in flight. What one of these does is stopped after
        ``CANCEL_SECONDS``, or with ``firm`` now; if it ends by itself before, that counts. Raises StorageError."""
        with self._change():
            in_hand = self._in_flight | self._refused.numbers()
            in_flight = [number for number in numbers if number in in_hand]
            self._cancelled.update(dict.fromkeys(in_flight, why))
            self._store.request_cancel(in_flight, why)
            self._executor.cancel(in_flight)
            if firm:
                self._abandon(in_flight)
            else:
                self._abandon_later(in_flight)
            ended = 0
            for number in numbers:
                if number not in self._cancelled:
                    ended += self._cancel_waiting(number, why)
                if len(self._backlog) >= _CHUNK:
                    await self._store.writer.committed()
            await self._store.writer.committed()
            self._idle.wake_all()
            return ended, len(in_flight)

    def _abandon_later(self, numbers: Sequence[int]) -> None:
        def abandon() -> None:
            self._abandonments.discard(timer)
            self._abandon(numbers)

        timer = asyncio.get_running_loop().call_later(CANCEL_SECONDS, abandon)
        self._abandonments.add(timer)

    def _abandon(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self._cancelled:
                self._executor.abandon(number)

    def _cancel_waiting(self, number: int, why: str) -> bool:
        row = self._store.reader.item(str(number))
        if row is not None and row.state is ItemState.PENDING and number not in self._settling:
            self._claims.cancel(number)
            self._later.pop(number, None)
            claimed = Claimed(row.item, row.attempt, row.performances, row.failures, row.position)
            self._settle(claimed, _cancelled(why))
            return True
        return False

    @contextmanager
    def _change(self) -> Iterator[None]:
        """While it is changed what is to be executed. Raises RunError if it is too late for that."""
        if self.over:
            raise RunError("the run is ending")
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changing.add(change)
        try:
            yield
        finally:
            self._changing.discard(change)
            change.set_result(None)

    def _fill_slots(self) -> None:
        """Have a slot for each item that may be in flight, and no more than there are items."""
        slots = min(self._max_slots, self._left())
        self._executor.resize(slots)
        for _ in range(slots - len(self._slots)):
            slot = asyncio.create_task(self._slot())
            self._slots.add(slot)
            slot.add_done_callback(self._slots.discard)  # where it was cancelled before it began

    def _left(self) -> int:
        """How many items have not ended, without those beyond the limit."""
        if self._execution.limit is not None:
            return self._store.reader.left(self._execution.limit)
        counts = self._store.reader.counts()
        return sum(items for (state, _), items in counts.items() if not ItemState(state).final)

    def check_limits(self) -> None:
        """Stop if the budget is used up, or an endpoint refuses everything."""
        reason = self._limits.budget.reason or self._limits.refusals.reason
        if reason is not None:
            self.stop(reason)

    def report_refusals(self, *, but: str | None = None) -> None:
        """Report what was refused since the last look. ``but``: a refusal that is reported in another way."""
        for said in self._limits.refusals.news():
            if said != but:
                self._notify(f"refused: {said}")

    def waits(self) -> tuple[Wait, ...]:
        """What keeps the run from going on, of all that takes so long that a person should know."""
        now = self._clock.now()
        if self._paused_since is not None:
            paused = Wait("the run is paused (manyhands set RUN --go_on ends that)", self._paused_since, None, 1, "run")
            return long_waits([paused], now)
        return long_waits([*self._limits.waits(), *self._items_waiting(now)], now)

    def replicas(self) -> list[dict[str, Any]]:
        """Where the replicas stand that calls choose among; see ``Replicas.snapshot``."""
        return self._limits.replicas()

    def abort(self) -> None:
        """Stop now. Safe: whatever is not recorded is simply done again later."""
        self.stop("stopped at once", interrupted=True)
        for slot in list(self._slots):
            slot.cancel()

    def fail(self, error: Exception) -> None:
        """Stop because of an error, which ``run`` reports."""
        if self.ending.error is None:
            self.ending.error = error
        self.stop(str(error))
        if isinstance(error, StorageError):
            self.abort()

    def remark(self, text: str) -> None:
        """Something the person should know, said once, and of many such things only the first."""
        if text in self._remarks or len(self._remarks) > REMARKS:
            return
        self._remarks.append(text)
        self._notify(text if len(self._remarks) <= REMARKS else "… and more of that kind")

    def _notify(self, text: str) -> None:
        """Pass something on to the person; a caller's callback that breaks stops the run, whoever had something to say."""
        try:
            self._notice(text)
        except Exception as error:  # noqa: BLE001 - a callback may raise anything, and no call or item is to blame
            self.fail(error)

    async def _slot(self) -> None:
        slot = asyncio.current_task()
        try:
            while self._may_claim() and len(self._slots) <= self._max_slots:
                if self._pause.active:
                    await self._pause.change()
                    continue
                if self._backlog.full:
                    await self._backlog.room()
                    continue
                claimed = self._claims.take()
                if claimed is not None:
                    self._idle.wake()  # where one item has become due, others may have
                    self._backlog.wake()
                    await self._schedule(claimed)
                elif not await self._wait():
                    return
        except (StorageError, UserError) as error:
            self.fail(error)
        except Exception as error:
            self.fail(error)
            raise
        finally:
            self._slots.discard(slot)

    def _may_claim(self) -> bool:
        self.check_limits()
        return self.ending.stopped is None

    async def _wait(self) -> bool:
        """Wait until there may be something to claim; False if there never will be."""
        due = self._claims.next_due()
        if due is None and not self._in_flight:
            if self._refused:  # nothing else is left that could show whether it is the items or the endpoint
                await self._conclude_refused(*self._refused.first())
                self._idle.wake_all()  # other slots stay, as its end may make some work
                return True
            self._wake_all()
            return False
        if due is not None:
            self._wake_at(due)
        await self._idle.wait()
        return True

    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.01, due - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._claims.look_again()
        self._idle.wake()

    def _wake_all(self) -> None:
        self._idle.wake_all()
        self._backlog.wake_all()

    async def _schedule(self, claimed: Claimed) -> None:
        async with self._executing(claimed.item.number):
            again = True
            while again:
                again = await self._attempt_once(claimed)
        while self.ending.stopped is None and (known := self._refused.known()) is not None:
            await self._conclude_refused(*known)

    @asynccontextmanager
    async def _executing(self, number: int) -> AsyncIterator[None]:
        """While an item is in flight. One that was to be cancelled, and was put back instead just then, is cancelled after it."""
        self._in_flight.add(number)
        try:
            yield
            if number in self._cancelled and number not in self._refused.numbers():
                self._cancel_waiting(number, self._cancelled.pop(number))
                await self._store.writer.committed()  # up to then somebody might wait for the time when it is due
        finally:
            self._in_flight.discard(number)
            if not self._in_flight:
                self._idle.wake_all()

    async def _attempt_once(self, claimed: Claimed) -> bool:
        """Have an item executed once and put the result on disk; True if a fresh attempt is to follow at once."""
        number = claimed.item.number
        if number not in self._cancelled:
            self._store.start(number)
            if self._execution.claim_first:
                await self._store.writer.committed()
        if (why := self._cancelled.pop(number, None)) is not None:
            self._settle(claimed, _cancelled(why))
            return False
        workload, item = self._workload, claimed.item
        claim = Claim(item, claimed.attempt, group=workload.group(item))
        if claimed.performances > 0:
            claim.recorded = self._store.reader.recorded_outputs(number, claimed.attempt)
            claim.alone = claim.group is None and self._is_suspect(claimed)
        claim.facts = workload.facts(item, claimed.attempt, begun=bool(claim.recorded))
        claimed.performances += 1
        self._later.pop(number, None)
        result = await self._executor.execute(claim)
        if self._refused.keeps(claimed, result):
            return False
        return await self._conclude(claimed, result)

    async def _conclude(self, claimed: Claimed, result: AttemptResult) -> bool:
        """Put the result of an attempt on disk; True if a fresh attempt is to follow at once."""
        why = self._cancelled.pop(claimed.item.number, None)
        if why is not None and not isinstance(result, Ended):
            if isinstance(result, Failed):
                self._store.add_failure(claimed.item.number, claimed.attempt, result.failure)
            self._settle(claimed, _cancelled(why))
            return False
        match result:
            case Ended(outcome):
                self._settle(claimed, outcome)
                self._outage = 0
            case Failed():
                await self._failed(claimed, result)
            case Stopped():
                await self._put_back(claimed)
            case NeedsFreshAttempt(reason):
                return await self._start_afresh(claimed, reason)
            case Diverged(detail):
                return await self._diverged(claimed, detail)
        return False

    async def _conclude_refused(self, claimed: Claimed, failed: Failed) -> None:
        async with self._executing(claimed.item.number):
            await self._conclude(claimed, failed)

    async def _put_back_refused(self) -> None:
        """What was refused up to the end of the session is executed another time, as if it had not been, but after all others."""
        try:
            for claimed, failed in self._refused.drain():
                if claimed.item.number in self._cancelled:
                    await self._conclude(claimed, failed)
                    continue
                self._store.add_failure(claimed.item.number, claimed.attempt, failed.failure)
                await self._put_back(claimed, LAST)
        except StorageError as error:
            self.fail(error)

    def _items_waiting(self, now: float) -> Iterator[Wait]:
        """What items wait for that are executed again later, all together."""
        ahead = [wait for wait in self._later.values() if wait.until is not None and wait.until > now]
        if ahead:
            last = max(ahead, key=lambda wait: wait.since)
            yield replace(min(ahead, key=lambda wait: wait.until or now), why=last.why, waiting=len(ahead))

    def _settle(self, claimed: Claimed, outcome: Outcome) -> None:
        """Enter an item's end. What follows from it happens once that is on disk; the slot goes on meanwhile, and gets no further
        than its next item's first step, which is on disk later than this."""
        number = claimed.item.number
        self._settling.add(number)
        try:
            self._store.settle(number, outcome, lambda failure: self._settled(claimed, outcome, failure))
        except (TypeError, ValueError) as error:
            outcome = Outcome(ItemState.FAILED, cause=Cause.INTERNAL, message=f"its record is not JSON: {error}")
            self._store.settle(number, outcome, lambda failure: self._settled(claimed, outcome, failure))
        self._backlog.add()
        self._discards.ended(outcome)
        if (reason := self._workload.stop_reason(claimed.item, outcome)) is not None:
            self.stop(reason)
        if self._claims.free(self._workload.freed()):
            self._idle.wake()

    def _settled(self, claimed: Claimed, outcome: Outcome, failure: StorageError | None) -> None:
        """An item's end is on disk, or can't be written. What goes wrong here stops the run."""
        try:
            if failure is not None:
                raise failure
            self._ended(claimed, outcome)
        except Exception as error:  # noqa: BLE001 - a caller's callback may raise anything, and nobody else would hear of it
            self.fail(error)
        self._settling.discard(claimed.item.number)
        self._backlog.remove()

    def _ended(self, claimed: Claimed, outcome: Outcome) -> None:
        """What follows from an item's end."""
        if outcome.line is not None:
            self._outputs.append(claimed.item.number, outcome.line)
        self._claims.release(claimed.item.number)
        self._workspaces.item_ended(claimed.item.number, claimed.attempt, outcome.state)
        self._executor.over(claimed.item.number, claimed.attempt, failed=outcome.state is ItemState.FAILED)
        if self._on_outcome is not None:
            self._on_outcome(claimed.item, outcome)

    async def _put_back(self, claimed: Claimed, not_before: float = 0.0) -> None:
        number = claimed.item.number
        await self._store.put_back(number, attempt=claimed.attempt, failures=claimed.failures, not_before=not_before)
        self._claims.release(number)

    async def _failed(self, claimed: Claimed, failed: Failed) -> None:
        failure, rule = failed.failure, FAILURES[failed.failure.cause]
        self._store.add_failure(claimed.item.number, claimed.attempt, failure)
        if rule.stops_run:
            self.stop(failure.message)
            await self._put_back(claimed)
            return
        if rule.blameless and self._is_blameless(claimed.item.number, failed, rule):
            await self._put_back(claimed, self._clock.now())
            return
        claimed.failures += 1
        if (
            failed.shared_crash
        ):  # any item of that process may be to blame: no verdict before it had a process to itself
            claimed.failures = min(claimed.failures, self._retries.allowed(rule) - 1)
        self._outage = self._outage + 1 if failure.cause in OUTAGE_CAUSES else 0
        if self._outage >= OUTAGE:
            self.stop(f"{failure.message} ({OUTAGE} failures in a row: the endpoint seems to be down)")
            claimed.failures -= 1
            await self._put_back(claimed)
        elif claimed.failures < self._retries.max_attempts(claimed.item, failure):
            if rule.fresh_attempt:
                await self._next_attempt(claimed, failure.message)
            now, seconds = self._clock.now(), delay(rule, claimed.failures, failure.retry_after)
            self._later[claimed.item.number] = Wait(one_line(failure.message), now, now + seconds, 1, "item")
            await self._put_back(claimed, now + seconds)
        else:
            record = failure.record
            self._settle(claimed, Outcome(ItemState.FAILED, record, cause=failure.cause, message=failure.message))

    def _is_blameless(self, number: int, failed: Failed, rule: FailureRule) -> bool:
        """Whether a failure counts for nothing, as the item had no part in it."""
        self._blameless[number, failed.failure.cause] += 1
        return self._blameless[number, failed.failure.cause] <= rule.blameless

    def _is_suspect(self, claimed: Claimed) -> bool:
        """Whether the item was in a process that died, and has only one chance left."""
        crashed = self._store.reader.last_cause(claimed.item.number) == Cause.WORKER_CRASH
        return crashed and claimed.failures >= self._retries.allowed(FAILURES[Cause.WORKER_CRASH]) - 1

    async def _diverged(self, claimed: Claimed, detail: str) -> bool:
        item = f"item {claimed.item.number}"
        if self._execution.on_divergence == "stop":
            await self._put_back(claimed)
            self.fail(UserError(f"{item}: {detail} (--on_divergence=fresh pays for it anew)"))
            return False
        reason = f"the recorded steps do not fit any more: {detail}"
        self.remark(f"{item}: {reason}; it starts a fresh attempt")
        return await self._start_afresh(claimed, reason)

    async def _start_afresh(self, claimed: Claimed, reason: str) -> bool:
        claimed.restarts += 1
        if claimed.restarts > FRESH_ATTEMPTS:
            self._settle(claimed, Outcome(ItemState.FAILED, cause=Cause.SANDBOX_LOST, message=reason))
            return False
        await self._next_attempt(claimed, reason)
        await self._store.put_back(claimed.item.number, attempt=claimed.attempt, failures=claimed.failures)
        if self.ending.stopped is not None:
            self._claims.release(claimed.item.number)
            return False
        return True

    async def _next_attempt(self, claimed: Claimed, reason: str) -> None:
        self._store.end_attempt(claimed.item.number, claimed.attempt, reason)
        await self._workspaces.remove(claimed.item.number, claimed.attempt)
        self._executor.over(claimed.item.number, claimed.attempt, failed=None)
        claimed.attempt += 1
        claimed.performances = 0


def _cancelled(why: str) -> Outcome:
    return Outcome(ItemState.CANCELLED, cause=Cause.CANCELLED, message=why)
