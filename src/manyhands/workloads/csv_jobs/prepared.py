"""A job's spec made self-contained: everything that executing it needs, so that its folder alone is enough to continue."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from manyhands.agents.toolbox import RunTools, outside_record
from manyhands.agents.worlds.furnishing import check_commands
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.engine.contract import Item, PlannedItem
from manyhands.io.tables.base import Table, TableInfo, shown
from manyhands.io.tables.formats import CSV, check_name, format_named, format_of_results, open_table
from manyhands.io.tables.parquet_writer import need_parquet
from manyhands.io.tables.xlsx import need_xlsx
from manyhands.models.estimate import Prompts
from manyhands.processes.templates import CommandTemplate
from manyhands.runs.options import resume_spec
from manyhands.runs.progress import Notice
from manyhands.sandboxes.images.pins import NO_PINS, Pins
from manyhands.tools.services.registry import choose_services
from manyhands.workloads.csv_jobs.command_memory import with_memory_limit
from manyhands.workloads.csv_jobs.folders import SHORT, default_name
from manyhands.workloads.csv_jobs.rows.columns import earlier_columns, prompt_columns
from manyhands.workloads.csv_jobs.rows.export import check_output_columns, leaves_of
from manyhands.workloads.csv_jobs.rows.images import check_image_columns
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.planning import JobRow, check_column, id_column_index, plan_rows
from manyhands.workloads.csv_jobs.rows.prompts import Template, worker_prompt
from manyhands.workloads.csv_jobs.rows.worlds import COLLECTED_COLUMNS, check_world_columns
from manyhands.workloads.csv_jobs.spec import JobChanges, JobSpec, concurrency_limit
from manyhands.workloads.csv_jobs.stages.definitions import Definitions
from manyhands.workloads.csv_jobs.stages.row_stages import Stage, stage_columns, stages_for
from manyhands.workloads.csv_jobs.workers.function import FunctionWorker

STEM = "agent_job_output"
"""What results are called where the table has no name."""
_Fill = Callable[[Sequence[Json]], str]
"""Gives the instruction for the cells of a row."""


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """What a job records as its spec."""

    options: JobSpec
    """The settings, resolved."""
    name: str
    """The display name."""
    table: TableInfo
    """The table as it was when the job was made."""
    output_csv_path: str
    """Where the results go, absolute."""
    mcp: Json = None
    """The record of mounted MCP servers, or None."""
    depth: int = 0
    """How many jobs this one was started from, each by the one before."""
    prompt_columns: tuple[str, ...] | None = None
    """The columns that prompts may hold as JSON. None: prompts have the whole row, as those of earlier versions had, so that what is
    recorded of such jobs still fits."""

    pins: Pins = NO_PINS
    """What the names of images mean."""

    def to_json(self) -> dict[str, Any]:
        """The spec as it is recorded."""
        return {
            "options": self.options.recorded(),
            "name": self.name,
            "table": self.table.to_json(),
            "output_csv_path": self.output_csv_path,
            "mcp": self.mcp,
            "depth": self.depth,
            **({} if self.prompt_columns is None else {"prompt_columns": list(self.prompt_columns)}),
            **({"pins": pins} if (pins := self.pins.to_json()) else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], data_dir: Path) -> PreparedJob:
        """The reverse of ``to_json``; the data folder is wherever the run folder is now."""
        return cls(
            options=JobSpec.from_record(value["options"], data_dir=str(data_dir)),
            name=value["name"],
            table=TableInfo.from_json(value["table"]),
            output_csv_path=value["output_csv_path"],
            mcp=value["mcp"],
            depth=value["depth"],
            prompt_columns=None if value.get("prompt_columns") is None else tuple(value["prompt_columns"]),
            pins=Pins.from_json(value.get("pins")),
        )

    @property
    def instruction(self) -> str:
        return self.options.instruction or ""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Its stages, in order; none if it has one instruction. Raises UserError for stages that don't fit the table."""
        table = self.table
        return stages_for(self.options.stages or Definitions(()), table.headers, decimal_comma=table.decimal_comma)

    @property
    def templates(self) -> tuple[Template, ...]:
        """The instructions of its stages, or its only one."""
        stages = tuple(stage.template for stage in self.stages)
        return stages or (Template.parse(self.instruction, self.table.headers),)

    @property
    def export_format(self) -> str:
        """The name of the format that the results are written in."""
        return self.options.export_format or format_of_results(Path(self.output_csv_path)).name

    def shown_columns(self, template: Template) -> tuple[str, ...]:
        """The columns whose cells a prompt holds as JSON besides the instruction. Unless they were chosen, a cell is not sent twice."""
        if self.prompt_columns is None:
            return self.table.headers
        if self.options.prompt_columns is not None:
            return self.prompt_columns
        named = self._named_columns(template)
        return tuple(name for name in self.prompt_columns if name not in named)

    def _named_columns(self, template: Template) -> frozenset[str]:
        """The columns that an instruction names; what it names besides are results of earlier stages."""
        headers = self.table.headers
        return frozenset(headers[column] for column in template.columns_used if column < len(headers))

    def left_out_columns(self) -> tuple[str, ...]:
        """Columns of earlier jobs that prompts do not hold, and no instruction names."""
        templates = self.templates
        there = {name for each in templates for name in (*self.shown_columns(each), *self._named_columns(each))}
        earlier = earlier_columns(self.table.headers)
        return tuple(name for name in self.table.headers if name in earlier and name not in there)

    def changed(self, options: JobSpec) -> PreparedJob:
        """The same job with other settings. Raises UserError for columns that its table does not have."""
        columns = self.prompt_columns
        if options.prompt_columns != self.options.prompt_columns:
            columns = prompt_columns(options.prompt_columns, self.table.headers)
        output = options.output_csv_path or self.output_csv_path
        return replace(self, options=options, output_csv_path=output, prompt_columns=columns)

    def continued(self, changes: Mapping[str, Any]) -> PreparedJob:
        """The same job as it goes on with settings that are other than recorded. Raises UserError for those that can't be used, RunError
        for those that would make it another job."""
        if not changes:
            return self
        given = JobChanges.make({"csv_path": self.options.csv_path, **changes}, lambda name: f"--{name}")
        return self.changed(resume_spec(self.options, given))

    def opened(self) -> Table:
        """The table, read as it was when the job was made. Raises UserError if it can't be, or has other columns by now."""
        table = self.table
        now = open_table(
            Path(table.path),
            format=table.format,
            encoding=table.encoding,
            delimiter=table.delimiter,
            header_row=table.header_row,
            sheet=table.sheet,
        )
        if now.info.headers != table.headers:
            raise UserError(f"{table.path}: its columns changed since the job was made; make another job of it")
        return now


async def prepare(
    options: JobSpec,
    job_id: str,
    *,
    depth: int = 0,
    notice: Notice = lambda text: None,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> PreparedJob:
    """Read and check everything that the settings name, but for the table's rows. ``notice``: gets what was decided by looking;
    ``environ``: where there may be keys of services.

    ``options`` must be resolved. Raises UserError with one line for what can't be used.
    """
    if not options.stages and not (options.instruction or "").strip():
        raise UserError("instruction must be non-empty")
    table = open_table(Path(options.csv_path), format=options.table_format, **options.reading)
    for line in table.notices:
        notice(line)
    check_headers(options, table.info.headers)
    OutputSchema.of(options.output_schema)
    job = PreparedJob(
        options=options,
        name=options.job_name or default_name(job_id),
        table=table.info,
        output_csv_path=options.output_csv_path or default_output(options, job_id),
        depth=depth,
        prompt_columns=prompt_columns(options.prompt_columns, table.info.headers),
    )
    _check_output(job)
    if options.worker_kind == "agent":
        job = replace(job, mcp=await outside_record(options, choose_services(options, environ)))
        RunTools.recorded(job.mcp).tools(options.toolsets or ())
    return job


def with_table_of_now(job: PreparedJob, notice: Notice = lambda text: None) -> PreparedJob:
    """The job with its table as that is now, read as before, of a spreadsheet the same sheet. Raises UserError if it can't be read, or
    lacks a column that is named."""
    options = job.options
    reading = {**options.reading, "sheet": job.table.sheet or options.sheet}
    table = open_table(Path(job.table.path), format=options.table_format, **reading)
    for text in table.notices:
        notice(text)
    found = table.info
    check_headers(options, found.headers)
    columns = None if job.prompt_columns is None else prompt_columns(options.prompt_columns, found.headers)
    return replace(job, table=found, prompt_columns=columns)


def check_headers(options: JobSpec, headers: Sequence[str]) -> None:
    """Raises UserError for settings that name a column which the table does not have."""
    if options.system_column is not None:
        check_column("system_column", options.system_column, headers)
    if options.id_column is not None:
        id_column_index(options.id_column, headers)
    prompt_columns(options.prompt_columns, headers)
    check_image_columns(options, headers)
    check_world_columns(options, headers)
    check_commands(options, headers)
    beside = [] if options.collect is None else [*COLLECTED_COLUMNS]
    if options.stages:
        stages = stages_for(options.stages, headers)
        check_output_columns(
            options.output_columns, headers, [*beside, *stage_columns(stages, flatten=True)], open=False
        )
    else:
        Template.parse(options.instruction or "", headers)
        leaves = leaves_of(options.output_schema or {})
        check_output_columns(options.output_columns, headers, [*beside, *leaves], open=not leaves)


def default_output(options: JobSpec, job_id: str) -> str:
    """Where the results go by default: beside the table."""
    table = Path(options.csv_path)
    name = table.name.removesuffix(".gz")
    stem = name.removesuffix(Path(name).suffix) or STEM
    suffix = format_named(options.export_format or CSV.name).suffixes[0]
    return str(table.with_name(f"{stem}.agent-job-{job_id[:SHORT]}{suffix}"))


def of_standard_input(options: JobSpec, table: Path, job_id: str) -> JobSpec:
    """The settings of a job whose table came over standard input, of which ``table`` is a copy: its results go to the current folder."""
    output = options.output_csv_path or default_output(options.changed({"csv_path": STEM}), job_id)
    return options.changed({"csv_path": str(table), "output_csv_path": output})


def _check_output(job: PreparedJob) -> None:
    output = Path(job.output_csv_path)
    check_name(output, job.options.export_format)
    try:
        problem = _problem_of(output, Path(job.table.path))
        if problem is None and job.options.auto_export:
            problem = _unwritable(output)
    except OSError as error:
        problem = f"can't be used ({error.strerror or error})"
    if problem is not None:
        raise UserError(f"output_csv_path {output} {problem}")
    if (need := {"parquet": need_parquet, "xlsx": need_xlsx}.get(job.export_format)) is not None:
        need()


def _problem_of(output: Path, table: Path) -> str | None:
    """Why a path can't be where results go, if so. Raises OSError if that can't be examined."""
    if output.is_dir():
        return "is a folder; name a file"
    if not output.exists():
        return None
    if not output.is_file():
        return "is not a regular file, so that results can't take its place"
    if table.exists() and output.samefile(table):
        return "is the table itself, which would be overwritten"
    return None


def _unwritable(output: Path) -> str | None:
    """Why nothing can be written there, if so: to report that before the work. Raises OSError as above."""
    folder = next(folder for folder in output.parents if folder.exists())
    if not folder.is_dir():
        return f"can't be written: {folder} is not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"can't be written: nothing can be made in the folder {folder}"
    return None


@dataclass(frozen=True, slots=True)
class DryRun:
    """A job that is planned, not created."""

    prompts: tuple[str, ...]
    """Of the first rows, of each of their stages."""
    plan: tuple[tuple[str, str], ...]
    """Pairs of a label and text."""
    job: PreparedJob
    executed: Prompts
    """The prompts of all rows that would be executed."""


async def dry_run(options: JobSpec, count: int, notice: Notice = lambda text: None) -> DryRun:
    """What a job of these settings would do, with the prompts of its first ``count`` rows. Nothing is made.

    Raises UserError as making it would.
    """
    options, memory = with_memory_limit(with_machine_limit(options.resolved(), os.environ))
    check_worker(options, os.environ)
    job_id = "00000000-0000-0000-0000-000000000000"
    job = await prepare(options, job_id, notice=notice, environ=os.environ)
    schema = OutputSchema.of(options.output_schema)
    tasks = _tasks(job, schema)
    prompts: list[str] = []
    executed = Prompts()
    rows = bad = shown_rows = 0
    for planned in plan_rows(job.opened(), options.id_column, options.on_bad_row):
        rows += 1
        bad += planned.outcome is not None
        if planned.outcome is None and (options.limit is None or rows <= options.limit):
            of_row = [_prompt(planned, job, *task) for task in tasks]
            for prompt in of_row:
                executed.add(prompt)
            prompts += of_row if shown_rows < count else []
            shown_rows += 1
    named = replace(job, name=options.job_name or "(the job's id)")
    plan = [*_plan(named, rows, bad, schema), *([] if memory is None else [("", str(memory))])]
    return DryRun(tuple(prompts), tuple(plan), job, executed)


def _tasks(job: PreparedJob, schema: OutputSchema) -> list[tuple[Template, _Fill, OutputSchema]]:
    """The templates of the instructions for a row, what fills them, and the schemas of their results: for each stage (where the names of
    earlier results stay), or for the whole row."""
    if stages := job.stages:
        return [(stage.template, partial(stage.instruction, results=None), stage.schema) for stage in stages]
    (template,) = job.templates
    return [(template, template.fill, schema)]


def with_machine_limit(options: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """The settings with the limit of this machine. Raises UserError if the environment has no number."""
    limits = [limit for limit in (options.max_concurrency_limit, concurrency_limit(environ)) if limit]
    return options.changed({"max_concurrency_limit": min(limits, default=None)})


def check_worker(options: JobSpec, environ: Mapping[str, str]) -> None:
    """Raises UserError for a command or a function that can't be found."""
    folder = Path(options.project or ".")
    if options.worker_command is not None:
        name = "--worker_command"
        CommandTemplate.split(options.worker_command, name=name).check(folder, environ, name=name)
    elif options.worker_function is not None:
        FunctionWorker.load(options.worker_function, folder)


def _prompt(planned: PlannedItem, job: PreparedJob, template: Template, fill: _Fill, schema: OutputSchema) -> str:
    row = JobRow.of(Item(1, planned.key, planned.payload))
    cells = dict(zip(job.table.headers, row.cells, strict=True))
    shown_columns = job.shown_columns(template)
    return worker_prompt(
        "(the job's id)",
        planned.key,
        fill(row.cells),
        {name: cells[name] for name in shown_columns},
        schema,
        printing=job.options.worker_kind == "command",
        whole=len(shown_columns) == len(cells),
    )


def _shown_somewhere(job: PreparedJob) -> list[str]:
    """The columns whose cells prompts hold as JSON."""
    shown_columns = {name for template in job.templates for name in job.shown_columns(template)}
    return [name for name in job.table.headers if name in shown_columns]


def _plan(job: PreparedJob, rows: int, bad: int, schema: OutputSchema) -> list[tuple[str, str]]:
    options = job.options
    count, each = options.processes
    at_once = f"{options.workers}" + (f" ({count} processes with up to {each} each)" if options.in_processes else "")
    output = job.output_csv_path if options.output_csv_path else default_output(options, "ID")
    return [
        ("table", f"{job.table.path} ({job.table.format}), {rows} rows" + f", {bad} of them skipped" * bool(bad)),
        ("columns", _named(job.table.headers)),
        ("cells as JSON", _named(_shown_somewhere(job))),
        ("item ids", f"column {options.id_column}" if options.id_column else "row-1, row-2 …"),
        ("worker", describe_worker(options)),
        ("rows at once", at_once),
        (
            "seconds a stage" if options.stages else "seconds a row",
            f"{options.max_runtime_seconds} at most, in at most {options.max_attempts} attempts",
        ),
        *[("stage", stage.name + (f", when {stage.when.text}" if stage.when else "")) for stage in job.stages],
        ("result", "must fit the output schema" if schema.value or options.stages else "any JSON object"),
        ("results go to", f"{output} ({job.export_format})" if options.auto_export else "no file, before an export"),
    ]


def _named(columns: Sequence[str]) -> str:
    return ", ".join(map(shown, columns)) or "none besides the instruction"


def describe_worker(options: JobSpec) -> str:
    """What does the work, in one line."""
    if options.worker_kind == "command":
        return f"command: {options.worker_command}"
    if options.worker_kind == "function":
        return f"function: {options.worker_function}"
    tools = ", ".join(options.toolsets or ()) or "none"
    return (
        f"agent: model {options.model}, toolsets {tools}, sandbox {options.sandbox}, {options.max_turns} turns at most"
    )
