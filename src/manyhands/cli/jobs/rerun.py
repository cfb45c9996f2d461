"""``manyhands jobs run``: goes on with a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from manyhands.cli.console import notice, out
from manyhands.cli.jobs.follow import follow
from manyhands.cli.options import UsageError, help_text, make, parse, spell
from manyhands.cli.progress import LogTail
from manyhands.core.settings import Flag, Text, setting
from manyhands.processes.event_loop import run_on_loop
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.service.launching import LOG
from manyhands.workloads.csv_jobs.spec import JobSpec

PROGRAM = "manyhands jobs run"
USAGE = f"{PROGRAM} JOB"
DESCRIPTION = (
    "Goes on with a job that was interrupted, stopped or cancelled: what is recorded is not done again, failed rows stay failed "
    "unless --retry_failed is given. Options may be given to change settings; what is not given is as it was. A change that would "
    "make it another job is refused unless --override names it."
)
FIXED = ("csv_path", "id_column", "job_name", "on_bad_row", "encoding", "delimiter", "table_format")
"""What can't be changed any more: the table was read when the job was made."""
HERE = "This command"
_HERE = ("job", "detach", "retry_failed", "data_dir", "quiet")


class RunOptions(JobSpec):
    """The options of ``manyhands jobs run``: the job's, and what to do here."""

    job: Text = setting(
        ..., "The job's id (or its first 8 characters or more), name or folder.", group=HERE, value="JOB"
    )
    detach: Flag = setting(False, "Don't wait for the job.", group=HERE)
    retry_failed: Flag = setting(False, "Put failed rows back, too.", group=HERE)


def run(argv: list[str]) -> int:
    """Perform the command line; the exit code."""
    line = parse(RunOptions, argv, PROGRAM, positional="job")
    if line.help:
        print(help_text(RunOptions, USAGE, DESCRIPTION, without=FIXED, recorded=True, positional="job"))
        return 0
    return run_on_loop(_run(line.values))


def resume(folder: Path, words: list[str]) -> int:
    """Continue a job with its failed rows put back, as ``manyhands resume`` does for every kind of run; the exit code."""
    options = [word for word in words if word not in ("-h", "--help")]
    return run([str(folder), "--retry_failed", *options] if options == words else ["--help"])


async def _run(values: Mapping[str, str | bool]) -> int:
    if fixed := [spell(name) for name in FIXED if name in values]:
        raise UsageError(f"{', '.join(fixed)} can't be changed after a job was made (see {PROGRAM} --help)")
    # The table stands in for what a job has already, and is needed only to check the rest.
    options = make(RunOptions, {"csv_path": "table", **values}, PROGRAM)
    changes = {name: value for name, value in values.items() if name not in _HERE}
    desk = JobService(Path(options.data_dir), environ=os.environ, folders=True)
    status = desk.status(options.job)
    log = LogTail.from_now(status.folder / LOG) if options.verbose else None
    started = await desk.run(options.job, changes=changes, retry_failed=options.retry_failed)
    if not started and desk.status(options.job).runner_active:
        notice("the job is being performed already" + (", with the settings it has" if changes else ""))
    elif not started:
        notice("nothing is left to do")
    elif not options.quiet:
        out().print(f"Job {status.job_id}: a process of its own goes on with it", markup=False)
    return 0 if options.detach else await follow(desk, options.job, quiet=options.quiet, log=log)
