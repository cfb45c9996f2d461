"""``manyhands jobs spawn``, ``run`` and ``retry``: start a job's runner, and follow the job."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

from manyhands.cli.console import notice, out, standard_input, view_line
from manyhands.cli.jobs.follow import LogTail, beyond_limit, follow, job_command, job_service
from manyhands.cli.jobs.results import find_item
from manyhands.cli.options import CommandLine, help_text, make, parse
from manyhands.cli.plain import add_job, parser, print_labelled, shown_path
from manyhands.core.errors import RunError, UserError
from manyhands.core.settings import Flag, OptionalText, Settings, Text, optional_whole, setting
from manyhands.core.text import counted
from manyhands.engine.contract import BEHIND_INPUT, ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.io.tables.standard_input import STANDARD_STREAM, kept_input
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import open_reader
from manyhands.runs.options import ResumeSettings, ViewSettings
from manyhands.workloads.csv_jobs.estimating import estimate_lines
from manyhands.workloads.csv_jobs.folders import find_job
from manyhands.workloads.csv_jobs.prepared import describe_worker, dry_run, of_standard_input
from manyhands.workloads.csv_jobs.service.control import LOG
from manyhands.workloads.csv_jobs.service.jobs import JobService, Spawned
from manyhands.workloads.csv_jobs.service.status import JobStatus
from manyhands.workloads.csv_jobs.spec import JOB, JobSettings, JobSpec, TableSettings

_SPAWN = "manyhands jobs spawn"
_SPAWN_USAGE = f"{_SPAWN} CSV"
_TABLE = "csv_path"
_COLUMN = "column"
_THIS_COMMAND = "This command"
_SPAWN_DESCRIPTION = (
    "Creates a job: an agent gets the instruction for each row of the table CSV, and its report is added to the row. "
    "The job runs in a background process; this command shows its progress, and Ctrl-C stops it. If this terminal is closed, "
    "the job continues."
)


class ColumnOptions(Settings):
    """How stages are given without a file."""

    column: OptionalText = setting(
        None,
        "Column to add and its instruction, which may name columns and earlier ones of these; may be repeated. Short for --stages.",
        group=JOB,
        recorded=False,
        value="NAME=TEXT",
    )


class SpawnOptions(JobSpec, ColumnOptions, ViewSettings):
    """The options of ``manyhands jobs spawn``: the job's, and what to do here."""

    detach: Flag = setting(
        False, "Start the job, print how to follow it, and don't wait for it.", group=_THIS_COMMAND, recorded=False
    )
    dry_run: Annotated[int | None, optional_whole(0)] = setting(
        None,
        "Only show the prompts of the first N rows (3 if no number is given), the plan, and an estimate of tokens, dollars and time; "
        "nothing is created.",
        group=_THIS_COMMAND,
        recorded=False,
        value="N",
        bare="3",
    )


def spawn(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    line = parse(SpawnOptions, argv, _SPAWN, positional=_TABLE, repeated=(_COLUMN,))
    if line.help:
        print(help_text(SpawnOptions, _SPAWN_USAGE, _SPAWN_DESCRIPTION, positional=_TABLE))
        return 0
    values = _with_columns(line)
    options = make(SpawnOptions, values, _SPAWN)
    spec = make(JobSpec, {name: value for name, value in values.items() if name in JobSpec.fields}, _SPAWN)
    if options.dry_run is not None:
        return run_on_loop(_print_plan(spec, options.dry_run))
    _refuse_view_of_nobody(options)
    service, job_id = job_service(spec.data_dir), str(uuid.uuid4())
    try:
        return run_on_loop(_spawned(service, spec, job_id, detach=options.detach, view=options.view))
    except KeyboardInterrupt:
        _say_if_made(service, job_id)
        raise


def _with_columns(line: CommandLine) -> dict[str, Any]:
    """What was typed, with columns as the stages that they stand for. Raises UserError if stages are given, too."""
    values: dict[str, Any] = dict(line.values)
    columns = line.lists[_COLUMN]
    if columns:
        if "stages" in values:
            raise UserError("give --stages or --column, not both")
        values = {**values, "stages": columns}
        del values[_COLUMN]
    return values


async def _spawned(service: JobService, spec: JobSpec, job_id: str, *, detach: bool, view: bool) -> int:
    stream = standard_input() if spec.csv_path == STANDARD_STREAM else None
    spawned = await service.spawn(spec, notice=notice, job_id=job_id, standard_input=stream)
    if detach or not spec.quiet:
        _print_head(spec, spawned, service, detached=detach)
    if detach:
        return 0
    log = LogTail(spawned.folder / LOG) if spec.verbose else None
    return await follow(service, spawned.job_id, quiet=spec.quiet, log=log, view=view)


def _refuse_view_of_nobody(options: SpawnOptions | RunOptions) -> None:
    """Raises UserError if a viewer is wanted that would end at once."""
    if options.view and options.detach:
        raise UserError("--view shows the job while this command runs; with --detach, use manyhands view")


def _say_if_made(service: JobService, job_id: str) -> None:
    """An interruption while the job is made leaves nothing; one while its runner starts comes too late."""
    with suppress(RunError):
        status = service.status(job_id)
        notice(f"the job is already created, and runs in the background; to end it:  {job_command('cancel', status)}")


def _print_head(spec: JobSpec, spawned: Spawned, service: JobService, *, detached: bool) -> None:
    status = service.status(spawned.job_id)
    lines = [
        f"Job {spawned.job_id}: {spawned.total_items:,} rows of {_shown_table(spec)}",
        f"  folder {shown_path(spawned.folder)}",
        f"  output {shown_path(Path(spawned.output_csv_path))}",
        f"  {describe_worker(spec)}{_simulated(spec)}",
    ]
    if status.beyond_limit_items:
        lines.append(f"  the first {status.limit:,} rows only (--limit)")
    if detached:
        lines += [
            f"  to follow it:  {job_command('status', status)} --watch",
            f"  to wait for it:  {job_command('wait', status)}",
            f"  to end it:  {job_command('cancel', status)}",
        ]
    else:
        lines += [
            "  runs in a background process, and continues if this terminal is closed",
            f"  to continue it if it stops:  {job_command('run', status)}",
        ]
    lines.append(view_line(spawned.folder))
    for line in lines:
        out().print_line(line)


def _shown_table(spec: JobSpec) -> str:
    return "standard input" if spec.csv_path == STANDARD_STREAM else shown_path(Path(spec.csv_path).absolute())


def _simulated(spec: JobSpec) -> str:
    made_up = spec.worker_kind == "agent" and spec.model.startswith("simulated")
    return " (simulated: its answers are made up)" if made_up else ""


async def _print_plan(spec: JobSpec, prompts: int) -> int:
    with ExitStack() as stack:
        if spec.csv_path == STANDARD_STREAM:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            table = stack.enter_context(kept_input(standard_input(), folder, "table", spec.table_format))
            spec = of_standard_input(spec, table, "ID")
        dry = await dry_run(spec, prompts, notice)
    for number, prompt in enumerate(dry.prompts, 1):
        print(f"── prompt {number} ──\n{prompt}\n")
    print_labelled([*dry.plan, *estimate_lines(dry.job, dry.executed)])
    return 0


_RUN = "manyhands jobs run"
_RUN_USAGE = f"{_RUN} JOB"
_RUN_DESCRIPTION = (
    "Continues a job that was interrupted, stopped or cancelled: recorded steps are not repeated, failed rows stay failed unless "
    "--retry_failed is given. Options change settings; settings that are not given stay as they were. A change that would make it "
    "another job is rejected unless --override names it."
)
_MAX_RANGE = 10_000_000
SHOWN_ROWS = 10
"""Numbers of rows in a message."""
_NOT_OF_THE_JOB = ("job", "detach", "retry_failed", "update", "dry_run", "data_dir", "quiet", "view")


class RunOptions(JobSettings, ColumnOptions, ViewSettings, ResumeSettings):
    """The options of ``manyhands jobs run``: the job's, and what to do here."""

    instead: ClassVar[Mapping[str, str]] = dict.fromkeys(
        TableSettings.fields, "it can't be changed after a job was created"
    )

    job: Text = setting(
        ..., "The job's id (or its first 8 or more characters), name or folder.", group=_THIS_COMMAND, value="JOB"
    )
    detach: Flag = setting(False, "Don't wait for the job.", group=_THIS_COMMAND)
    retry_failed: Flag = setting(False, "Also retry failed rows.", group=_THIS_COMMAND)
    update: Flag = setting(
        False,
        "Read the table again first: new and changed rows are executed, removed ones are cancelled, and the others stay as they are.",
        group=_THIS_COMMAND,
    )
    dry_run: Flag = setting(
        False, "Only say how many rows --update would find new, changed and removed.", group=_THIS_COMMAND
    )


def run(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    line = parse(RunOptions, argv, _RUN, positional="job", repeated=(_COLUMN,))
    if line.help:
        print(help_text(RunOptions, _RUN_USAGE, _RUN_DESCRIPTION, recorded=True, positional="job"))
        return 0
    return run_on_loop(_ran(_with_columns(line)))


def resume(folder: Path, words: list[str]) -> int:
    """Continue a job and retry its failed rows, as ``manyhands resume`` does for every kind of run; the exit code."""
    options = [word for word in words if word not in ("-h", "--help")]
    return run([str(folder), "--retry_failed", *options] if options == words else ["--help"])


async def _ran(values: Mapping[str, Any]) -> int:
    options = make(RunOptions, values, _RUN)
    changes = {name: value for name, value in values.items() if name not in _NOT_OF_THE_JOB}
    _refuse_view_of_nobody(options)
    service = job_service(options.data_dir)
    status = service.status(options.job)
    if options.dry_run and not options.update:
        raise UserError(f"--dry_run goes with --update (see {_RUN} --help)")
    if options.update:
        changed = await service.update(options.job, keep=not options.dry_run, changes=changes, notice=notice)
        out().print_line(f"{shown_path(status.folder)}: {changed}")
        if options.dry_run:
            return 0
    log = LogTail.from_now(status.folder / LOG) if options.verbose else None
    started = await service.run(options.job, changes=changes, retry_failed=options.retry_failed, notice=notice)
    if not started and service.status(options.job).runner_active:
        notice("the job is already running" + (", with its present settings" if changes else ""))
    elif not started:
        _say_nothing_is_left(status, options.limit if "limit" in changes else status.limit)
    elif not options.quiet:
        out().print(f"Job {status.job_id}: continues in a background process")
        out().print_line(view_line(status.folder))
    if options.detach:
        return 0
    return await follow(service, options.job, quiet=options.quiet, log=log, view=options.view)


def _say_nothing_is_left(status: JobStatus, limit: int | None) -> None:
    if limit is not None and limit != status.limit:
        rows = "the first row has" if limit == 1 else f"the first {limit:,} rows have"
        notice(f"--limit={limit} is not taken over: {rows} ended already")
    said = beyond_limit(status)
    notice("nothing is left to do" if said is None else f"{said}:  --limit=none")


def retry(argv: list[str]) -> int:
    """Reset rows to pending, and have a runner execute them."""
    options = _retry_parser().parse_args(argv)
    if bool(options.items or options.rows) == options.failed:
        raise UserError(
            "name the rows to retry: --failed for all failed rows, --rows, or item ids (see manyhands jobs retry --help)"
        )
    return run_on_loop(_retried(options))


def _retry_parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs retry",
        "Reset failed rows of a job to pending and continue the job. Their recorded steps are kept. With --rows, completed rows are "
        "executed anew, too; their earlier results stay in the journal. (manyhands retry selects rows by state, cause or id.)",
    )
    add_job(result)
    result.add_argument("items", metavar="ITEM", nargs="*", help="item ids, or row numbers from 1, of failed rows")
    result.add_argument(
        "--rows",
        metavar="N,N-N",
        type=row_numbers,
        default=(),
        help="numbers of rows in the table, from 1, and ranges of them, also of completed rows",
    )
    result.add_argument("--failed", action="store_true", help="all failed rows")
    result.add_argument("--detach", action="store_true", help="don't wait for the job")
    result.add_argument("--quiet", action="store_true", help="no progress bar")
    return result


async def _retried(options: argparse.Namespace) -> int:
    service = job_service(options.data_dir)
    chosen = None if options.failed else _chosen(options)
    rows, started, by_runner = await service.retry(
        options.job, None if chosen is None else list(chosen), completed=bool(options.rows)
    )
    nothing = "there is nothing to retry" + (
        "" if options.rows or options.failed else " (--rows also takes completed rows)"
    )
    if started or by_runner:
        how = "; a runner was started" if started else "; the job's runner has them"
    else:
        how = "" if rows else f"; {nothing}"
    out().print(f"{counted(rows, 'row')} reset{how}")
    _say_beyond_limit(service.status(options.job), (chosen or {}).values())
    if options.detach or not rows:
        return 0
    return await follow(service, options.job, quiet=options.quiet)


def _chosen(options: argparse.Namespace) -> dict[str, int]:
    """The ids of the rows that are named, with their numbers in the table."""
    with closing(open_reader(find_job(Path(options.data_dir), options.job, folders=True))) as reader:
        named = (find_item(reader, which) for which in options.items)
        numbered = (_row_numbered(reader, number) for number in options.rows)
        return {row.key: row.position + 1 for row in chain(named, numbered)}


def _say_beyond_limit(status: JobStatus, numbers: Iterable[int]) -> None:
    """Say which rows a limit keeps from being executed."""
    limit = status.limit
    beyond = sorted(number for number in numbers if limit is not None and limit < number <= BEHIND_INPUT)
    if beyond:
        listed = ", ".join(map(str, beyond[:SHOWN_ROWS])) + ", …" * (len(beyond) > SHOWN_ROWS)
        rows = f"row {listed} is" if len(beyond) == 1 else f"rows {listed} are"
        notice(f"{rows} beyond --limit={limit}, and not executed:  {job_command('run', status)} --limit=none")


def row_numbers(text: str) -> tuple[int, ...]:
    """Numbers from 1, each once, as typed: ``3,7,10-12``. Raises ArgumentTypeError."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)) or len(part) > 20:
            raise argparse.ArgumentTypeError(f"must be row numbers such as 3,7,10-12, not {text!r}")
        begin, end = int(first), int(last or first)
        if not 1 <= begin <= end or end - begin >= _MAX_RANGE:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} is no range of rows")
        numbers.update(dict.fromkeys(range(begin, end + 1)))
    return tuple(numbers)


def _row_numbered(reader: JournalReader, number: int) -> ItemRow:
    """The row of that number in the table as the job has it."""
    row = next(reader.items(number - 2), None)
    if row is None or row.position != number - 1:
        raise UserError(f"{shown_path(reader.folder)}: there is no row {number}")
    return row
