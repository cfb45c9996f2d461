"""The engine's context without the engine: steps recorded in a dict, replay from it, and crashes to order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.digests import derive_seed, derived_random, digest
from manyhands.core.errors import Divergence, ManyhandsError
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.core.usage import Reserve
from manyhands.engine.contract import CallReport, Context, Effect, Item, Limits, RecordedStep

When = Literal["before_effect", "before_recording", "after_recording"]
MemoryJournal = dict[tuple[str, int], RecordedStep]
"""Steps by place, in order of recording. Give it to the next MemoryContext to go on from there."""


class Crash(BaseException):
    """The process died here (not an Exception, so that no handler mends it)."""


class NewAttempt(ManyhandsError):
    """The attempt can't go on; what ``MemoryContext.new_attempt_needed`` makes."""


class NoLimits:
    """Limits that bound nothing."""

    async def acquire(self, key: str, reserve: Reserve) -> int:
        return 0

    def release(self, permit: int, report: CallReport) -> None:
        pass


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where to die: at the ``step``-th step that is not replayed (from 1, all scopes together), and when in it."""

    step: int
    when: When = "before_recording"


@dataclass(slots=True)
class _Shared:
    """What the scopes of one performance share."""

    item: Item
    journal: MemoryJournal
    clock: Clock
    limits: Limits
    workspace: Path
    crash: CrashPoint | None
    run_seed: int
    resumed: bool
    performed: int = 0
    dead: bool = False
    scopes: set[str] = field(default_factory=lambda: {""})


class MemoryContext:
    """A ``Context`` over a dict.

    ``journal``: recorded steps, replayed and added to. ``crash``: raises ``Crash`` at that point, and at every step
    after it, as a dead process records nothing more. ``performed`` counts the steps whose effect was called.
    """

    def __init__(
        self,
        journal: MemoryJournal | None = None,
        *,
        item: Item | None = None,
        crash: CrashPoint | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        workspace: Path = Path("workspace"),
        seed: int = 0,
    ) -> None:
        journal = {} if journal is None else journal
        self._shared = _Shared(
            item or Item(1, "item", {}),
            journal,
            clock or SystemClock(),
            limits or NoLimits(),
            workspace,
            crash,
            seed,
            resumed=bool(journal),
        )
        self._scope = ""
        self._next = 0

    @property
    def journal(self) -> MemoryJournal:
        return self._shared.journal

    @property
    def steps(self) -> list[RecordedStep]:
        """The recorded steps, in order of recording."""
        return list(self._shared.journal.values())

    @property
    def performed(self) -> int:
        return self._shared.performed

    @property
    def item(self) -> Item:
        return self._shared.item

    @property
    def attempt(self) -> int:
        return 1

    @property
    def clock(self) -> Clock:
        return self._shared.clock

    @property
    def limits(self) -> Limits:
        return self._shared.limits

    @property
    def workspace(self) -> Path:
        return self._shared.workspace

    @property
    def replaying(self) -> bool:
        return (self._scope, self._next) in self._shared.journal

    @property
    def resumed(self) -> bool:
        return self._shared.resumed

    @property
    def place(self) -> str:
        return f"{self._scope}/{self._next}"

    async def step(self, kind: str, request: Json, effect: Callable[[], Awaitable[Effect]]) -> Json:
        """As ``Context.step``. What is recorded goes through JSON, so that nothing else can be relied on."""
        shared, place = self._shared, (self._scope, self._next)
        self._next += 1
        recorded = shared.journal.get(place)
        if recorded is not None:
            if digest(recorded.kind, recorded.request) != digest(kind, request):
                raise Divergence(*place, recorded.kind, kind)
            return _copy(recorded.output)
        shared.performed += 1
        number = shared.performed
        self._die_at(number, "before_effect")
        started = shared.clock.now()
        request = _copy(request)
        result = await effect()
        self._die_at(number, "before_recording")
        shared.journal[place] = RecordedStep(
            1, *place, kind, request, _copy(result.output), started, shared.clock.now(), result.usage.to_json()
        )
        self._die_at(number, "after_recording")
        return result.output

    def scope(self, name: str) -> Context:
        """As ``Context.scope``. Raises ValueError if the name was used before in the item."""
        scope = MemoryContext.__new__(MemoryContext)
        scope._shared = self._shared
        scope._scope = f"{self._scope}/{name}" if self._scope else name
        scope._next = 0
        if scope._scope in self._shared.scopes:
            raise ValueError(f"the scope {scope._scope!r} was opened before in this item")
        self._shared.scopes.add(scope._scope)
        return scope

    def random(self, purpose: str) -> Random:
        return derived_random(self._shared.run_seed, self._shared.item.key, purpose)

    def seed(self, purpose: str) -> int:
        return derive_seed(self._shared.run_seed, self._shared.item.key, purpose)

    def new_attempt_needed(self, reason: str) -> Exception:
        return NewAttempt(reason)

    def _die_at(self, number: int, when: When) -> None:
        shared = self._shared
        if shared.dead or (shared.crash is not None and shared.crash == CrashPoint(number, when)):
            shared.dead = True
            raise Crash


def journal_of(steps: Iterable[RecordedStep]) -> MemoryJournal:
    """A journal that holds these steps."""
    return {(step.scope, step.seq): step for step in steps}


def _copy(value: Json) -> Any:
    return loads(dumps(value))
