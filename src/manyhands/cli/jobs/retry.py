"""``manyhands jobs retry``: failed rows are put back."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path

from manyhands.cli.arguments import add_job, parser
from manyhands.cli.console import out
from manyhands.cli.jobs.follow import follow
from manyhands.cli.jobs.show import find_item
from manyhands.cli.plain import counted_rows
from manyhands.core.errors import UserError
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import open_reader
from manyhands.workloads.csv_jobs.folders import find_job
from manyhands.workloads.csv_jobs.service.jobs import JobService


def run(argv: list[str]) -> int:
    """Put rows back, and see to it that somebody performs them."""
    options = _parser().parse_args(argv)
    if bool(options.items) == options.failed:
        raise UserError("say which rows: --failed for all that failed, or item ids (see manyhands jobs retry --help)")
    return run_on_loop(_retry(options))


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs retry",
        "Put failed rows of a job back, so that they are performed again, and go on with the job. What was recorded of them stays.",
    )
    add_job(result)
    result.add_argument("items", metavar="ITEM", nargs="*", help="item ids, or rows' numbers from 1")
    result.add_argument("--failed", action="store_true", help="all rows that failed")
    result.add_argument("--detach", action="store_true", help="don't wait for the job")
    result.add_argument("--quiet", action="store_true", help="no progress bar")
    return result


async def _retry(options: argparse.Namespace) -> int:
    desk = JobService(Path(options.data_dir), environ=os.environ, folders=True)
    rows, started = await desk.retry(options.job, _item_ids(options))
    how = (
        "a runner was started" if started else "the job's runner has them" if rows else "there is nothing to try again"
    )
    out().print(f"{counted_rows(rows)} put back; {how}", markup=False)
    if options.detach or not rows:
        return 0
    return await follow(desk, options.job, quiet=options.quiet)


def _item_ids(options: argparse.Namespace) -> list[str] | None:
    if options.failed:
        return None
    with closing(open_reader(find_job(Path(options.data_dir), options.job, folders=True))) as reader:
        return [find_item(reader, which).key for which in options.items]
