"""The stages of a row: each is the work of a worker, within a scope of steps of its own, and its result goes into those after it.

That a stage is done is a step itself. What an attempt had done before it was given up is taken over by the next one, so that no stage is
done, and paid for, twice: a step records what was taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.digests import content_key
from manyhands.core.errors import ItemError
from manyhands.core.failures import FAILURES
from manyhands.core.jsonio import Json
from manyhands.engine.contract import Context, Effect, Item, RecordedStep
from manyhands.workloads.csv_jobs.rows.planning import JobRow
from manyhands.workloads.csv_jobs.rows.stage_states import (
    COMPLETED,
    FAILED,
    PENDING,
    RESULT,
    SKIPPED,
    STAGES,
    entries_of,
)
from manyhands.workloads.csv_jobs.stages.row_stages import Stage
from manyhands.workloads.csv_jobs.workers.reports import Accepted, Assignment, StageOfRow, Worker

STAGE_STEP = "stage"
"""The kind of a step that records the report of a stage that is done."""
TAKEN_OVER = "stages_taken_over"
"""The kind of a step that records which stages an earlier attempt had done."""
EARLIER = "stages_done"
"""The key of a row's facts for what an earlier attempt had done."""
NO_WORKER = "none"
"""Who reported on a row whose stages were all skipped."""

Done = Mapping[str, Mapping[str, Any]]
"""The recorded outputs of stages that are done, by name."""


@dataclass(frozen=True, slots=True)
class StageState:
    """How one stage of a row stands."""

    name: str
    state: str
    work: Assignment | None = None
    """What its worker gets, if that is known yet."""
    result: Json = None


@dataclass(slots=True)
class _Row:
    """What came of a row's stages so far."""

    results: dict[str, Json] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: list[Accepted] = field(default_factory=list)

    def skip(self, stage: Stage) -> None:
        self.results[stage.name] = self.values[stage.name] = None
        self.entries[stage.name] = {"state": SKIPPED}

    def add(self, stage: Stage, report: Accepted) -> None:
        self.know(stage, report.result)
        self.entries[stage.name] = {"state": COMPLETED, RESULT: report.result}
        self.reports.append(report)

    def know(self, stage: Stage, result: Json) -> None:
        self.results[stage.name], self.values[stage.name] = result, stage.value(result)

    def next(self, stage: Stage, number: int) -> StageOfRow:
        """A stage that is about to begin."""
        return StageOfRow(stage.name, number, dict(self.results), dict(self.values))

    def report(self) -> Accepted:
        """All of them as one report."""
        last = self.reports[-1] if self.reports else Accepted({}, None, NO_WORKER)
        stop, corrections = any(each.stop for each in self.reports), sum(each.corrections for each in self.reports)
        return Accepted(self.entries, last.reported_at, last.via, stop, corrections, last.collected)


def done_before(item: Item, attempt: int, steps: Callable[[int, int], Sequence[RecordedStep]]) -> dict[str, Json]:
    """Facts for an attempt: what the latest attempt before it that had begun had done. ``steps``: the recorded ones of an attempt, by the
    numbers of item and attempt."""
    found = (steps(item.number, each) for each in range(attempt - 1, 0, -1))
    done = _done_in(next(filter(None, found), ()))
    return {EARLIER: done} if done else {}


class StagedWork:
    """The work of the rows of a job with stages."""

    def __init__(self, stages: Sequence[Stage], assignment: Callable[[Item, StageOfRow], Assignment]) -> None:
        """``assignment``: what a worker gets for a stage of a row."""
        self._stages = stages
        self._assignment = assignment

    async def run(self, context: Context, worker: Worker, on_stop: Callable[[], None]) -> Accepted:
        """The results of all stages, with how each stands. ``on_stop``: is called when a worker requests to end the job.

        Raises ItemError as ``Worker.run``, with the stage in its message, and in its record what the stages before it came to.
        """
        row = _Row()
        cells = JobRow.of(context.item).cells
        done = await self._taken_over(context) if context.attempt > 1 else {}
        for number, stage in enumerate(self._stages, 1):
            if not stage.applies(cells, row.results):
                row.skip(stage)
                continue
            work = self._assignment(context.item, row.next(stage, number))
            known = done.get(stage.name)
            if known is None or not _is_of(known, work):
                known = await self._done(context, worker, stage, work, row)
            report = Accepted.from_json(known)
            row.add(stage, report)
            if report.stop:
                on_stop()
        return row.report()

    def states(self, item: Item, steps: Sequence[RecordedStep], record: Mapping[str, Any]) -> list[StageState]:
        """How the stages of a row stand, by the steps of its latest attempt and, if it has ended, by its record."""
        row, done, states = _Row(), _done_in(steps), list[StageState]()
        cells = JobRow.of(item).cells
        ended = entries_of(record)
        for number, stage in enumerate(self._stages, 1):
            if states and states[-1].state not in (COMPLETED, SKIPPED):
                states.append(StageState(stage.name, PENDING))
            elif not stage.applies(cells, row.results):
                row.skip(stage)
                states.append(StageState(stage.name, SKIPPED))
            else:
                work = self._assignment(item, row.next(stage, number))
                entry = ended.get(stage.name) or _entry_of(done.get(stage.name))
                row.know(stage, entry.get(RESULT))
                states.append(StageState(stage.name, entry["state"], work, entry.get(RESULT)))
        return states

    async def _done(
        self, context: Context, worker: Worker, stage: Stage, work: Assignment, row: _Row
    ) -> Mapping[str, Any]:
        """Have a stage done: what is recorded of it."""
        try:
            report = await worker.run(context.scope(stage.name), work)
        except ItemError as error:
            raise self._failure(stage, error, row) from error

        prompt = content_key(work.prompt)

        async def effect() -> Effect:
            return Effect({**report.to_json(), "prompt": prompt, "columns": _columns_key(work)})

        recorded: Mapping[str, Any] = await context.step(STAGE_STEP, {"stage": stage.name, "prompt": prompt}, effect)
        return recorded

    def _failure(self, stage: Stage, error: ItemError, row: _Row) -> ItemError:
        if FAILURES[error.cause].stops_run:  # nothing about this row, or this stage
            return error
        entries = dict(row.entries)
        for each in self._stages:
            entries.setdefault(each.name, {"state": PENDING})
        entries[stage.name] = {"state": FAILED, "error": error.message}
        record = {**error.record, STAGES: entries}
        message = f"stage {stage.name}: {error.message}"
        return ItemError(error.cause, message, retry_after=error.retry_after, record=record)

    async def _taken_over(self, context: Context) -> Done:
        """What the latest attempt before this one that had begun had done (see ``done_before``); nothing if that was everything, as it is
        to be done again then."""
        cells = JobRow.of(context.item).cells

        async def effect() -> Effect:
            done: Done = (context.facts or {}).get(EARLIER, {})
            return Effect({} if self._are_all(cells, done) else dict(done))

        found: Done = await context.step(TAKEN_OVER, {"attempt": context.attempt - 1}, effect)
        return found

    def _are_all(self, cells: Sequence[Json], done: Done) -> bool:
        results: dict[str, Json] = {}
        for stage in self._stages:
            applies = stage.applies(cells, results)
            if applies and stage.name not in done:
                return False
            results[stage.name] = done[stage.name][RESULT] if applies else None
        return True


def _done_in(steps: Sequence[RecordedStep]) -> Done:
    """The stages that an attempt has done, or taken over."""
    done: dict[str, Mapping[str, Any]] = {}
    for step in steps:
        if step.kind == TAKEN_OVER:
            done.update(step.output)
        elif step.kind == STAGE_STEP:
            done[step.request["stage"]] = step.output
    return done


def _is_of(known: Mapping[str, Any], work: Assignment) -> bool:
    """Whether a stage was done for what its worker would get now. (Earlier versions recorded nothing of the columns.)"""
    columns = _columns_key(work)
    return bool(known["prompt"] == content_key(work.prompt) and known.get("columns", columns) == columns)


def _columns_key(work: Assignment) -> str:
    """What a worker may see of the row besides its prompt, but for empty cells, as those of a column that was added."""
    return content_key({name: cell for name, cell in work.columns.items() if cell not in (None, "")})


def _entry_of(done: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {"state": PENDING} if done is None else {"state": COMPLETED, RESULT: done[RESULT]}
