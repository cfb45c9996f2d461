"""The settings of a CSV job.

Names and defaults of the first ten are those of Codex's tool ``spawn_agents_on_csv`` (github.com/openai/codex).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import ceil
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self

from manyhands.agents.options import AgentOptions, AgentTerminalSettings
from manyhands.agents.programs import AgentProgram
from manyhands.core.errors import UserError
from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalList,
    OptionalPath,
    OptionalText,
    Path,
    optional_whole,
    setting,
    whole,
)
from manyhands.core.text import expand_home
from manyhands.io.tables.csv import given_delimiter
from manyhands.io.tables.formats import BUILTIN, formats
from manyhands.io.tables.settings import TABLE, ReadingSettings
from manyhands.io.tables.standard_input import STANDARD_STREAM
from manyhands.models.pricing import PriceTable, load_price_table
from manyhands.processes.templates import CommandTemplate
from manyhands.runs.options import (
    CONVERSATION,
    LIMITS,
    MODEL,
    OUTPUT,
    SANDBOX,
    SERVICES,
    SPEED,
    TOOLS,
    WORLD,
    FileSettings,
    ResumeSettings,
    json_object,
    read_text,
    recorded_object,
)
from manyhands.sandboxes.project import checked_project
from manyhands.workloads.csv_jobs.rows.columns import column_list
from manyhands.workloads.csv_jobs.stages.definitions import (
    Definitions,
    recorded_stages,
    stages_of_columns,
    stages_of_file,
    stages_of_records,
)

JOB = "Job"
WORKER = "Worker"
LIMIT_VARIABLE = "MANYHANDS_MAX_CONCURRENCY"
"""The environment variable that caps the concurrency of every job on this machine."""
MAX_WORKERS = 10_000
ON_CLUSTER = 4
"""Worker processes on a cluster, of which this machine's CPUs say nothing, where nothing is given."""
AT_ONCE = 64
"""Rows executed concurrently where nothing is given."""
_MAX_NAME_BYTES = 200
_NO_TOOLSETS = "none"


def _job_name(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be text without control characters")
    if len(value.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"must be at most {_MAX_NAME_BYTES} bytes long")
    return value.strip()


def _stages(value: Any) -> Definitions | None:
    """Stages: the name of a file that holds them, a list of ``NAME=INSTRUCTION``, or a list of mappings."""
    if value is None or isinstance(value, Definitions):
        return value
    if isinstance(value, str):
        return stages_of_file(value) if value.strip() else None
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("must be a list of stages")
    if all(isinstance(each, str) for each in value):
        return stages_of_columns(value)
    return stages_of_records(value)


def _threshold(value: Any) -> str | None:
    """``10`` rows, or ``20%`` of all."""
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        return None
    text = str(value).strip().replace(" ", "")
    figure = text.removesuffix("%")
    usable = figure.isdecimal() and len(figure) < 10 and int(figure) >= 1
    if not usable or (text.endswith("%") and int(figure) > 100):
        raise ValueError("must be a number of rows, as 10, or a share of them, as 20%")
    return text


def _limit(value: Any) -> int | None:
    """A number of rows, or None for all of them: also written as ``none``."""
    if isinstance(value, str) and value.strip().lower() in ("", "none", "all"):
        return None
    limit: int | None = optional_whole(1).read(value)
    return limit


def _format_name(value: Any) -> str:
    """The name of a format of tables, of ours or of another package."""
    if not isinstance(value, str) or value not in formats():
        *others, last = map(repr, formats())
        raise ValueError(f"must be {', '.join(others)} or {last}")
    return value


ColumnNames = Annotated[tuple[str, ...] | None, Checked(column_list)]
FormatName = Annotated[str, Checked(_format_name)]
FORMATS = "|".join(BUILTIN)


class RowSettings(ReadingSettings):
    """How a table is read, and what becomes of rows that can't be."""

    on_bad_row: Literal["fail", "skip"] = setting(
        "fail",
        "Action for unreadable rows: refuse the table, or skip and report them.",
        group=TABLE,
        identity=True,
    )


class TableSettings(RowSettings, FileSettings):
    """Which table a job is made of, how it is read, and what the job is called: what can't be changed once it is made."""

    paths: ClassVar[tuple[str, ...]] = ("csv_path",)

    csv_path: Path = setting(
        ...,
        "Input table: .csv, .tsv (also .gz), .jsonl, .parquet or .xlsx, or - for standard input; each row is an item.",
        group=JOB,
        identity=True,
        value="FILE",
    )
    id_column: OptionalText = setting(
        None, "Column with item ids (default: row-1, row-2, …).", group=JOB, identity=True
    )
    system_column: OptionalText = setting(
        None,
        "Column whose text is added to the system prompt of the built-in agent for that row.",
        group=JOB,
        identity=True,
        value="NAME",
    )
    job_name: Annotated[str | None, Checked(_job_name)] = setting(
        None, "Display name of the job and name of its folder (default: the job id).", group=JOB
    )
    table_format: FormatName | None = setting(
        None, "Format of the table (default: from its name).", group=TABLE, identity=True, value=FORMATS
    )


class TaskSettings(FileSettings):
    """The task and the output of one job."""

    contents: ClassVar[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
        "instruction_file": ("instruction", read_text)
    }

    instruction: OptionalText = setting(
        None,
        "Instruction for each row; {column} is replaced by the row's cell, {{ and }} are literal braces.",
        group=JOB,
        identity=True,
        value="TEXT",
    )
    instruction_file: OptionalPath = setting(
        None, "File with the instruction.", group=JOB, recorded=False, value="FILE"
    )
    stages: Annotated[Definitions | None, Checked(_stages, recorded_stages)] = setting(
        None,
        "YAML or JSON file with several instructions instead of one: a list of name, instruction, output_schema, when.",
        group=JOB,
        identity=True,
        value="FILE",
    )
    output_csv_path: OptionalPath = setting(
        None,
        "Output file (default: NAME.agent-job-ID.csv next to the table).",
        group=JOB,
        value="FILE",
    )
    output_schema: Annotated[dict[str, Any] | None, Checked(json_object, recorded_object)] = setting(
        None,
        "JSON Schema (draft 2020-12) for results: a file or inline JSON. Workers get the violations.",
        group=JOB,
        identity=True,
        value="FILE",
    )
    prompt_columns: ColumnNames = setting(
        None,
        "Columns whose cells are in the prompt as JSON, or all or none (default: those that the instruction does not name, without "
        "columns of earlier jobs).",
        group=JOB,
        identity=True,
    )
    limit: Annotated[int | None, Checked(_limit)] = setting(
        None,
        "Execute only the first N rows; the others stay pending, and 'jobs run JOB --limit none' continues with them.",
        group=LIMITS,
    )
    output_columns: ColumnNames = setting(
        None,
        "Columns of the results, in this order: names, or table, job, results for all of the table, of the job (job_id …) and of the "
        "results' properties (default: table,job).",
        group=OUTPUT,
    )
    max_workers: Annotated[int | None, optional_whole(0, MAX_WORKERS)] = setting(
        None, "Alias of --max_concurrency; used if that is not given.", group=SPEED
    )


class WorkerSettings(AgentOptions):
    """What can be set for several jobs at once: who does the work, and within which limits."""

    headings: ClassVar[tuple[str, ...]] = (JOB, TABLE, WORKER, *AgentOptions.headings)
    max_concurrency: Annotated[int | None, optional_whole(0, MAX_WORKERS)] = setting(
        None,
        f"Maximum rows executed concurrently (default: {AT_ONCE}; fewer for --worker_command where free memory is estimated not to "
        "suffice).",
        group=SPEED,
    )
    memory_concurrency: Annotated[int | None, optional_whole(1)] = setting(
        None, "How many rows free memory was estimated to suffice for, at the last start.", typed=False, group=SPEED
    )
    max_runtime_seconds: Annotated[int, whole(1)] = setting(
        1800, "Time limit per row in seconds, from the start of the worker.", group=LIMITS
    )
    auto_export: Flag = setting(True, "Write the results when the job ends.", group=OUTPUT)

    worker_command: OptionalText = setting(
        None,
        "Command that does the work instead of the built-in agent; gets the prompt on stdin or as {prompt}/{prompt_file}, reports over "
        "MCP or prints JSON.",
        group=WORKER,
        identity=True,
        value="COMMAND",
    )
    worker_function: OptionalText = setting(
        None,
        "Python function that does the work: module:function or file.py:function, called with the row.",
        group=WORKER,
        identity=True,
        value="NAME",
    )
    toolsets: OptionalList = setting(
        ("terminal", "file"), 'Toolsets of the built-in agent; "none" for none.', group=TOOLS, identity=True
    )
    project: OptionalPath = setting(
        None,
        "Working directory of workers; read-only for the built-in agent unless --sandbox=local.",
        group=WORKER,
        identity=True,
        value="FOLDER",
    )
    max_corrections: Annotated[int, whole(0, 100)] = setting(
        3, "Maximum corrections of a report that does not match the schema.", group=WORKER, identity=True
    )
    max_depth: Annotated[int, whole(0, 10)] = setting(
        1, "Maximum nesting of jobs; with 1, workers cannot start jobs.", group=WORKER, identity=True
    )

    max_turns: Annotated[int, whole(1)] = setting(
        30, "Maximum model calls per conversation.", group=CONVERSATION, identity=True
    )
    max_attempts: Annotated[int | None, optional_whole(1)] = setting(
        2, "Maximum attempts per row for failures that can be retried.", group=LIMITS
    )
    fail_threshold: Annotated[str | None, Checked(_threshold)] = setting(
        None, "Stop after this many failed rows: a number, or a share such as 20%.", group=LIMITS, value="N|N%"
    )
    max_concurrency_limit: Annotated[int | None, optional_whole(1, MAX_WORKERS)] = setting(
        None,
        f"Upper bound for --max_concurrency (default: ${LIMIT_VARIABLE}).",
        group=SPEED,
    )
    executor: Literal["auto", "processes", "local", "ray"] = setting(  # type: ignore[assignment]
        "auto",
        "processes: worker processes; local: in the runner; ray: worker processes on the nodes of a Ray cluster; auto: processes for "
        "Python functions only.",
        group=SPEED,
    )
    num_workers: Annotated[int | None, optional_whole(1, 1000)] = setting(
        None, f"Number of worker processes (default: number of CPUs; {ON_CLUSTER} with --executor=ray).", group=SPEED
    )

    export_format: FormatName | None = setting(
        None, "Format of the results (default: from the output's name).", group=OUTPUT, value=FORMATS
    )
    flatten: Flag = setting(False, "Add one column per result property.", group=OUTPUT)
    excel_safe: Flag = setting(
        False,
        "Write CSV for spreadsheet programs: a byte order mark, and an apostrophe before cells that they would take for formulas.",
        group=OUTPUT,
    )
    output_delimiter: OptionalText = setting(
        None,
        "Delimiter of CSV results, such as ';' or tab (default: the table's; tabs in a .tsv).",
        group=OUTPUT,
        value="CHARACTER",
    )

    @classmethod
    def check(cls, name: str, value: Any) -> Any:
        if name == "toolsets" and value in (None, (_NO_TOOLSETS,)):
            return ()
        return super().check(name, value)

    @property
    def worker_kind(self) -> Literal["agent", "command", "function"]:
        """What does the work."""
        if self.worker_command is not None:
            return "command"
        return "agent" if self.worker_function is None else "function"

    def resolved(self) -> Self:
        """With absolute paths. Raises UserError for what can't be read, and for settings of workers that contradict each other."""
        if self.worker_command is not None and self.worker_function is not None:
            raise UserError("give --worker_command or --worker_function, not both")
        check_executor(self)
        check_binding(self, self.given)
        return super().resolved().changed({"project": _project(self)})


class JobSettings(WorkerSettings, TaskSettings, AgentTerminalSettings):
    """What can be set for a job besides its table, also when it is continued."""

    @property
    def workers(self) -> int:
        """Maximum rows executed concurrently: as requested, within the limit."""
        requested = self.requested_concurrency
        if requested is None:
            elsewhere = self.executor == "ray"
            requested = AT_ONCE if elsewhere else min(AT_ONCE, self.memory_concurrency or AT_ONCE)
        return max(1, requested if self.max_concurrency_limit is None else min(requested, self.max_concurrency_limit))

    @property
    def requested_concurrency(self) -> int | None:
        """Under either name; None where neither is given."""
        by_other_name = self.max_workers is not None and "max_concurrency" not in self.given
        return self.max_workers if by_other_name and self.max_workers is not None else self.max_concurrency

    @property
    def in_processes(self) -> bool:
        """Whether worker processes execute the rows."""
        return self.executor_used != "local"

    @property
    def executor_used(self) -> str:
        """What executes the rows: never ``auto``."""
        if self.executor == "auto":
            return "processes" if self.worker_kind == "function" else "local"
        return self.executor

    @property
    def processes(self) -> tuple[int, int]:
        """The number of worker processes, and the maximum of rows in each; all together never have more than ``workers``."""
        if not self.in_processes:
            return 1, self.workers
        usual = ON_CLUSTER if self.executor == "ray" else os.cpu_count() or 1
        count = min(self.num_workers or usual, self.workers)
        return count, ceil(self.workers / count)

    def failures_allowed(self, rows: int) -> int | None:
        """The number of failed rows at which the job stops early; None: it never does."""
        if self.fail_threshold is None:
            return None
        rows = rows if self.limit is None else min(rows, self.limit)
        figure = int(self.fail_threshold.removesuffix("%"))
        return max(1, ceil(rows * figure / 100)) if self.fail_threshold.endswith("%") else figure

    def resolved(self) -> Self:
        """With the contents of the files that settings name, and absolute paths. Raises UserError for what can't be read, and for
        settings that contradict each other."""
        if self.instruction is not None and self.instruction_file is not None and self._both_given():
            raise UserError("give --instruction or --instruction_file, not both")
        _check_task(self)
        spec = super().resolved()
        changes: dict[str, Any] = {}
        if self.output_csv_path == STANDARD_STREAM:
            raise UserError(
                "--output_csv_path: a job runs in the background and writes to a file; "
                "manyhands jobs export JOB --output=- writes to standard output"
            )
        if self.output_delimiter is not None:
            given_delimiter(self.output_delimiter)
        if self.max_workers is not None:  # one name from here on, so that a later --max_concurrency counts
            changes = {"max_concurrency": self.requested_concurrency, "max_workers": None}
        if self.output_csv_path is not None:
            changes["output_csv_path"] = str(expand_home(self.output_csv_path).absolute())
        return spec.changed(changes)

    def _both_given(self) -> bool:
        return {"instruction", "instruction_file"} <= self.given


class JobSpec(TableSettings, JobSettings):
    """Everything that can be set for a job. ``JobSpec.make`` gives clear messages; ``resolved`` reads what is named."""


class JobChanges(JobSpec, ResumeSettings):
    """The settings of a job that is continued."""


def _check_task(spec: TaskSettings) -> None:
    """Raises UserError for settings of a single instruction beside stages, which have their own."""
    names = ("instruction", "instruction_file", "output_schema")
    beside = [f"--{name}" for name in names if getattr(spec, name) is not None]
    if spec.stages is not None and beside:
        raise UserError(f"{', '.join(beside)}: not with stages, each of which has its own in its file (--stages)")


def check_executor(spec: WorkerSettings) -> None:
    """Raises UserError for what can't be done where rows are executed."""
    if spec.worker_command is not None and spec.executor == "processes":
        raise UserError("--executor=processes is not for --worker_command: each command is a process already")
    if spec.executor == "ray" and spec.max_depth > 1:
        raise UserError(
            "--max_depth: workers on the nodes of a cluster can't start jobs; leave it out with --executor=ray"
        )


def check_binding(spec: WorkerSettings, given: Iterable[str]) -> None:
    """Refuse settings that the worker would ignore. ``given``: the names of those that were given.

    The built-in agent uses all. A command ignores ``_for_agents``, and a function those and ``_NOT_FOR_FUNCTIONS``.
    Raises UserError with one line that names them, and what to do.
    """
    kind = spec.worker_kind
    if kind == "agent":
        return
    names = {name for name in given if getattr(spec, name, None) is not None}
    idle = [f"--{name}" for name in spec.in_order() if name in names & _for_agents()]
    if idle:
        remedy = "set it in the command itself" if kind == "command" else "let the function itself do that"
        raise UserError(f"{', '.join(idle)}: for the built-in agent only, --worker_{kind} ignores it: {remedy}")
    if kind == "function":
        idle = [f"--{name}" for name in _NOT_FOR_FUNCTIONS if name in names]
        if idle:
            raise UserError(
                f"{', '.join(idle)}: not with --worker_function, which is called once for a row and does not report its "
                "costs: let the function itself do that (--max_seconds and --fail_threshold hold)"
            )
        return
    _check_budget(spec)


def _check_budget(spec: WorkerSettings) -> None:
    """Refuse a budget if it is known beforehand that the costs of launches will be unknown."""
    if not spec.bounded:
        return
    program = AgentProgram.of(CommandTemplate.split(spec.worker_command or "", name="--worker_command").words)
    if spec.max_total_tokens is not None and (why := program.why_silent()):
        raise UserError(f"--max_total_tokens can't be kept: {why}")
    if spec.max_cost is not None and program.name is not None:
        path = None if spec.prices is None else expand_home(spec.prices)
        if path is not None and not path.is_file():
            return  # a copy is kept, or the missing file is reported elsewhere
        if why := program.why_cost_unknown(PriceTable() if path is None else load_price_table(path)):
            raise UserError(f"--max_cost can't be kept: {why}")


_NOT_FOR_FUNCTIONS = ("max_cost", "max_total_tokens", "prices", "max_corrections")
"""Settings that agents and commands use: a function is called once for a row, and does not report its costs."""


@cache
def _for_agents() -> frozenset[str]:
    """Settings that only the built-in agent uses."""
    groups = (MODEL, CONVERSATION, TOOLS, SERVICES, SANDBOX, WORLD)
    found = {name for name in WorkerSettings.fields if WorkerSettings.about(name).group in groups}
    others = {"call_timeout", "tool_timeout", "reasoning_config", "prefill_messages"}
    return frozenset((found | others) - {"keep_workspaces"})


def concurrency_limit(environ: Mapping[str, str]) -> int | None:
    """The limit in the environment. Raises UserError if it is not a number."""
    text = environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise UserError(f"{LIMIT_VARIABLE} must be a whole number from 1 to {MAX_WORKERS}, not {text!r}")
    return int(text)


def _project(spec: WorkerSettings) -> str | None:
    """The folder that workers start in. Commands and functions have always started where the person is."""
    if spec.project is None and spec.worker_kind == "agent":
        return None
    path = expand_home(spec.project or FilePath.cwd())
    if spec.worker_kind == "agent":
        return str(checked_project(path, sandbox=spec.sandbox))
    if not path.is_dir():
        raise UserError(f"--project: no such folder: {spec.project}")
    return str(path.resolve())
