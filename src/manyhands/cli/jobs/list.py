"""``manyhands jobs list``: the jobs of a data folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from manyhands.cli.arguments import add_data_dir, parser
from manyhands.cli.plain import table
from manyhands.core.text import json_text
from manyhands.workloads.csv_jobs.folders import unreadable_runs
from manyhands.workloads.csv_jobs.service.status import JobStatus, job_statuses, rfc3339

_NUMBERS = ("rows", "completed", "failed", "skipped", "pending", "cost")


def run(argv: list[str]) -> int:
    """List jobs with where they stand, the newest first."""
    options = _parser().parse_args(argv)
    data_dir = Path(options.data_dir)
    jobs = job_statuses(data_dir)
    for folder, problem in unreadable_runs(data_dir):
        print(f"manyhands: note: {folder}: left out, as it can't be read: {problem}", file=sys.stderr)
    if options.json:
        print(json_text([status.to_json() for status in jobs], indent=2))
    elif jobs:
        print(table(("job", "name", "state", *_NUMBERS, "created"), [_row(status) for status in jobs], right=_NUMBERS))
    else:
        print(f"there are no jobs in {options.data_dir}")
    return 0


def _parser() -> argparse.ArgumentParser:
    result = parser("jobs list", "List the jobs of a data folder, the newest first, with where they stand.")
    add_data_dir(result)
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def _row(status: JobStatus) -> list[str]:
    pending = status.pending_items + status.running_items
    counts = (status.total_items, status.completed_items, status.failed_items, status.skipped_items, pending)
    usage = status.usage
    cost = "simulated" if usage.simulated_calls and not usage.cost else f"${usage.cost:.4f}"
    created = rfc3339(status.created_at) or ""
    return [status.job_id, status.name, status.state, *(f"{count:,}" for count in counts), cost, created]
