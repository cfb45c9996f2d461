"""The workload of CSV jobs: each row of a table is given to a worker, which reports one JSON object for it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.agents.run_settings import check_node
from manyhands.agents.toolbox import function_modules
from manyhands.agents.trajectory import describe_step as describe_agent_step
from manyhands.core.errors import Interrupted, StorageError, UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import ZERO
from manyhands.engine.contract import (
    Context,
    Execution,
    Item,
    ItemRow,
    PlannedItem,
    RecordedStep,
    RunReader,
    Workload,
    Worlds,
)
from manyhands.engine.journal.reader import run_id_of
from manyhands.models.pricing import load_price_table
from manyhands.processes.python_functions import module_of
from manyhands.processes.strays import process_mark
from manyhands.runs.making import kept_file
from manyhands.sandboxes.lifecycle.keeping import worlds_of
from manyhands.sandboxes.remote.exported.archive import EXPORTS
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.workloads.csv_jobs.prepared import PreparedJob
from manyhands.workloads.csv_jobs.rows.export import ExportOptions, write_export
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.planning import JobRow, plan_rows
from manyhands.workloads.csv_jobs.rows.prompts import Template, worker_prompt
from manyhands.workloads.csv_jobs.rows.worlds import COLLECTED_COLUMNS, row_problem
from manyhands.workloads.csv_jobs.spec import check_binding
from manyhands.workloads.csv_jobs.stages.row_stages import stage_columns
from manyhands.workloads.csv_jobs.workers.agent import AgentWorker
from manyhands.workloads.csv_jobs.workers.command import EARLIER_USAGE, CommandWorker
from manyhands.workloads.csv_jobs.workers.function import FunctionWorker
from manyhands.workloads.csv_jobs.workers.report_folder import report_folder
from manyhands.workloads.csv_jobs.workers.reports import WORKER_STEP, Assignment, ReportInbox, StageOfRow, Worker
from manyhands.workloads.csv_jobs.workers.staged import StagedWork, StageState, done_before

IMPORTED = "imported"
"""The identity of a job's input, which is not read again by itself."""
BACKSTOP = 60.0
"""Seconds beyond a worker's own limit after which the engine stops a row."""


class CsvJobsWorkload(Workload):
    """Rows become results. ``spec`` is what ``PreparedJob.to_json`` gives."""

    name = "csv_jobs"
    worker_files = (*Workload.worker_files, EXPORTS)

    def __init__(self, spec: dict[str, Any], run_folder: Path, *, on_stop: Callable[[], None] = lambda: None) -> None:
        """``on_stop``: is called in the process that executes a row, once its worker's request to end the job is on disk; before the row's
        own end, so that no other row is started in between."""
        self.spec = spec
        self._folder = run_folder
        self._job = PreparedJob.from_json(spec, run_folder.parent)
        self._schema = OutputSchema.of(self._job.options.output_schema)
        self._stages = {stage.name: stage for stage in self._job.stages}
        self._template = None if self._stages else Template.parse(self._job.instruction, self._job.table.headers)
        self._shown = self._shown_columns()
        self._staged = StagedWork(tuple(self._stages.values()), self._stage_assignment)
        self._inbox: ReportInbox | None = None
        self._worker: Worker | None = None
        self._job_id = ""
        self._abandoned = False
        self._failed = 0
        self._failures_allowed: int | None = None
        self._used_before = ZERO
        self._reader: RunReader | None = None
        self._on_stop = on_stop

    def _shown_columns(self) -> dict[str | None, tuple[str, ...]]:
        """The columns that prompts hold as JSON: those of each stage, by its name, or of the only prompt."""
        names: Sequence[str | None] = tuple(self._stages) or (None,)
        return {name: self._job.shown_columns(each) for name, each in zip(names, self._job.templates, strict=True)}

    @property
    def job(self) -> PreparedJob:
        return self._job

    @property
    def inbox(self) -> ReportInbox | None:
        """Takes the reports of external workers, while such execute rows."""
        return self._inbox

    @property
    def execution(self) -> Execution:
        options = self._job.options
        workers, concurrency = options.processes
        # Launches that wait for one another under a budget are bounded by each other's time.
        waits = options.bounded and options.worker_kind == "command"
        seconds = options.max_runtime_seconds * max(1, len(self._stages))
        limit = None if waits else seconds + BACKSTOP
        return options.execution(
            executor=options.executor_used,
            workers=workers,
            concurrency=concurrency,
            max_in_flight=options.workers,
            calls_wanted=options.workers,
            item_timeout=limit,
            keep_workspaces=options.keep_workspaces,
            claim_first=True,
            limit=options.limit,
            seed=options.seed or 0,
        )

    def changed_spec(
        self, spec: Mapping[str, Any], changes: Mapping[str, Any], *, is_executed: bool = False
    ) -> dict[str, Any]:
        changed = super().changed_spec(spec, changes)
        options = PreparedJob.from_json(changed, self._folder.parent).options
        check_binding(options, changes)
        if is_executed and options.bounded and options.worker_kind == "command" and not self._job.options.bounded:
            raise UserError(
                "the launches of this job are not counted, as it began without a budget: stop it, and continue it with one"
            )
        return changed

    def resize(self, max_concurrency: int) -> int:
        limit = self._job.options.max_concurrency_limit
        return max_concurrency if limit is None else min(max_concurrency, limit)

    def reopened(self, reader: RunReader, numbers: Sequence[int]) -> None:
        self.begin(reader)

    @property
    def counts_failures(self) -> bool:
        return self._job.options.fail_threshold is not None

    def begin(self, reader: RunReader) -> None:
        counts = reader.counts()
        self._failed = sum(items for (state, _), items in counts.items() if state == ItemState.FAILED)
        self._failures_allowed = self._job.options.failures_allowed(sum(counts.values()))
        self._reader, self._used_before = reader, reader.usage()

    def facts(self, item: Item, attempt: int, *, begun: bool) -> dict[str, Any] | None:
        """What of the journal the row's worker needs besides the attempt's own steps, as it may not be able to read it."""
        options, found = self._job.options, dict[str, Any]()
        if options.worker_kind == "command" and options.bounded:
            found[EARLIER_USAGE] = self._used_before.to_json()
        if self._stages and attempt > 1 and self._reader is not None:
            found |= done_before(item, attempt, self._reader.steps)
        if begun and options.executor == "ray" and options.worker_kind == "agent" and self._reader is not None:
            found |= ArtifactStore(self._folder).carried(self._reader.steps(item.number, attempt))
        return found or None

    def stop_reason(self, item: Item, outcome: Outcome) -> str | None:
        """At ``fail_threshold`` no other row is claimed. (Once the row's end is on disk would be too late for that.)"""
        if outcome.state is not ItemState.FAILED:
            return None
        self._failed += 1
        return self.threshold_reached

    @property
    def threshold_reached(self) -> str | None:
        """Why the job stops early, once ``fail_threshold`` is reached."""
        if self._failures_allowed is None or self._failed < self._failures_allowed:
            return None
        limit = self._job.options.fail_threshold
        return f"{self._failed} rows failed, and --fail_threshold={limit} stops the job"

    def input_identity(self) -> str | None:
        return IMPORTED  # the table as it was when the job was created or updated; later changes of its file have no effect

    def plan(self) -> Iterable[PlannedItem]:
        options = self._job.options
        problem = row_problem(options, self._job.pins.missing)
        for item in plan_rows(self._job.opened(), options.id_column, options.on_bad_row, problem):
            if self._abandoned:
                raise Interrupted("the job's creation was abandoned")
            yield item

    def abandon(self) -> None:
        """Have ``plan`` end with Interrupted at its next item. For any thread."""
        self._abandoned = True

    @property
    def modules(self) -> Sequence[tuple[str, Path]]:
        function = self._job.options.worker_function
        if function is None:
            return function_modules(self._job.mcp)
        return [(module_of(function), self._start_folder)]

    @asynccontextmanager
    async def opened(self, *, replay: bool = False) -> AsyncIterator[None]:
        self._job_id = run_id_of(self._folder)
        async with AsyncExitStack() as stack:
            self._worker = await self._opened(stack, replay)
            yield
        self._worker = self._inbox = None

    async def run(self, context: Context) -> Outcome:
        if self._worker is None:
            raise RuntimeError("no worker is open")
        if context.facts is not None:
            await asyncio.to_thread(ArtifactStore(self._folder).take, context.facts)
        if self._stages:
            accepted = await self._staged.run(context, self._worker, self._on_stop)
        else:
            accepted = await self._worker.run(context, self.assignment(context.item, self._job_id))
            if accepted.stop:
                self._on_stop()
        return Outcome(ItemState.COMPLETED, accepted.to_json())

    def worlds(self) -> Worlds | None:
        options = self._job.options
        return worlds_of([(options, self._job.pins)], self._folder) if options.worker_kind == "agent" else None

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return describe_step(step)

    def export(self, reader: RunReader) -> None:
        if self._job.options.auto_export:
            try:
                self.write(reader, Path(self._job.output_csv_path))
            except (StorageError, UserError) as error:
                raise StorageError(f"auto-export failed: {error}") from error

    def write(self, reader: RunReader, target: Path, options: ExportOptions | None = None) -> int:
        """Write the results as they are now; how many rows. Raises StorageError, and UserError for what can't be written so."""
        job = self._job
        settings = job.options
        if options is None:
            options = ExportOptions(
                job.export_format,
                flatten=settings.flatten,
                excel_safe=settings.excel_safe,
                columns=settings.output_columns,
                delimiter=settings.output_delimiter,
            )
        stages = partial(stage_columns, tuple(self._stages.values())) if self._stages else None
        beside = () if settings.collect is None else COLLECTED_COLUMNS
        return write_export(
            reader, job.table.headers, settings.output_schema, job.table, target, options, stages=stages, beside=beside
        )

    def assignment(self, item: Item, job_id: str, stage: StageOfRow | None = None) -> Assignment:
        """A row's work, or that of one of its stages."""
        row, job = JobRow.of(item), self._job
        cells = dict(zip(job.table.headers, row.cells, strict=True))
        if stage is not None:
            here = self._stages[stage.name]
            instruction, schema = here.instruction(row.cells, stage.results), here.schema
            shown = self._shown[stage.name]
        else:
            assert self._template is not None
            instruction, schema = self._template.fill(row.cells), self._schema
            shown = self._shown[None]
        return Assignment(
            job_id=job_id,
            item_id=item.key,
            row_index=row.row_index,
            row=cells,
            instruction=instruction,
            prompt=worker_prompt(
                job_id,
                item.key,
                instruction,
                {name: cells[name] for name in shown},
                schema,
                printing=job.options.worker_kind == "command",
                whole=len(shown) == len(cells),
            ),
            schema=schema,
            corrections=job.options.max_corrections,
            max_seconds=job.options.max_runtime_seconds,
            stage=stage,
        )

    def stage_states(self, row: ItemRow, steps: Sequence[RecordedStep]) -> list[StageState]:
        """How the stages of a row stand; empty for a job without. ``steps``: of its latest attempt."""
        self._job_id = self._job_id or run_id_of(self._folder)
        return self._staged.states(row.item, steps, row.record or {})

    def _stage_assignment(self, item: Item, stage: StageOfRow) -> Assignment:
        return self.assignment(item, self._job_id, stage)

    def _costs(self) -> dict[str, Any]:
        """What is known of the costs of launches: prices, and whether there is a budget."""
        options = self._job.options
        prices = None if options.prices is None else load_price_table(kept_file(self._folder, options.prices))
        return {"prices": prices, "bounded": options.bounded}

    @property
    def _start_folder(self) -> Path:
        """Where commands start, and modules of functions are looked for first."""
        project = self._job.options.project
        return Path(project) if project else self._folder

    async def _opened(self, stack: AsyncExitStack, replay: bool) -> Worker:
        options, folder = self._job.options, self._start_folder
        if options.executor == "ray" and options.worker_kind != "function" and not replay:
            check_node({"--project": options.project, "--workspace": options.workspace})
        if options.worker_function is not None:
            return FunctionWorker.load(options.worker_function, folder, replay=replay)
        if options.worker_command is not None:
            self._inbox = ReportInbox(self._job_id)
            data_dir = self._folder.parent
            if options.executor == "ray" and not replay:
                data_dir = await stack.enter_async_context(report_folder(self._folder, self._inbox))
            worker = CommandWorker(
                options.worker_command,
                inbox=self._inbox,
                folder=folder,
                data_dir=data_dir,
                environ=os.environ,
                keep_folders=options.keep_workspaces
                or options.executor == "ray",  # a node removes each at its row's end
                **({} if replay else self._costs()),
            )
            return worker if replay else await stack.enter_async_context(worker.opened(process_mark(self._job_id)))
        opening = AgentWorker.opened(
            options,
            mcp=self._job.mcp,
            run_folder=self._folder,
            secrets=self._secrets,
            depth=self._job.depth,
            pins=self._job.pins,
            replay=replay,
        )
        return await stack.enter_async_context(opening)


def describe_step(step: RecordedStep) -> Iterable[tuple[str, str]]:
    """The messages of a step in order; of an external worker's step, its request, output and report."""
    return _worker_step(step) if step.kind == WORKER_STEP else describe_agent_step(step)


def _worker_step(step: RecordedStep) -> Iterator[tuple[str, str]]:
    for label, value in (*step.request.items(), *step.output.items()):
        if value not in (None, "", [], {}):
            yield label, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
