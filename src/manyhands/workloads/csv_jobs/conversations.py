"""The conversations of a job's workers, for exports.

An agent's is the whole conversation, with the report tool among the tools. Of a command there is the prompt that it got and the result that
it printed or reported; of a function nothing, as it gets no prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from manyhands.agents.toolbox import RunTools
from manyhands.core.digests import content_key
from manyhands.core.errors import UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, spaced
from manyhands.core.messages import Message
from manyhands.core.outcomes import ItemState, StopReason
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Item, ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.export.conversations import (
    Conversation,
    ConversationSource,
    Turn,
    model_calls,
    note_settings,
    stop_reason_of,
    turns_of,
)
from manyhands.workloads.csv_jobs.rows.planning import JobRow
from manyhands.workloads.csv_jobs.rows.stage_states import COMPLETED
from manyhands.workloads.csv_jobs.workers.agent import AgentTasks, tools_of
from manyhands.workloads.csv_jobs.workers.reports import WORKER_STEP, Assignment
from manyhands.workloads.csv_jobs.workers.staged import STAGE_STEP
from manyhands.workloads.csv_jobs.workload import CsvJobsWorkload

_ENDED_BY_ITSELF = (Cause.INVALID_OUTPUT, Cause.CONTEXT_OVERFLOW)
"""Why rows fail whose agents' conversations came to an end."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What a worker did for a row, or for one of its stages."""

    assignment: Assignment
    steps: Sequence[RecordedStep]
    """Of the attempt in which it was done."""
    completed: bool
    result: Json

    @property
    def scope(self) -> str:
        """Of its steps."""
        return "" if self.assignment.stage is None else self.assignment.stage.name


class JobConversations(ConversationSource):
    """The conversation of each row, or of each stage of a row, in order of the stages."""

    def __init__(self, reader: JournalReader) -> None:
        super().__init__(reader)
        self._workload = CsvJobsWorkload(self.spec, reader.folder)
        self._job = self._workload.job
        self._tasks = AgentTasks(self._job.options, self._tools())

    def conversations(self, row: ItemRow, steps: Sequence[RecordedStep], usage: Usage) -> Iterator[Conversation]:
        if row.state is ItemState.DISCARDED or not steps:
            return
        left = usage
        for work in self._works(row, steps):
            found = self.begun(row, left)
            found.simulated = usage.simulated_calls > 0
            self._describe(found, row, work)
            if calls := model_calls(work.steps, work.scope):
                self._of_agent(found, work, calls[0])
            else:
                found.turns = _of_command(work)
            if found.turns:
                left = ZERO
                yield found

    def _works(self, row: ItemRow, steps: Sequence[RecordedStep]) -> Iterator[_Work]:
        if not self._job.stages:
            assignment = self._workload.assignment(row.item, self.run_id)
            yield _Work(assignment, steps, row.state is ItemState.COMPLETED, (row.record or {}).get("result"))
            return
        for state in self._workload.stage_states(row, steps):
            if state.work is not None:
                yield _Work(state.work, self._steps_of(row, steps, state.name), state.state == COMPLETED, state.result)

    def _steps_of(self, row: ItemRow, steps: Sequence[RecordedStep], stage: str) -> Sequence[RecordedStep]:
        """The steps of the attempt in which a stage was done, or last begun: a fresh attempt takes over what those before it had done."""
        if any(step.scope == stage for step in steps):
            return steps
        earlier = (self.reader.steps(row.number, attempt) for attempt in range(row.attempt - 1, 0, -1))
        return next((each for each in earlier if any(_records(step, stage) for step in each)), ())

    def _describe(self, found: Conversation, row: ItemRow, work: _Work) -> None:
        stage, cells = work.assignment.stage, JobRow.of(row.item).cells
        found.name = "" if stage is None else f"stage {stage.name}"
        found.source = dict(zip(self._job.table.headers, cells, strict=False))
        found.result = work.result
        # Prompts name the job and the item, which are others in every run.
        nameless = self._workload.assignment(Item(row.number, "", row.payload), "", stage)
        found.prompt_key = content_key([nameless.prompt, list(self._tasks.of_row(nameless))])
        found.stop_reason = StopReason.ANSWERED.value if work.completed else None
        if not work.completed and row.cause in _ENDED_BY_ITSELF:
            found.stop_reason = stop_reason_of(work.steps, work.scope)

    def _of_agent(self, found: Conversation, work: _Work, first: RecordedStep) -> None:
        task, box = self._tasks.task(work.assignment), self._tasks.toolbox(work.assignment.schema)
        note_settings(found, first)
        found.ephemeral, found.prefill = task.ephemeral, task.prefill
        found.tools, found.tools_changed = box.definitions, first.request.get("tools", box.digest) != box.digest
        system: Message = {
            "role": "system",
            "content": replace(task, ephemeral=None).system_message(with_tools=bool(box.names)),
        }
        found.turns = turns_of(work.steps, work.scope, head=[system])

    def _tools(self) -> Sequence[Any]:
        """The tools of the job's agents besides the report tool; none for other workers, or where they can't be known here."""
        options = self._job.options
        if options.worker_kind != "agent":
            return ()
        try:
            return tools_of(options, RunTools.recorded(self._job.mcp))
        except UserError:  # a toolset of a package that is not installed
            return ()


def _records(step: RecordedStep, stage: str) -> bool:
    """Whether a step records that a stage is done."""
    return step.kind == STAGE_STEP and step.request["stage"] == stage


def _of_command(work: _Work) -> list[Turn]:
    """The prompt of a command, and its result; empty without either."""
    launches = sorted(
        (step for step in work.steps if step.kind == WORKER_STEP and step.scope == work.scope),
        key=lambda step: step.seq,
    )
    if not launches:
        return []
    first: Mapping[str, Any] = launches[0].request
    result = launches[-1].output.get("result")
    if "prompt" not in first or result is None:
        return []
    return [
        Turn({"role": "user", "content": first["prompt"]}, launches[0].started_at),
        Turn({"role": "assistant", "content": spaced(result)}, launches[-1].finished_at, train=True),
    ]
