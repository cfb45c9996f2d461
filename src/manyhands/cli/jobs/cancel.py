"""``manyhands jobs cancel``: ends a job."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from manyhands.cli.arguments import add_job, parser
from manyhands.cli.console import err
from manyhands.cli.jobs.status import print_status
from manyhands.core.text import json_text
from manyhands.processes.event_loop import run_on_loop
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.service.runner import CANCEL_SECONDS


def run(argv: list[str]) -> int:
    """Cancel, and print how the job stands then."""
    options = _parser().parse_args(argv)
    desk = JobService(Path(options.data_dir), environ=os.environ, folders=True)
    status = run_on_loop(desk.cancel(options.job, firm=options.firm))
    if options.json:
        print(json_text(status.to_json(), indent=2))
    else:
        print_status(status)
    if status.runner_active and not options.firm:
        text = f"note: no row is begun any more; those in work have {CANCEL_SECONDS:g} seconds to end"
        err().print(text, markup=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs cancel",
        "End a job: no row is begun any more, rows in work are finished. Rows that were not begun stay pending, so that "
        "'manyhands jobs run' can go on with them.",
    )
    add_job(result)
    result.add_argument("--firm", action="store_true", help="stop the rows in work as well; they stay pending")
    result.add_argument("--json", action="store_true", help="print the status as JSON")
    return result
