"""The scheduler: slots that pull items, failures that go back or end, one way to stop."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError, StorageError, UserError
from manyhands.core.failures import FAILURES, Cause, FailureRule
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.text import one_line
from manyhands.engine.attempt import KEEP, WORKSPACES, Claim, Performed, workspace_of
from manyhands.engine.claims import LAST, Claimed, Claims
from manyhands.engine.contract import Execution, Item
from manyhands.engine.discards import DiscardWatch, Remedies
from manyhands.engine.executors.local import Executor
from manyhands.engine.journal.store import Store
from manyhands.engine.limits.shared import LONGEST_HOLD, SharedLimits
from manyhands.engine.limits.waits import Wait, long_waits
from manyhands.engine.outputs import OutputFiles
from manyhands.io.files import remove_tree

FRESH_ATTEMPTS = 5
"""Fresh attempts, one after the other, after which an item that keeps losing its world fails."""
REMARKS = 10
OUTAGE = 10
"""Performances in a row, over all items, that failed because the model did not answer: then the run stops instead of failing everything."""
OUTAGE_CAUSES = frozenset({Cause.MODEL_ERROR, Cause.RATE_LIMIT})
MOST_REFUSED = 200
"""Refused performances whose end is left open at most."""
MOST_UNSETTLED = 1000
"""Ends of items that may wait for their commit before nothing more is claimed, where there are not more slots than that anyway."""


@dataclass(slots=True)
class Ending:
    """How a session ended. ``stopped``: why it ended before the work was done (None: it is done)."""

    stopped: str | None = None
    interrupted: bool = False
    error: Exception | None = None


class Engine:
    """Performs what is pending in one store until nothing is left or somebody says stop."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        outputs: OutputFiles,
        clock: Clock,
        execution: Execution,
        limits: SharedLimits,
        on_outcome: Callable[[Item, Outcome], None] | None = None,
        *,
        notice: Callable[[str], None] = lambda text: None,
        remedies: Remedies | None = None,
    ) -> None:
        """``on_outcome`` is told of every end of an item, once it is on disk; ``notice`` is told what a person should know at once;
        ``remedies``: what can be done about items that are discarded."""
        self._store = store
        self._executor = executor
        self._outputs = outputs
        self._clock = clock
        self._execution = execution
        self._limits = limits
        self._refusals_told: list[str] = []
        """What is to be told of refusals at the next look."""
        limits.on_refused, limits.refusals.notice = self.check_limits, self._refusals_told.append
        self._on_outcome = on_outcome
        self._notice = notice
        self._remarks: list[str] = []
        completed = any(state == ItemState.COMPLETED for state, _ in store.reader.counts())
        self._discards = DiscardWatch(remedies or {}, self._tell, completed=completed)
        self._refused: deque[tuple[Claimed, Performed]] = deque()
        """Performances that an endpoint refused, as it has all since its last answer: whether their items have failed is seen when it
        answers something, or when nothing else is left to do."""
        self._later: dict[int, Wait] = {}
        """What items wait for that are performed again later, by their numbers."""
        self._workspaces = str(store.folder / WORKSPACES)
        self._claims = Claims(store.reader, clock, execution.holds)
        self._idle: deque[asyncio.Future[None]] = deque()
        self._performing = 0
        self._slots: set[asyncio.Task[None]] = set()
        self._unsettled = 0
        self._most_unsettled = max(MOST_UNSETTLED, executor.capacity)
        self._for_room: deque[asyncio.Future[None]] = deque()
        self._room_told = False
        self._all_settled: asyncio.Future[None] | None = None
        self._removals: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._outage = 0
        self._looked_at = -1
        self._workspaces_there = False
        self.ending = Ending()

    @property
    def in_flight(self) -> int:
        return self._performing

    async def run(self) -> Ending:
        """Perform until done or stopped. Never raises for what went wrong with the run: see ``Ending.error``."""
        pending = sum(count for (state, _), count in self._store.reader.counts().items() if state == ItemState.PENDING)
        most = self._execution.most_in_flight or pending
        for _ in range(min(self._executor.capacity, pending, most)):
            slot = asyncio.create_task(self._slot())
            self._slots.add(slot)
        if self._slots:
            await asyncio.gather(*self._slots, return_exceptions=True)
        await self._put_back_refused()
        self.tell_refusals(but=self.ending.stopped)  # which is what the session ends with
        if self._unsettled:
            self._all_settled = asyncio.get_running_loop().create_future()
            await self._all_settled
        while self._removals:
            await asyncio.wait(self._removals)
        if self._timer is not None:
            self._timer.cancel()
        return self.ending

    def stop(self, reason: str, *, interrupted: bool = False) -> None:
        """Claim no more, begin no further step; what is in flight ends and is recorded."""
        if self.ending.stopped is None:
            self.ending.stopped = reason
            self.ending.interrupted = interrupted
            self._limits.stop()
            self._executor.stop()
            self._wake_all()

    def check_limits(self) -> None:
        """Stop if the budget is used up, or an endpoint refuses everything."""
        reason = self._limits.budget.reason or self._limits.refusals.reason
        if reason is not None:
            self.stop(reason)

    def tell_refusals(self, *, but: str | None = None) -> None:
        """Tell what was refused since the last look. ``but``: a refusal that is told in another way."""
        told, self._refusals_told[:] = list(self._refusals_told), []
        for said in told:
            if said != but:
                self._tell(f"refused: {said}")

    def waits(self) -> tuple[Wait, ...]:
        """What keeps the run from going on, of all that takes so long that a person should know."""
        now = self._clock.now()
        return long_waits([*self._limits.waits(), *self._items_waiting(now)], now)

    def abort(self) -> None:
        """Stop now. Safe: whatever is not recorded is simply done again later."""
        self.stop("stopped at once", interrupted=True)
        for slot in self._slots:
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
        self._tell(text if len(self._remarks) <= REMARKS else "… and more of that kind")

    def _tell(self, text: str) -> None:
        """Pass something on to the person; a caller's callback that breaks stops the run, whoever had something to say."""
        try:
            self._notice(text)
        except Exception as error:  # noqa: BLE001 - a callback may raise anything, and no call or item is to blame
            self.fail(error)

    async def _slot(self) -> None:
        try:
            while self._may_claim():
                if self._unsettled >= self._most_unsettled:
                    await self._room_for_more()
                    continue
                claimed = self._claims.take()
                if claimed is not None:
                    self._wake_one()  # where one item has become due, others may have
                    self._tell_of_room()
                    await self._perform(claimed)
                elif not await self._wait():
                    return
        except (StorageError, UserError) as error:
            self.fail(error)
        except Exception as error:
            self.fail(error)
            raise

    def _may_claim(self) -> bool:
        self.check_limits()
        return self.ending.stopped is None

    async def _room_for_more(self) -> None:
        """Wait for a commit. Items that take no step never wait for one otherwise: a single slot would go through all of them, and
        neither the journal nor anybody else would get a turn."""
        future = asyncio.get_running_loop().create_future()
        self._for_room.append(future)
        try:
            await future
        finally:
            self._room_told = False

    def _tell_of_room(self) -> None:
        """Wake one slot that waits for room, and no other before that one had its turn: it may well take all the room there is."""
        if self._for_room and not self._room_told and self._unsettled < self._most_unsettled:
            self._room_told = _wake(self._for_room)

    async def _wait(self) -> bool:
        """Wait until there may be something to claim; False if there never will be."""
        due = self._claims.next_due()
        if due is None and self._performing == 0:
            if self._refused:  # nothing else is left that could show whether it is the items or the endpoint
                await self._conclude_refused()
                return True
            self._wake_all()
            return False
        if due is not None:
            self._wake_at(due)
        future = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        await future
        return True

    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.01, due - self._clock.now())
        self._timer = asyncio.get_running_loop().call_later(delay, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._claims.look_again()
        self._wake_one()

    def _wake_one(self) -> None:
        _wake(self._idle)

    def _wake_idle(self) -> None:
        while _wake(self._idle):
            pass

    def _wake_all(self) -> None:
        self._wake_idle()
        while _wake(self._for_room):
            pass

    async def _perform(self, claimed: Claimed) -> None:
        self._performing += 1
        try:
            again = True
            while again:
                again = await self._perform_once(claimed)
        finally:
            self._performing -= 1
            if self._performing == 0:
                self._wake_idle()

    async def _perform_once(self, claimed: Claimed) -> bool:
        """Perform an item once and put the result on disk; True if a fresh attempt is to follow at once."""
        number = claimed.item.number
        self._store.start(number)
        if self._execution.claim_first:
            await self._store.writer.committed()
        claim = Claim(claimed.item, claimed.attempt)
        if claimed.performances > 0:
            recorded = tuple(self._store.reader.all("recorded_steps", number, claimed.attempt))
            claim = Claim(claimed.item, claimed.attempt, recorded, alone=self._is_suspect(claimed))
        claimed.performances += 1
        self._later.pop(number, None)
        performed = await self._executor.perform(claim)
        if self._is_refusal(performed):
            self._refused.append((claimed, performed))
            return False
        again = await self._conclude(claimed, performed)
        await self._look_at_refused()
        return again

    async def _conclude(self, claimed: Claimed, performed: Performed) -> bool:
        """Put the result of a performance on disk; True if a fresh attempt is to follow at once."""
        if performed.outcome is not None:
            self._settle(claimed, performed.outcome)
            self._outage = 0
        elif performed.failure is not None:
            await self._failed(claimed, performed.failure, shared_crash=performed.shared_crash)
        elif performed.interrupted:
            await self._put_back(claimed)
        else:
            return await self._start_afresh(claimed, performed)
        return False

    def _is_refusal(self, performed: Performed) -> bool:
        """Whether an endpoint that has refused everything since its last answer is why a performance failed."""
        failure = performed.failure
        if failure is None or FAILURES[failure.cause].stops_run or self._execution.counts_failures:
            return False
        return self._limits.refusals.explains(failure.message)

    async def _look_at_refused(self) -> None:
        """Conclude what was refused once it is clear that it was these items' own fault."""
        while self._refused and self.ending.stopped is None:
            failure = self._refused[0][1].failure
            open_still = failure is not None and self._limits.refusals.explains(failure.message)
            if open_still and len(self._refused) <= MOST_REFUSED:
                return
            await self._conclude(*self._refused.popleft())

    async def _conclude_refused(self) -> None:
        """The like for one, when there is no other work; other slots stay, as it may make some."""
        self._performing += 1
        try:
            await self._conclude(*self._refused.popleft())
        finally:
            self._performing -= 1
            self._wake_idle()

    async def _put_back_refused(self) -> None:
        """What was refused up to the end of the session is performed another time, as if it had not been, but after all others."""
        try:
            while self._refused:
                claimed, performed = self._refused.popleft()
                if performed.failure is not None:
                    self._store.add_failure(claimed.item.number, claimed.attempt, performed.failure)
                await self._put_back(claimed, LAST)
        except StorageError as error:
            self.fail(error)

    def _items_waiting(self, now: float) -> Iterator[Wait]:
        """What items wait for that are performed again later, all together."""
        ahead = [wait for wait in self._later.values() if wait.until is not None and wait.until > now]
        if ahead:
            last = max(ahead, key=lambda wait: wait.since)
            yield replace(min(ahead, key=lambda wait: wait.until or now), why=last.why, waiting=len(ahead))

    def _settle(self, claimed: Claimed, outcome: Outcome) -> None:
        """Enter an item's end. What follows from it happens once that is on disk; the slot goes on meanwhile, and gets no further
        than its next item's first step, which is on disk later than this."""
        number = claimed.item.number
        try:
            self._store.settle(number, outcome, lambda failure: self._settled(claimed, outcome, failure))
        except (TypeError, ValueError) as error:
            outcome = Outcome(ItemState.FAILED, cause=Cause.INTERNAL, message=f"its record is not JSON: {error}")
            self._store.settle(number, outcome, lambda failure: self._settled(claimed, outcome, failure))
        self._unsettled += 1
        self._discards.ended(outcome)
        if self._execution.stops is not None and (reason := self._execution.stops(claimed.item, outcome)) is not None:
            self.stop(reason)
        if self._execution.freed is not None and self._claims.free(self._execution.freed()):
            self._wake_one()

    def _settled(self, claimed: Claimed, outcome: Outcome, failure: StorageError | None) -> None:
        """An item's end is on disk, or can't be written. What goes wrong here stops the run."""
        self._unsettled -= 1
        try:
            if failure is not None:
                raise failure
            self._ended(claimed, outcome)
        except Exception as error:  # noqa: BLE001 - a caller's callback may raise anything, and nobody else would hear of it
            self.fail(error)
        self._tell_of_room()
        if self._all_settled is not None and not self._unsettled:
            self._all_settled.set_result(None)

    def _ended(self, claimed: Claimed, outcome: Outcome) -> None:
        """What follows from an item's end."""
        if outcome.line is not None:
            self._outputs.append(claimed.item.number, outcome.line)
        self._claims.release(claimed.item.number)
        if self._may_have_workspace():
            folder, execution = self._workspace_of(claimed), self._execution
            if not _stays(folder, outcome.state, remove=execution.remove_workspaces):
                removal = asyncio.create_task(self._remove_workspace(claimed))
                self._removals.add(removal)
                removal.add_done_callback(self._removed)
        if self._on_outcome is not None:
            self._on_outcome(claimed.item, outcome)

    def _removed(self, removal: asyncio.Task[None]) -> None:
        self._removals.discard(removal)
        if not removal.cancelled() and (error := removal.exception()) is not None:
            self.fail(error if isinstance(error, Exception) else RuntimeError(str(error)))

    async def _put_back(self, claimed: Claimed, not_before: float = 0.0) -> None:
        number = claimed.item.number
        await self._store.put_back(number, attempt=claimed.attempt, failures=claimed.failures, not_before=not_before)
        self._claims.release(number)

    async def _failed(self, claimed: Claimed, failure: ItemError, *, shared_crash: bool) -> None:
        rule = FAILURES[failure.cause]
        self._store.add_failure(claimed.item.number, claimed.attempt, failure)
        if rule.stops_run:
            self.stop(failure.message)
            await self._put_back(claimed)
            return
        claimed.failures += 1
        if shared_crash:  # any item of that process may be to blame: no verdict before it had a process to itself
            claimed.failures = min(claimed.failures, self._allowed(rule) - 1)
        self._outage = self._outage + 1 if failure.cause in OUTAGE_CAUSES else 0
        if self._outage >= OUTAGE:
            self.stop(f"{failure.message} ({OUTAGE} failures in a row: the endpoint seems to be down)")
            claimed.failures -= 1
            await self._put_back(claimed)
        elif claimed.failures < self._tries(claimed, failure, rule):
            if rule.fresh_attempt:
                await self._next_attempt(claimed, failure.message)
            now, delay = self._clock.now(), _delay(rule, claimed.failures, failure.retry_after)
            self._later[claimed.item.number] = Wait(one_line(failure.message), now, now + delay, 1, "item")
            await self._put_back(claimed, now + delay)
        else:
            record = failure.record
            self._settle(claimed, Outcome(ItemState.FAILED, record, cause=failure.cause, message=failure.message))

    def _is_suspect(self, claimed: Claimed) -> bool:
        """Whether the item was in a process that died, and has only one chance left."""
        last = self._store.reader.one("last_failure", claimed.item.number)
        allowed = self._allowed(FAILURES[Cause.WORKER_CRASH])
        return last is not None and last[0] == Cause.WORKER_CRASH and claimed.failures >= allowed - 1

    def _tries(self, claimed: Claimed, failure: ItemError, rule: FailureRule) -> int:
        """How often an item may be performed, given this failure."""
        own = None if self._execution.tries is None else self._execution.tries(claimed.item, failure)
        return self._allowed(rule) if own is None else own

    def _allowed(self, rule: FailureRule) -> int:
        """How often an item may be performed under a rule."""
        if not rule.retried:
            return 1
        return rule.performances if self._execution.max_attempts is None else self._execution.max_attempts

    async def _start_afresh(self, claimed: Claimed, performed: Performed) -> bool:
        reason = performed.fresh_attempt or f"the recorded steps do not fit any more: {performed.divergence}"
        if performed.divergence is not None:
            if self._execution.on_divergence == "stop":
                await self._put_back(claimed)
                self.fail(
                    UserError(
                        f"item {claimed.item.number}: {performed.divergence} (--on_divergence=fresh pays for it anew)"
                    )
                )
                return False
            self.remark(f"item {claimed.item.number}: {reason}; it starts a fresh attempt")
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
        await self._remove_workspace(claimed)
        claimed.attempt += 1
        claimed.performances = 0

    def _may_have_workspace(self) -> bool:
        """Whether any item has one. Looked up once for all that a commit ended: what these made was there before it."""
        commits = self._store.writer.commits
        if commits != self._looked_at:
            self._looked_at = commits
            self._workspaces_there = not self._execution.keep_workspaces and os.path.exists(self._workspaces)
        return self._workspaces_there

    async def _remove_workspace(self, claimed: Claimed) -> None:
        folder = self._workspace_of(claimed)
        if not self._execution.keep_workspaces and folder.exists():
            await asyncio.to_thread(remove_tree, folder)

    def _workspace_of(self, claimed: Claimed) -> Path:
        return workspace_of(self._store.folder, claimed.item.number, claimed.attempt)


def sweep_workspaces(store: Store, execution: Execution) -> None:
    """Remove folders that a crash left behind: those of items that ended well, and of attempts that were given up."""
    root = store.folder / WORKSPACES
    if execution.keep_workspaces or not root.is_dir():
        return
    for folder in root.iterdir():
        if not _still_needed(store, folder, remove=execution.remove_workspaces):
            remove_tree(folder)
    if not any(root.iterdir()):
        shutil.rmtree(root)


def _still_needed(store: Store, folder: Path, *, remove: bool) -> bool:
    number, _, attempt = folder.name.partition("-")
    row = store.reader.item(number) if number.isdecimal() else None
    if row is None or not attempt.isdecimal():
        return False
    return row.attempt == int(attempt) and _stays(folder, row.state, remove=remove)


def _wake(waiting: deque[asyncio.Future[None]]) -> bool:
    """Wake the first that still waits; False if none does."""
    while waiting:
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
            return True
    return False


def _stays(folder: Path, state: ItemState, *, remove: bool) -> bool:
    """Whether the folder of an item's attempt is kept. ``remove``: that of no item that has ended."""
    if not state.final:
        return True
    return not remove and (state is ItemState.FAILED or (folder / KEEP).exists())


def _delay(rule: FailureRule, failures: int, retry_after: float | None) -> float:
    """Seconds before an item that failed so often is performed again."""
    delay = min(rule.longest_delay, rule.delay * 2.0 ** max(0, failures - 1))
    return max(delay, min(retry_after or 0.0, LONGEST_HOLD), 0.001)
