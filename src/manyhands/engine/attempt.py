"""Performing one item: steps recorded, recorded steps replayed, every way of ending named."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Protocol, TypeVar

from manyhands.core.clock import Clock
from manyhands.core.digests import derive_seed, derived_random, digest
from manyhands.core.errors import Divergence, Interrupted, ItemError, ManyhandsError, StorageError, UserError, describe
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, without_surrogates
from manyhands.core.outcomes import Outcome
from manyhands.core.redaction import KNOWN
from manyhands.core.usage import ZERO, plausible
from manyhands.engine.contract import Context, Effect, Item, Limits, Workload
from manyhands.engine.journal.records import StepRow, pack, unpack
from manyhands.io.files import is_full, make_private

ROOT_SCOPE = ""
WORKSPACES = "workspaces"
KEEP = "keep"
"""A file of this name in an attempt's folder: whoever made it wants the folder to stay when the item has ended."""
LAST_STEPS_SECONDS = 120.0
"""How long the end of a performance waits for steps that are still in flight (a branch failed while another one was calling)."""
_inside_effect: ContextVar[bool] = ContextVar("manyhands_inside_effect", default=False)
_Kind = TypeVar("_Kind", bound=BaseException)
_Broken = TypeVar("_Broken", bound=Exception)


class Journal(Protocol):
    """Where a performance records its steps."""

    def record(self, row: StepRow) -> Awaitable[None]:
        """Done when the step is durable."""
        ...


@dataclass(slots=True)  # not frozen: see Outcome
class Claim:
    """An item to be performed. ``recorded`` are its attempt's steps: (scope, seq, kind, digest, packed output)."""

    item: Item
    attempt: int
    recorded: tuple[tuple[str, int, str, bytes, bytes], ...] = ()
    alone: bool = False
    """Perform it in a process where nothing else is performed meanwhile: it is suspected of killing its process."""


@dataclass(slots=True)  # not frozen: see Outcome
class Performed:
    """How one performance of an item came out: exactly one of the four is set (``interrupted``: it stopped on request and is to be
    continued some other time)."""

    outcome: Outcome | None = None
    failure: ItemError | None = None
    fresh_attempt: str | None = None
    divergence: str | None = None
    interrupted: bool = False
    shared_crash: bool = False
    """With a failure of cause ``worker_crash``: other items were in the process too, so that any of them may be to blame."""


class NewAttemptNeeded(ManyhandsError):
    """The attempt can't go on."""


class UnrecordedStep(ManyhandsError):
    """A performance from the journal alone came to a step that the journal does not hold."""


@dataclass(slots=True)
class Surroundings:
    """What all performances in one process share."""

    journal: Journal
    limits: Limits
    clock: Clock
    seed: int
    folder: Path
    """The run folder."""
    stopping: bool = False
    replay_only: bool = False


class ItemContext:
    """The Context of one performance (or one scope of it)."""

    __slots__ = ("_claim", "_next", "_performance", "_scope", "_surroundings")

    def __init__(self, surroundings: Surroundings, claim: Claim, performance: _Performance, scope: str) -> None:
        self._surroundings = surroundings
        self._claim = claim
        self._performance = performance
        self._scope = scope
        self._next = 0

    @property
    def performance(self) -> _Performance:
        """What the scopes share; for the engine."""
        return self._performance

    @property
    def item(self) -> Item:
        return self._claim.item

    @property
    def attempt(self) -> int:
        return self._claim.attempt

    @property
    def clock(self) -> Clock:
        return self._surroundings.clock

    @property
    def limits(self) -> Limits:
        return self._surroundings.limits

    @property
    def workspace(self) -> Path:
        try:
            make_private(self._surroundings.folder / WORKSPACES)
        except OSError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"can't make the folder of workspaces: {error.strerror}") from error
        return workspace_of(self._surroundings.folder, self._claim.item.number, self._claim.attempt)

    @property
    def replaying(self) -> bool:
        return (self._scope, self._next) in self._performance.recorded

    @property
    def resumed(self) -> bool:
        return bool(self._claim.recorded)

    @property
    def place(self) -> str:
        return f"{self._scope}/{self._next}"

    async def step(self, kind: str, request: Json, effect: Callable[[], Awaitable[Effect]]) -> Json:
        seq = self._next
        self._next = seq + 1
        request = KNOWN.json(request)  # as it is recorded, whatever the key is when it is performed again
        identity = digest(kind, request)
        performance = self._performance
        recorded = performance.recorded.get((self._scope, seq))
        if recorded is not None:
            return self._replayed(seq, kind, identity, recorded)
        if self._surroundings.replay_only:
            raise performance.broken_by(UnrecordedStep(f"step {self._scope}/{seq} ({kind}) is not in the journal"))
        if self._surroundings.stopping or performance.ended:
            await (
                performance.quiet()
            )  # an exception in one branch often cancels the others, whose calls are to be recorded first
            raise performance.broken_by(Interrupted())
        performance.in_flight += 1
        try:
            return await self._take(seq, kind, identity, request, effect)
        finally:
            performance.step_ended()

    def scope(self, name: str) -> Context:
        full = without_surrogates(f"{self._scope}/{name}" if self._scope else name)
        self._performance.open_scope(full)
        return ItemContext(self._surroundings, self._claim, self._performance, full)

    def random(self, purpose: str) -> Random:
        return derived_random(self._surroundings.seed, self._claim.item.key, purpose)

    def seed(self, purpose: str) -> int:
        return derive_seed(self._surroundings.seed, self._claim.item.key, purpose)

    def new_attempt_needed(self, reason: str) -> Exception:
        return NewAttemptNeeded(reason)

    async def _take(
        self, seq: int, kind: str, identity: bytes, request: Json, effect: Callable[[], Awaitable[Effect]]
    ) -> Json:
        """Perform a step's effect and record it."""
        clock = self._surroundings.clock
        started = clock.now()
        token = _inside_effect.set(True)
        try:
            result = await effect()
            output = KNOWN.json(result.output)  # nobody sees now what a replay would not give him
        finally:
            _inside_effect.reset(token)
        if self._performance.abandoned:
            raise Interrupted
        row = StepRow(
            self._claim.item.number,
            self._claim.attempt,
            self._scope,
            seq,
            kind,
            identity,
            pack(request),
            pack(output),
            plausible(result.usage) if result.usage is not ZERO else ZERO,
            started,
            clock.now(),
        )
        await self._surroundings.journal.record(row)
        return output

    def _replayed(self, seq: int, kind: str, identity: bytes, recorded: tuple[str, bytes, bytes]) -> Json:
        recorded_kind, recorded_identity, output = recorded
        if recorded_identity != identity:
            detail = " with another request" * (kind == recorded_kind)
            raise self._performance.broken_by(Divergence(self._scope, seq, recorded_kind, kind, detail))
        self._performance.replayed.add((self._scope, seq))
        return unpack(output)


class _Performance:
    """The state that the scopes of one performance share."""

    __slots__ = ("_waiters", "abandoned", "broken", "ended", "in_flight", "recorded", "replayed", "scopes")

    def __init__(self, claim: Claim) -> None:
        self.recorded: dict[tuple[str, int], tuple[str, bytes, bytes]] = {}
        for scope, seq, kind, identity, output in claim.recorded:
            self.recorded[scope, seq] = kind, identity, output
        self.replayed: set[tuple[str, int]] = set()
        self.scopes = {ROOT_SCOPE}
        self.broken: Exception | None = None
        """Why the performance can't come to an end of its own, even if the workload should overlook it."""
        self.in_flight = 0
        self.ended = False
        """No further step may begin."""
        self.abandoned = False
        """Steps that are still in flight are not recorded any more."""
        self._waiters: list[asyncio.Future[None]] = []

    def broken_by(self, error: _Broken) -> _Broken:
        """Remember the first error that breaks the performance; returns the error, to be raised."""
        self.broken = self.broken or error
        return error

    def step_ended(self) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    async def quiet(self) -> None:
        """Wait until no step is in flight (from within a step, there is nothing to wait for)."""
        if self.in_flight and not _inside_effect.get():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def last_steps(self) -> None:
        """Let the steps end that the workload left in flight, so that what they cost is not lost."""
        try:
            async with asyncio.timeout(LAST_STEPS_SECONDS):
                await self.quiet()
        except TimeoutError:
            self.abandoned = True

    def open_scope(self, name: str) -> None:
        if name in self.scopes:
            raise ValueError(f"the scope {name!r} was opened before in this item")
        self.scopes.add(name)

    def unused(self) -> list[tuple[str, int]]:
        """Recorded places that were never come to."""
        if len(self.replayed) == len(self.recorded):
            return []
        return sorted(set(self.recorded) - self.replayed)


async def perform_item(
    workload: Workload, surroundings: Surroundings, claim: Claim, timeout: float | None
) -> Performed:
    """Perform an item once. ``timeout``: its wall-clock limit in seconds.

    Raises only StorageError (the journal can't be written), UserError (the workload can't be used as configured) and CancelledError.
    """
    performance = _Performance(claim)
    try:
        performed = await _performed(workload, ItemContext(surroundings, claim, performance, ROOT_SCOPE), timeout)
        performance.ended = True
        if performance.in_flight:
            await performance.last_steps()
        return _without_secrets(performed)
    except BaseException:
        performance.ended = performance.abandoned = True
        raise


def _without_secrets(performed: Performed) -> Performed:
    """An end of an item as it may be recorded and written."""
    outcome, failure = performed.outcome, performed.failure
    if not KNOWN or (outcome is None and failure is None):
        return performed
    if outcome is not None:
        try:
            record = KNOWN.json(outcome.record)
        except (TypeError, ValueError) as error:
            return Performed(failure=ItemError(Cause.INTERNAL, f"its record is not JSON: {error}"))
        outcome = replace(
            outcome,
            record=record,
            message=None if outcome.message is None else KNOWN.text(outcome.message),
            line=None if outcome.line is None else (outcome.line[0], KNOWN.document(outcome.line[1])),
        )
    if failure is not None:
        message, record = KNOWN.text(failure.message), KNOWN.json(failure.record)
        failure = ItemError(failure.cause, message, retry_after=failure.retry_after, record=record)
    return replace(performed, outcome=outcome, failure=failure)


async def _performed(workload: Workload, context: ItemContext, timeout: float | None) -> Performed:
    performance = context.performance
    limit = None if timeout is None else asyncio.timeout(timeout)
    try:
        if limit is None:
            outcome = await workload.perform(context)
        else:
            async with limit:
                outcome = await workload.perform(context)
        if performance.broken is not None:
            return classify(performance.broken)
        if unused := performance.unused():
            return Performed(
                divergence=f"step {unused[0][0]}/{unused[0][1]} was recorded, but is not performed any more"
            )
        return Performed(outcome=outcome)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Performed(failure=ItemError(Cause.INTERNAL, "something that the item waited for was cancelled"))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary where whatever a workload raises becomes a recorded failure
        if limit is not None and limit.expired() and _first(error, TimeoutError) is not None:
            performance.abandoned = True
            return Performed(failure=ItemError(Cause.TIMEOUT, f"took longer than {timeout:g} s"))
        return classify(error, performance.broken)


def classify(error: BaseException, broken: Exception | None = None) -> Performed:
    """What an exception means, whatever group it is wrapped in. ``broken``: an earlier one, which the workload may have overlooked."""
    if broken is not None and broken is not error:
        error = BaseExceptionGroup("", (broken, error))
    fatal = _first(error, StorageError) or _first(error, UserError) or _first(error, UnrecordedStep)
    if fatal is not None:
        raise fatal
    if (divergence := _first(error, Divergence)) is not None:
        return Performed(divergence=str(divergence))
    if (needed := _first(error, NewAttemptNeeded)) is not None:
        return Performed(fresh_attempt=str(needed))
    if _first(error, Interrupted) is not None:
        return Performed(interrupted=True)
    if (full := _without_room(error)) is not None:
        raise StorageError(full)
    if (failure := _first(error, ItemError)) is not None:
        return Performed(failure=failure.bare())
    leaf = next(_leaves(error), error)
    return Performed(failure=ItemError(Cause.INTERNAL, describe(leaf)))


def _without_room(error: BaseException) -> str | None:
    """What to say of an error that came of a full disk (no bytes, no inodes, no quota), wherever it was met: no item's fault, and all
    others would meet it too."""
    for leaf in _leaves(error):
        link: BaseException | None = leaf
        seen: set[int] = set()
        while link is not None and id(link) not in seen:  # an error may be its own cause
            seen.add(id(link))
            if isinstance(link, OSError) and link.errno is not None and is_full(link):
                said = leaf.message if isinstance(leaf, ItemError) else str(link)
                return said if os.strerror(link.errno) in said else f"{said} ({os.strerror(link.errno)})"
            link = link.__cause__
    return None


def workspace_of(run_folder: Path, item: int, attempt: int) -> Path:
    """The folder that belongs to one attempt alone."""
    return Path(f"{run_folder}/{WORKSPACES}/{item}-{attempt}")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _first(error: BaseException, kind: type[_Kind]) -> _Kind | None:
    return next((leaf for leaf in _leaves(error) if isinstance(leaf, kind)), None)
