"""Recorded items run again from the journal alone, to see whether today's code still does what was recorded."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.clock import Clock, SystemClock
from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import Reserve
from manyhands.engine.attempt import (
    AttemptResult,
    AttemptSettings,
    Claim,
    Diverged,
    Ended,
    Failed,
    NeedsFreshAttempt,
    UnrecordedStep,
    run_attempt,
)
from manyhands.engine.contract import CallReport, ItemRow, OneOf, OwnLimit, Workload
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.records import StepRow

TIMES = "times"
"""The key of an outcome's record that may differ from one execution to the next."""
RULES = "rules"
"""The key of an outcome's record that says by which version of a workload's rules it was scored."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An item that does not come out as recorded, and the first step where it departs."""

    item: int
    key: str
    problem: str


@dataclass(slots=True)
class CheckResult:
    """How many items were looked at, and what was found."""

    checked: int = 0
    """Items that had recorded steps."""
    unfinished: int = 0
    """Those of them that had not ended, and agree as far as they went."""
    skipped: int = 0
    """Items without any."""
    mismatches: list[Mismatch] = field(default_factory=list)


async def check_run(
    reader: JournalReader,
    workload: Workload,
    *,
    clock: Clock | None = None,
) -> CheckResult:
    """Check every item that has recorded steps. Nothing happens outside, and nothing is written."""
    result = CheckResult()
    settings = AttemptSettings(
        _Nothing(), _Nothing(), clock or SystemClock(), workload.execution.seed, reader.folder, replay_only=True
    )
    async with workload.session(replay=True), workload.opened(replay=True):
        for row in reader.items():
            problem = await _check_item(reader, workload, settings, row, result)
            if problem is not None:
                result.mismatches.append(Mismatch(row.number, row.key, problem))
    return result


async def _check_item(
    reader: JournalReader, workload: Workload, settings: AttemptSettings, row: ItemRow, result: CheckResult
) -> str | None:
    recorded = reader.recorded_outputs(row.number, row.attempt)
    if not recorded:
        result.skipped += 1
        return None
    result.checked += 1
    ended_well = row.state in (ItemState.COMPLETED, ItemState.DISCARDED)
    try:
        claim = Claim(
            row.item, row.attempt, recorded, facts=workload.facts(row.item, row.attempt, begun=bool(recorded))
        )
        now = await run_attempt(workload, settings, claim, None)
    except UnrecordedStep as end:
        result.unfinished += not ended_well
        return str(end) if ended_well else None
    except UserError as error:
        return str(error)
    if isinstance(now, Diverged):
        return now.detail
    return _compare(row, now) if ended_well else None


def _compare(row: ItemRow, now: AttemptResult) -> str | None:
    if not isinstance(now, Ended):
        why = now.failure if isinstance(now, Failed) else now.reason if isinstance(now, NeedsFreshAttempt) else None
        return f"recorded as {row.state}, now {why}"
    outcome = now.outcome
    if (outcome.state, outcome.reason) != (row.state, row.reason):
        return f"recorded as {_named(row.state, row.reason)}, now {_named(outcome.state, outcome.reason)}"
    return _first_difference(row.record or {}, outcome)


def _first_difference(recorded: dict[str, Any], outcome: Outcome) -> str | None:
    for name in sorted({*recorded, *outcome.record} - {TIMES, RULES}):
        if recorded.get(name) != outcome.record.get(name):
            return f"all steps agree, but the outcome's {name!r} differs{_by_other_rules(recorded, outcome)}"
    return None


def _by_other_rules(recorded: dict[str, Any], outcome: Outcome) -> str:
    before, now = recorded.get(RULES), outcome.record.get(RULES)
    if before == now:
        return ""
    of = "an earlier version" if before is None else f"version {before}"
    return f": it was scored by the rules of {of}, and is now by those of version {now}; what was said is the same"


def _named(state: ItemState, reason: str | None) -> str:
    return f"{state} ({reason})" if reason else str(state)


class _Nothing:
    """A journal and limits that no replay ever reaches."""

    def record(self, row: StepRow) -> Awaitable[None]:
        raise UnrecordedStep(f"step {row.scope}/{row.seq}")

    async def acquire(self, key: str | OwnLimit, reserve: Reserve) -> int:
        raise UnrecordedStep(f"a call to {key}")

    async def acquire_one_of(self, wanted: OneOf, reserve: Reserve) -> tuple[int, str]:
        raise UnrecordedStep(f"a call to {wanted.keys[0]}")

    def release(self, permit: int, report: CallReport) -> None:
        return
