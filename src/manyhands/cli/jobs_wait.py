"""``manyhands jobs wait``: until a job ends."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from manyhands.cli.arguments import add_job, parser, positive
from manyhands.cli.console import err
from manyhands.cli.jobs_following import Told
from manyhands.cli.jobs_report import exit_code, print_status
from manyhands.core.terminal import json_text
from manyhands.csv_jobs.desk import JobDesk
from manyhands.csv_jobs.status import JobStatus
from manyhands.engine.loop import run_on_loop


def run(argv: list[str]) -> int:
    """0 when every row was completed; 1 when not, or when the time was up before."""
    options = _parser().parse_args(argv)
    desk = JobDesk(Path(options.data_dir), environ=os.environ, folders=True)
    seconds = None if options.timeout_ms is None else options.timeout_ms / 1000
    told = Told(lambda line: err().print(line, markup=False, soft_wrap=True))

    async def show(status: JobStatus) -> None:
        told.show(status)

    status, timed_out = run_on_loop(desk.wait(options.job, seconds, show))
    if options.json:
        print(json_text({**status.to_json(), "timed_out": timed_out}, indent=2))
    else:
        print_status(status)
    if timed_out:
        err().print(f"manyhands: timed out: the job has not ended after {seconds:g} s, and goes on", markup=False)
    elif not status.ended:
        err().print(f"manyhands: {status.state}: nobody performs the job", markup=False)
    return 1 if timed_out else exit_code(status)


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs wait",
        "Wait until a job ends, or until nobody performs it any more. Exit code 0: every row was completed; 1: it ended "
        "otherwise, nobody performs it, or the time was up.",
    )
    add_job(result)
    result.add_argument("--timeout_ms", "--timeout-ms", type=positive, metavar="N", help="wait no longer than this")
    result.add_argument("--json", action="store_true", help="print the status as JSON, with timed_out")
    return result
