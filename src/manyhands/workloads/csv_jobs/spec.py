"""The settings of a CSV job.

Names, meanings and defaults of the first eleven are those of the feature that this workload restores;
``max_workers``, ``max_runtime_seconds`` are of its later shape.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import ceil
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, field_validator

from manyhands.agents.options import (
    CONVERSATION,
    LIMITS,
    MODEL,
    OUTPUT,
    RESUME,
    SPEED,
    TOOLS,
    AgentOptions,
    load_prefill,
    read_text,
)
from manyhands.agents.programs import AgentProgram
from manyhands.core.errors import UserError
from manyhands.core.settings import (
    Flag,
    OptionalList,
    OptionalPath,
    OptionalText,
    Path,
    optional_whole,
    setting,
    whole,
)
from manyhands.models.pricing import PriceTable, load_price_table
from manyhands.processes.commands import CommandLine
from manyhands.sandboxes.project import checked_project

JOB = "Job"
TABLE = "Table"
WORKER = "Worker"
LIMIT_VARIABLE = "MANYHANDS_MAX_CONCURRENCY"
"""The environment variable that caps the concurrency of every job on this machine."""
MOST_WORKERS = 10_000
_LONGEST_NAME = 200
_NO_TOOLSETS = "none"


def _job_name(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be text without control characters")
    if len(value.encode()) > _LONGEST_NAME:
        raise ValueError(f"must be at most {_LONGEST_NAME} bytes long")
    return value.strip()


def _schema(value: Any) -> Any:
    """A schema: an object, or as typed: its JSON text, or the name of a file that holds it."""
    if value is None or isinstance(value, Mapping):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a JSON object")
    text, place = value.strip(), "it"
    if not text:
        return None
    if not text.startswith("{"):
        text, place = read_text(value), value
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{place} must hold a JSON object")
    return found


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


class JobSpec(AgentOptions):
    """Everything that can be set for a CSV job. ``JobSpec.make`` gives clear messages; ``resolved`` reads what is named."""

    headings: ClassVar[tuple[str, ...]] = (
        JOB,
        TABLE,
        WORKER,
        MODEL,
        CONVERSATION,
        TOOLS,
        SPEED,
        LIMITS,
        RESUME,
        OUTPUT,
    )
    contents: ClassVar[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
        "prefill_messages_file": ("prefill_messages", load_prefill),
        "instruction_file": ("instruction", read_text),
    }
    paths: ClassVar[tuple[str, ...]] = ("data_dir", "csv_path")

    csv_path: Path = setting(
        ...,
        "The table: .csv, .tsv (also .gz), .jsonl or .parquet. A row is an item.",
        group=JOB,
        identity=True,
        value="FILE",
    )
    instruction: OptionalText = setting(
        None,
        "What to do with each row. {column} stands for the row's cell; braces that mean themselves are doubled.",
        group=JOB,
        identity=True,
        value="TEXT",
    )
    instruction_file: OptionalPath = setting(
        None, "File that holds the instruction.", group=JOB, recorded=False, value="FILE"
    )
    id_column: OptionalText = setting(
        None, "Column whose values name the items; without it they are row-1, row-2 …", group=JOB, identity=True
    )
    job_name: Annotated[str | None, BeforeValidator(_job_name)] = setting(
        None, "A name for people, and of the job's folder; without it the folder is called by the job's id.", group=JOB
    )
    output_csv_path: OptionalPath = setting(
        None,
        "Where the results are written; without it beside the table: NAME.agent-job-ID.csv.",
        group=JOB,
        value="FILE",
    )
    output_schema: Annotated[dict[str, Any] | None, BeforeValidator(_schema)] = setting(
        None,
        "JSON Schema (draft 2020-12) that each result must fit: a file, or the JSON itself. A worker is told what does not fit.",
        group=JOB,
        identity=True,
        value="FILE",
    )
    max_concurrency: Annotated[int, whole(0, MOST_WORKERS)] = setting(64, "Rows in work at once, at most.", group=SPEED)
    max_workers: Annotated[int | None, optional_whole(0, MOST_WORKERS)] = setting(
        None, "Another name of --max_concurrency, used where that is not given.", group=SPEED
    )
    max_runtime_seconds: Annotated[int, whole(1)] = setting(
        1800, "Seconds that a worker may take for a row, from its launch.", group=LIMITS
    )
    auto_export: Flag = setting(True, "Write the results by itself when the job stops.", group=OUTPUT)

    on_bad_row: Literal["fail", "skip"] = setting(
        "fail",
        "What to do about rows that can't be read: refuse the table, or skip them and say so in the results.",
        group=TABLE,
        identity=True,
    )
    encoding: OptionalText = setting(
        None, "Encoding of a CSV table; UTF-8 if not given.", group=TABLE, identity=True, value="NAME"
    )
    delimiter: OptionalText = setting(
        None,
        "What separates the cells of a CSV table, as ';' or tab; found by looking if not given.",
        group=TABLE,
        identity=True,
        value="CHARACTER",
    )
    table_format: Literal["csv", "jsonl", "parquet"] | None = setting(
        None, "What the table is, if its name does not tell.", group=TABLE, identity=True
    )

    worker_command: OptionalText = setting(
        None,
        "A command that does a row's work in place of the built-in agent. It gets the prompt on standard input, or where it says "
        "{prompt} or {prompt_file}, and reports over MCP or by printing JSON.",
        group=WORKER,
        identity=True,
        value="COMMAND",
    )
    worker_function: OptionalText = setting(
        None,
        "A Python function that does it: module:function or file.py:function, called with the row.",
        group=WORKER,
        identity=True,
        value="NAME",
    )
    toolsets: OptionalList = setting(
        ("terminal", "file"), 'Toolsets of the built-in agent; "none" for none.', group=TOOLS, identity=True
    )
    project: OptionalPath = setting(
        None,
        "Folder that workers start in. The built-in agent may read it, and change it only with --sandbox=local.",
        group=WORKER,
        identity=True,
        value="FOLDER",
    )
    max_corrections: Annotated[int, whole(0, 100)] = setting(
        3, "How often a worker may correct a report that does not fit the schema.", group=WORKER, identity=True
    )
    max_depth: Annotated[int, whole(0, 10)] = setting(
        1, "How deep jobs may start jobs: with 1, workers can't.", group=WORKER, identity=True
    )

    max_turns: Annotated[int, whole(1)] = setting(
        30, "Model calls per conversation at most.", group=CONVERSATION, identity=True
    )
    max_attempts: Annotated[int | None, optional_whole(1)] = setting(
        2, "How often a row is tried where its failure is one that may pass.", group=LIMITS
    )
    fail_threshold: Annotated[str | None, BeforeValidator(_threshold)] = setting(
        None, "Stop once so many rows have failed: a number, or a share of all rows as 20%.", group=LIMITS, value="N|N%"
    )
    max_concurrency_limit: Annotated[int | None, optional_whole(1, MOST_WORKERS)] = setting(
        None,
        f"What --max_concurrency may be at most; without it {LIMIT_VARIABLE} says, if it is set.",
        group=SPEED,
    )
    executor: Literal["auto", "processes", "local"] = setting(  # type: ignore[assignment]
        "auto",
        "processes: worker processes; local: everything in the runner; auto: processes for Python functions only.",
        group=SPEED,
    )
    num_workers: Annotated[int | None, optional_whole(1, 1000)] = setting(
        None, "Worker processes, where there are any; without it as many as there are processors.", group=SPEED
    )

    export_format: Literal["csv", "jsonl", "parquet"] | None = setting(
        None, "What the results are written as; without it the output's name tells.", group=OUTPUT
    )
    flatten: Flag = setting(False, "Spread the results into a column for each property.", group=OUTPUT)
    excel_safe: Flag = setting(
        False, "Keep spreadsheets from taking cells for formulas: an apostrophe goes before them.", group=OUTPUT
    )

    @field_validator("toolsets", mode="after")
    @classmethod
    def _none_of_them(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return () if value is None or value == (_NO_TOOLSETS,) else value

    @property
    def worker_kind(self) -> Literal["agent", "command", "function"]:
        """What does the work."""
        if self.worker_command is not None:
            return "command"
        return "agent" if self.worker_function is None else "function"

    @property
    def workers(self) -> int:
        """Rows in work at once: as asked for, within the limit."""
        asked = self._asked
        return max(1, asked if self.max_concurrency_limit is None else min(asked, self.max_concurrency_limit))

    @property
    def _asked(self) -> int:
        by_other_name = self.max_workers is not None and "max_concurrency" not in self.model_fields_set
        return self.max_workers if by_other_name and self.max_workers is not None else self.max_concurrency

    @property
    def in_processes(self) -> bool:
        """Whether worker processes perform the rows."""
        return self.executor == "processes" or (self.executor == "auto" and self.worker_kind == "function")

    @property
    def processes(self) -> tuple[int, int]:
        """Worker processes, and rows in each at once, at most; all together never have more than ``workers``."""
        if not self.in_processes:
            return 1, self.workers
        count = min(self.num_workers or os.cpu_count() or 1, self.workers)
        return count, ceil(self.workers / count)

    def failures_allowed(self, rows: int) -> int | None:
        """How many rows must have failed for the job to stop early; None: any number may."""
        if self.fail_threshold is None:
            return None
        figure = int(self.fail_threshold.removesuffix("%"))
        return max(1, ceil(rows * figure / 100)) if self.fail_threshold.endswith("%") else figure

    def resolved(self) -> Self:
        """As of the base class. Raises UserError, too, for settings that contradict each other."""
        if self.instruction is not None and self.instruction_file is not None and self._both_given():
            raise UserError("give --instruction or --instruction_file, not both")
        if self.worker_command is not None and self.worker_function is not None:
            raise UserError("give --worker_command or --worker_function, not both")
        if self.worker_command is not None and self.executor == "processes":
            raise UserError("--executor=processes is not for --worker_command: each command is a process already")
        check_binding(self, self.model_fields_set)
        spec = super().resolved()
        changes: dict[str, Any] = {"project": _project(self)}
        if self.max_workers is not None:  # one name from here on, so that a later --max_concurrency counts
            changes |= {"max_concurrency": self._asked, "max_workers": None}
        if self.output_csv_path is not None:
            changes["output_csv_path"] = str(FilePath(self.output_csv_path).expanduser().absolute())
        return spec.model_copy(update=changes)

    def _both_given(self) -> bool:
        return {"instruction", "instruction_file"} <= self.model_fields_set


def check_binding(spec: JobSpec, given: Iterable[str]) -> None:
    """Refuse settings that what does the work would not heed. ``given``: those that somebody has given, out of the ones in ``spec``.

    Raises UserError with one line that names them, and says what to do.
    """
    kind = spec.worker_kind
    if kind == "agent":
        return
    names = {name for name in given if getattr(spec, name, None) is not None}
    idle = [f"--{name}" for name in spec.in_order() if name in names & _for_agents()]
    if idle:
        say = "say it in the command's own words" if kind == "command" else "let the function itself see to it"
        raise UserError(f"{_listed(idle)}: for the built-in agent only, and --worker_{kind} does not heed it: {say}")
    if kind == "function":
        idle = [f"--{name}" for name in ("max_cost", "max_total_tokens", "prices", "max_corrections") if name in names]
        if idle:
            raise UserError(
                f"{_listed(idle)}: not with --worker_function, which is called once for a row and does not say what that "
                "cost: let the function itself see to it (--max_seconds and --fail_threshold hold)"
            )
        return
    _check_budget(spec)


def _check_budget(spec: JobSpec) -> None:
    """Refuse a budget of which it is plain beforehand that nothing can tell when it is used up."""
    if not spec.bounded:
        return
    program = AgentProgram.of(CommandLine.parse(spec.worker_command or "", name="--worker_command").words)
    if spec.max_total_tokens is not None and (why := program.why_silent()):
        raise UserError(f"--max_total_tokens can't be kept: {why}")
    if spec.max_cost is not None and program.name is not None:
        path = None if spec.prices is None else FilePath(spec.prices).expanduser()
        if path is not None and not path.is_file():
            return  # a copy is kept, or somebody else says that there is no such file
        if why := program.why_cost_unknown(PriceTable() if path is None else load_price_table(path)):
            raise UserError(f"--max_cost can't be kept: {why}")


@cache
def _for_agents() -> frozenset[str]:
    """Settings that only the built-in agent heeds."""
    groups = (MODEL, CONVERSATION, TOOLS)
    found = {name for name in JobSpec.model_fields if JobSpec.about(name).group in groups}
    others = {"call_timeout", "tool_timeout", "reasoning_config", "prefill_messages"}
    return frozenset((found | others) - {"keep_workspaces"})


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def concurrency_limit(environ: Mapping[str, str]) -> int | None:
    """What the environment allows. Raises UserError if it says no number."""
    text = environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_WORKERS:
        raise UserError(f"{LIMIT_VARIABLE} must be a whole number from 1 to {MOST_WORKERS}, not {text!r}")
    return int(text)


def _project(spec: JobSpec) -> str | None:
    """The folder that workers start in. Commands and functions have always started where the person is."""
    if spec.project is None and spec.worker_kind == "agent":
        return None
    path = FilePath(spec.project or FilePath.cwd()).expanduser()
    if spec.worker_kind == "agent":
        return str(checked_project(path, sandbox=spec.sandbox))
    if not path.is_dir():
        raise UserError(f"--project: no such folder: {spec.project}")
    return str(path.resolve())
