"""One attempt at an item: steps recorded, recorded steps replayed, every way of ending named."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

from manyhands.core.clock import Clock
from manyhands.core.digests import derive_seed, derived_random, digest
from manyhands.core.errors import Divergence, Interrupted, ItemError, ManyhandsError, StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, without_surrogates
from manyhands.core.outcomes import Outcome
from manyhands.core.redaction import KNOWN, describe
from manyhands.core.usage import ZERO, Reserve, plausible
from manyhands.engine.contract import CallReport, Context, Effect, Item, Limits, OneOf, OwnLimit, Workload
from manyhands.engine.journal.records import RecordedOutput, StepRow, pack, unpack
from manyhands.engine.pause import Pause
from manyhands.engine.workspaces import WORKSPACES, workspace_of
from manyhands.io.files import is_full, make_private

ROOT_SCOPE = ""
PARTS = "/parts"
"""Behind a step's address: the scope of the steps that it is made of."""
LAST_STEPS_SECONDS = 120.0
"""How long the end of an attempt waits for steps that are still in flight (a branch failed while another one was calling)."""
_inside_effect: ContextVar[bool] = ContextVar("manyhands_inside_effect", default=False)
_Kind = TypeVar("_Kind", bound=BaseException)
_Broken = TypeVar("_Broken", bound=Exception)


class Journal(Protocol):
    """Where an attempt records its steps."""

    def record(self, row: StepRow) -> Awaitable[None]:
        """Done when the step is durable."""
        ...


@dataclass(slots=True)  # not frozen: see Outcome
class Claim:
    """An item to be executed."""

    item: Item
    attempt: int
    recorded: tuple[RecordedOutput, ...] = ()
    """The steps of the attempt that the journal holds."""
    alone: bool = False
    """Execute it in a process where nothing else is executed meanwhile: it is suspected of killing its process."""
    group: str | None = None
    """Execute it in the process that executes the others of this group."""
    facts: Json = None
    """What the workload's owner says of it, see ``Workload.facts``."""


@dataclass(slots=True)  # not frozen: see Outcome
class Ended:
    """The item has ended."""

    outcome: Outcome


@dataclass(slots=True)
class Failed:
    """The attempt failed. What follows, the failure table says."""

    failure: ItemError
    shared_crash: bool = False
    """With the cause ``worker_crash``: other items were in the process too, so that any of them may be to blame."""


@dataclass(slots=True)
class NeedsFreshAttempt:
    """The attempt can't go on, as its world is gone."""

    reason: str


@dataclass(slots=True)
class Diverged:
    """The recorded steps do not fit what the workload does now."""

    detail: str


@dataclass(slots=True)
class Stopped:
    """It stopped on request, and is to be continued some other time."""


AttemptResult = Ended | Failed | NeedsFreshAttempt | Diverged | Stopped
"""How one execution of an attempt ended."""


class NewAttemptNeeded(ManyhandsError):
    """The attempt can't go on."""


class UnrecordedStep(ManyhandsError):
    """An attempt that is replayed from the journal alone came to a step that the journal does not hold."""


@dataclass(slots=True)
class AttemptSettings:
    """What all attempts in one process share."""

    journal: Journal
    limits: Limits
    clock: Clock
    seed: int
    folder: Path
    """The run folder."""
    pause: Pause = field(default_factory=Pause)
    """While it is active, whatever would begin a step waits."""
    cancelled: set[int] = field(default_factory=set)
    """Numbers of items of which no further step may begin."""
    stopping: bool = False
    """No further step may begin."""
    replay_only: bool = False
    """Nothing may happen outside: a step that is not recorded raises UnrecordedStep."""


class AttemptContext:
    """The Context of one attempt, or of one scope of it."""

    __slots__ = ("_claim", "_next", "_scope", "_settings", "_state")

    def __init__(
        self, settings: AttemptSettings, claim: Claim, state: AttemptState | None = None, scope: str = ROOT_SCOPE
    ) -> None:
        """``state``: what the scopes of the attempt share (None: this is its first)."""
        self._settings = settings
        self._claim = claim
        self._state = state or AttemptState(claim, settings.limits)
        self._scope = scope
        self._next = 0

    @property
    def state(self) -> AttemptState:
        """What the scopes share; for the engine."""
        return self._state

    @property
    def item(self) -> Item:
        return self._claim.item

    @property
    def attempt(self) -> int:
        return self._claim.attempt

    @property
    def clock(self) -> Clock:
        return self._settings.clock

    @property
    def limits(self) -> Limits:
        return self._state.limits

    @property
    def facts(self) -> Json:
        return self._claim.facts

    @property
    def workspace(self) -> Path:
        try:
            make_private(self._settings.folder / WORKSPACES, apart=True)
        except OSError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"can't make the folder of workspaces: {error.strerror}") from error
        return workspace_of(self._settings.folder, self._claim.item.number, self._claim.attempt)

    @property
    def replaying(self) -> bool:
        return (self._scope, self._next) in self._state.recorded

    @property
    def resumed(self) -> bool:
        return bool(self._claim.recorded)

    @property
    def address(self) -> str:
        return f"{self._scope}/{self._next}"

    def time_limit(self, seconds: float | None) -> AbstractAsyncContextManager[asyncio.Timeout]:
        return self._settings.pause.time_limit(seconds)

    async def step(self, kind: str, request: Json, effect: Callable[[], Awaitable[Effect]]) -> Json:
        seq = self._next
        self._next = seq + 1
        request = KNOWN.json(request)  # as it is recorded, whatever the key is when it is replayed
        identity = digest(kind, request)
        state = self._state
        recorded = state.recorded.get((self._scope, seq))
        if recorded is not None:
            return self._replayed(seq, kind, identity, recorded)
        if self._settings.replay_only:
            raise state.broken_by(UnrecordedStep(f"step {self._scope}/{seq} ({kind}) is not in the journal"))
        if self._settings.pause.active:
            await self._pause_over()
        if self._settings.stopping or state.ended or self._claim.item.number in self._settings.cancelled:
            # An exception in one branch often cancels the others, whose calls are to be recorded first.
            await state.quiet()
            raise state.broken_by(Interrupted())
        state.in_flight += 1
        try:
            return await self._take(seq, kind, identity, request, effect)
        finally:
            state.step_ended()

    def scope(self, name: str) -> Context:
        full = without_surrogates(f"{self._scope}/{name}" if self._scope else name)
        self._state.open_scope(full)
        return self._branch(full)

    def parts(self, address: str) -> Context:
        full = f"{address}{PARTS}"
        self._state.open_scope(full)
        return self._branch(full)

    def random(self, purpose: str) -> Random:
        return derived_random(self._settings.seed, self._claim.item.key, purpose)

    def seed(self, purpose: str) -> int:
        return derive_seed(self._settings.seed, self._claim.item.key, purpose)

    def new_attempt_needed(self, reason: str) -> Exception:
        return NewAttemptNeeded(reason)

    async def _pause_over(self) -> None:
        pause, cancelled = self._settings.pause, self._settings.cancelled
        while pause.active and self._claim.item.number not in cancelled:
            await pause.change()

    def _branch(self, scope: str) -> AttemptContext:
        return AttemptContext(self._settings, self._claim, self._state, scope)

    async def _take(
        self, seq: int, kind: str, identity: bytes, request: Json, effect: Callable[[], Awaitable[Effect]]
    ) -> Json:
        """Have a step's effect, and record it."""
        clock = self._settings.clock
        started = clock.now()
        token = _inside_effect.set(True)
        try:
            result = await effect()
            output = KNOWN.json(result.output)  # nobody sees now what a replay would not give him
        finally:
            _inside_effect.reset(token)
        if self._state.abandoned:
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
            result.account,
        )
        await self._settings.journal.record(row)
        return output

    def _replayed(self, seq: int, kind: str, identity: bytes, recorded: tuple[str, bytes, bytes]) -> Json:
        recorded_kind, recorded_identity, output = recorded
        if recorded_identity != identity:
            detail = " with another request" * (kind == recorded_kind)
            raise self._state.broken_by(Divergence(self._scope, seq, recorded_kind, kind, detail))
        self._state.replayed.add((self._scope, seq))
        return unpack(output)


class ConversationLimits:
    """The ``Limits`` as one attempt sees them: where several keys will do, its calls keep the one that they were made with before."""

    __slots__ = ("_limits", "_used")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._used: tuple[str, ...] = ()
        """The key used last of each choice that the attempt had."""

    def acquire(self, key: str | OwnLimit, reserve: Reserve) -> Coroutine[Any, Any, int]:
        return self._limits.acquire(key, reserve)

    async def acquire_one_of(self, wanted: OneOf, reserve: Reserve) -> tuple[int, str]:
        last = wanted.last or next((key for key in self._used if key in wanted.keys), None)
        permit, key = await self._limits.acquire_one_of(OneOf(wanted.keys, wanted.avoid, last), reserve)
        self._used = (key, *(other for other in self._used if other not in wanted.keys))
        return permit, key

    def release(self, permit: int, report: CallReport) -> None:
        self._limits.release(permit, report)


class AttemptState:
    """What the scopes of one attempt share while it is executed."""

    __slots__ = ("_waiters", "abandoned", "broken", "ended", "in_flight", "limits", "recorded", "replayed", "scopes")

    def __init__(self, claim: Claim, limits: Limits) -> None:
        self.limits = ConversationLimits(limits)
        self.recorded: dict[tuple[str, int], tuple[str, bytes, bytes]] = {}
        for scope, seq, kind, identity, output in claim.recorded:
            self.recorded[scope, seq] = kind, identity, output
        self.replayed: set[tuple[str, int]] = set()
        self.scopes = {ROOT_SCOPE}
        self.broken: Exception | None = None
        """Why the attempt can't come to an end of its own, even if the workload should overlook it."""
        self.in_flight = 0
        self.ended = False
        """No further step may begin."""
        self.abandoned = False
        """Steps that are still in flight are not recorded any more."""
        self._waiters: list[asyncio.Future[None]] = []

    def broken_by(self, error: _Broken) -> _Broken:
        """Remember the first error that breaks the attempt; returns the error, to be raised."""
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
        """Recorded addresses that were never come to, parts of steps that were replayed left out."""
        if len(self.replayed) == len(self.recorded):
            return []
        done = {f"{scope}/{seq}{PARTS}" for scope, seq in self.replayed}
        return sorted(
            address for address in set(self.recorded) - self.replayed if done.isdisjoint(_parts_above(address[0]))
        )


def _parts_above(scope: str) -> Iterator[str]:
    """The scopes of parts that a scope is or lies in."""
    end = scope.find(PARTS)
    while end >= 0:
        end += len(PARTS)
        if scope[end : end + 1] in ("", "/"):
            yield scope[:end]
        end = scope.find(PARTS, end)


async def run_attempt(
    workload: Workload, settings: AttemptSettings, claim: Claim, timeout: float | None
) -> AttemptResult:
    """Run an item once. ``timeout``: its wall-clock limit in seconds.

    Raises only StorageError (the journal can't be written), UserError (the workload can't be used as configured) and CancelledError.
    """
    context = AttemptContext(settings, claim)
    state = context.state
    try:
        result = await _result(workload, context, timeout, settings.pause)
        state.ended = True
        if state.in_flight:
            await state.last_steps()
        return _without_secrets(result) if KNOWN else result
    except BaseException:
        state.ended = state.abandoned = True
        raise


def _without_secrets(result: AttemptResult) -> AttemptResult:
    """An end of an item as it may be recorded and written."""
    match result:
        case Ended(outcome):
            try:
                record = KNOWN.json(outcome.record)
            except (TypeError, ValueError) as error:
                return Failed(ItemError(Cause.INTERNAL, f"its record is not JSON: {error}"))
            message = None if outcome.message is None else KNOWN.text(outcome.message)
            line = None if outcome.line is None else (outcome.line[0], KNOWN.document(outcome.line[1]))
            return Ended(Outcome(outcome.state, record, line, outcome.reason, outcome.cause, message))
        case Failed(failure):
            message, record = KNOWN.text(failure.message), KNOWN.json(failure.record)
            hidden = ItemError(failure.cause, message, retry_after=failure.retry_after, record=record)
            return replace(result, failure=hidden)
        case _:
            return result


async def _result(workload: Workload, context: AttemptContext, timeout: float | None, pause: Pause) -> AttemptResult:
    state = context.state
    limit: asyncio.Timeout | None = None
    try:
        if timeout is None:
            outcome = await workload.run(context)
        else:
            async with pause.time_limit(timeout) as limit:
                outcome = await workload.run(context)
        if state.broken is not None:
            return classify(state.broken)
        if unused := state.unused():
            return Diverged(f"step {unused[0][0]}/{unused[0][1]} was recorded, but is not taken any more")
        return Ended(outcome)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Failed(ItemError(Cause.INTERNAL, "something that the item waited for was cancelled"))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary where whatever a workload raises becomes a recorded failure
        if limit is not None and limit.expired() and _first(error, TimeoutError) is not None:
            state.abandoned = True
            return Failed(ItemError(Cause.TIMEOUT, f"took longer than {timeout:g} s"))
        return classify(error, state.broken)


def classify(error: BaseException, broken: Exception | None = None) -> AttemptResult:
    """What an exception means, whatever group it is wrapped in. ``broken``: an earlier one, which the workload may have overlooked."""
    if broken is not None and broken is not error:
        error = BaseExceptionGroup("", (broken, error))
    fatal = _first(error, StorageError) or _first(error, UserError) or _first(error, UnrecordedStep)
    if fatal is not None:
        raise fatal
    if (divergence := _first(error, Divergence)) is not None:
        return Diverged(str(divergence))
    if (needed := _first(error, NewAttemptNeeded)) is not None:
        return NeedsFreshAttempt(str(needed))
    if _first(error, Interrupted) is not None:
        return Stopped()
    if (full := _without_room(error)) is not None:
        raise StorageError(full)
    if (failure := _first(error, ItemError)) is not None:
        return Failed(failure.bare())
    leaf = next(_leaves(error), error)
    return Failed(ItemError(Cause.INTERNAL, describe(leaf)))


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


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _first(error: BaseException, kind: type[_Kind]) -> _Kind | None:
    return next((leaf for leaf in _leaves(error) if isinstance(leaf, kind)), None)
