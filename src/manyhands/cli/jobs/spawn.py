"""``manyhands jobs spawn``: a table and an instruction become a job."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from manyhands.cli.console import notice, out
from manyhands.cli.jobs.follow import follow, job_command
from manyhands.cli.options import help_text, make, parse
from manyhands.cli.plain import shown_path
from manyhands.cli.progress import LogTail
from manyhands.core.errors import RunError
from manyhands.core.settings import Flag, OptionalList, optional_whole, setting
from manyhands.processes.event_loop import run_on_loop
from manyhands.workloads.csv_jobs.prepared import describe_worker, dry_run
from manyhands.workloads.csv_jobs.service.jobs import JobService, Spawned
from manyhands.workloads.csv_jobs.service.launching import LOG
from manyhands.workloads.csv_jobs.spec import JobSpec

PROGRAM = "manyhands jobs spawn"
USAGE = f"{PROGRAM} CSV"
TABLE_FIELD = "csv_path"
HERE = "This command"
DESCRIPTION = (
    "Makes a job: each row of the table CSV is given to an agent with the instruction, and what it reports is added to the row. "
    "A process of its own performs the job; this command shows how far it is, and Ctrl-C stops it. If this terminal goes away, "
    "the job goes on."
)


class SpawnOptions(JobSpec):
    """The options of ``manyhands jobs spawn``: the job's, and what to do here."""

    detach: Flag = setting(
        False, "Start the job, say how to follow it, and don't wait for it.", group=HERE, recorded=False
    )
    dry_run: Annotated[int | None, optional_whole(0)] = setting(
        None,
        "Only show the plan and the prompts of the first N rows (3 if no number is given); nothing is made.",
        group=HERE,
        recorded=False,
        value="N",
        bare="3",
    )
    override: OptionalList = setting(None, "Nothing is recorded yet that could be overridden.", typed=False)


def run(argv: list[str]) -> int:
    """Perform the command line; the exit code."""
    line = parse(SpawnOptions, argv, PROGRAM, positional=TABLE_FIELD)
    if line.help:
        print(help_text(SpawnOptions, USAGE, DESCRIPTION, positional=TABLE_FIELD))
        return 0
    options = make(SpawnOptions, line.values, PROGRAM)
    spec = make(JobSpec, {name: value for name, value in line.values.items() if name in JobSpec.model_fields}, PROGRAM)
    if options.dry_run is not None:
        return run_on_loop(_print_plan(spec, options.dry_run))
    desk, job_id = JobService(Path(spec.data_dir), environ=os.environ, folders=True), str(uuid.uuid4())
    try:
        return run_on_loop(_spawn(desk, spec, job_id, detach=options.detach))
    except KeyboardInterrupt:
        _say_if_made(desk, job_id)
        raise


async def _spawn(desk: JobService, spec: JobSpec, job_id: str, *, detach: bool) -> int:
    spawned = await desk.spawn(spec, notice=notice, job_id=job_id)
    if detach or not spec.quiet:
        _print_head(spec, spawned, desk, detached=detach)
    if detach:
        return 0
    log = LogTail(spawned.folder / LOG) if spec.verbose else None
    return await follow(desk, spawned.job_id, quiet=spec.quiet, log=log)


def _say_if_made(desk: JobService, job_id: str) -> None:
    """An interruption while the job is made leaves nothing; one while its runner starts comes too late."""
    with suppress(RunError):
        status = desk.status(job_id)
        notice(f"the job is made already, and goes on by itself; to end it:  {job_command('cancel', status)}")


def _print_head(spec: JobSpec, spawned: Spawned, desk: JobService, *, detached: bool) -> None:
    status = desk.status(spawned.job_id)
    lines = [
        f"Job {spawned.job_id}: {spawned.total_items:,} rows of {shown_path(Path(spec.csv_path).absolute())}",
        f"  folder {shown_path(spawned.folder)}",
        f"  output {shown_path(Path(spawned.output_csv_path))}",
        f"  {describe_worker(spec)}{_simulated(spec)}",
    ]
    if detached:
        lines += [
            f"  to follow it:  {job_command('status', status)} --watch",
            f"  to wait for it:  {job_command('wait', status)}",
            f"  to end it:  {job_command('cancel', status)}",
        ]
    else:
        lines += [
            "  a process of its own performs it, and goes on if this terminal goes away",
            f"  if it stops, whatever the reason:  {job_command('run', status)}",
        ]
    for line in lines:
        out().print(line, markup=False, soft_wrap=True)


def _simulated(spec: JobSpec) -> str:
    made_up = spec.worker_kind == "agent" and spec.model.startswith("simulated")
    return " (simulated: its answers are made up)" if made_up else ""


async def _print_plan(spec: JobSpec, prompts: int) -> int:
    dry = await dry_run(spec, prompts)
    for number, prompt in enumerate(dry.prompts, 1):
        print(f"── prompt {number} ──\n{prompt}\n")
    width = max(len(label) for label, _ in dry.plan)
    for label, text in dry.plan:
        print(f"{label:<{width}}  {text}")
    return 0
