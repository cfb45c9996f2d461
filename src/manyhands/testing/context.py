"""The engine's own context over a journal in memory: for tests of whatever takes steps, with crashes to order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.digests import digest
from manyhands.core.jsonio import Json
from manyhands.core.usage import Reserve
from manyhands.engine.attempt import AttemptContext, AttemptSettings, Claim
from manyhands.engine.contract import CallReport, Effect, Item, Limits, OneOf, OwnLimit, RecordedStep
from manyhands.engine.journal.records import RecordedOutput, StepRow, pack, unpack

When = Literal["before_effect", "before_recording", "after_recording"]
MemoryJournal = dict[tuple[str, int], RecordedStep]
"""Steps by address (scope and number), in order of recording. Give it to the next MemoryContext to go on from there."""


class Crash(BaseException):
    """The process died here (not an Exception, so that no handler mends it)."""


class NoLimits:
    """Limits that bound nothing."""

    async def acquire(self, key: str | OwnLimit, reserve: Reserve) -> int:
        return 0

    async def acquire_one_of(self, wanted: OneOf, reserve: Reserve) -> tuple[int, str]:
        return 0, wanted.keys[0]

    def release(self, permit: int, report: CallReport) -> None:
        pass


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where to die."""

    step: int
    """The number of the step, from 1, of those that are not replayed, all scopes together."""
    when: When = "before_recording"


class MemoryContext(AttemptContext):
    """The context of an attempt whose steps are recorded in a dict.

    ``journal``: recorded steps, replayed and added to. ``crash``: raises ``Crash`` at that point, and at every step
    after it, as a dead process records nothing more.
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
        facts: Json = None,
    ) -> None:
        self._recorder = _Recorder({} if journal is None else journal, crash)
        recorded = tuple(map(_recorded, self._recorder.journal.values()))
        settings = AttemptSettings(
            self._recorder, limits or NoLimits(), clock or SystemClock(), seed, folder=workspace.parent
        )
        super().__init__(settings, Claim(item or Item(1, "item", {}), 1, recorded, facts=facts))
        self._workspace = workspace

    @property
    def journal(self) -> MemoryJournal:
        return self._recorder.journal

    @property
    def steps(self) -> list[RecordedStep]:
        """The recorded steps, in order of recording."""
        return list(self._recorder.journal.values())

    @property
    def performed(self) -> int:
        """How many steps were not replayed."""
        return len(self._recorder.begun)

    @property
    def workspace(self) -> Path:
        return self._workspace

    async def step(self, kind: str, request: Json, effect: Callable[[], Awaitable[Effect]]) -> Json:
        if self.replaying:
            return await super().step(kind, request, effect)
        number = self._recorder.begin(self._scope, self._next)

        async def unless_dead() -> Effect:
            self._recorder.die_at(number, "before_effect")
            return await effect()

        return await super().step(kind, request, unless_dead)

    def _branch(self, scope: str) -> MemoryContext:
        branch = copy(self)
        branch._scope, branch._next = scope, 0
        return branch


class _Recorder:
    """The journal of one MemoryContext and its scopes."""

    def __init__(self, journal: MemoryJournal, crash: CrashPoint | None) -> None:
        self.journal = journal
        self.begun: dict[tuple[str, int], int] = {}
        """The numbers of the steps that are not replayed, from 1, by address."""
        self._crash = crash
        self._dead = False

    def begin(self, scope: str, seq: int) -> int:
        return self.begun.setdefault((scope, seq), len(self.begun) + 1)

    async def record(self, row: StepRow) -> None:
        address = (row.scope, row.seq)
        self.die_at(self.begun[address], "before_recording")
        request, output, usage = unpack(row.request), unpack(row.output), row.usage.to_json()
        times = (row.started_at, row.finished_at)
        self.journal[address] = RecordedStep(row.attempt, *address, row.kind, request, output, *times, usage)
        self.die_at(self.begun[address], "after_recording")

    def die_at(self, number: int, when: When) -> None:
        if self._dead or self._crash == CrashPoint(number, when):
            self._dead = True
            raise Crash


def _recorded(step: RecordedStep) -> RecordedOutput:
    return step.scope, step.seq, step.kind, digest(step.kind, step.request), pack(step.output)
