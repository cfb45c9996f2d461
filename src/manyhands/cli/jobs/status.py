"""``manyhands jobs status`` and ``list``: the status of jobs, in words. Imports nothing heavy, so that both answer at once."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from manyhands.cli.plain import (
    SHARES_TITLE,
    add_data_dir,
    add_job,
    duration,
    parser,
    shares_table,
    shown_path,
    table,
    usage_text,
)
from manyhands.core.outcomes import ItemState
from manyhands.core.text import json_text, one_line
from manyhands.engine.journal.reader import JournalReader
from manyhands.processes.output import raw_stream
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.ledger import ledger, shares, tool_usages
from manyhands.workloads.csv_jobs.folders import find_job, unreadable_runs
from manyhands.workloads.csv_jobs.rows.stage_states import StageCounts
from manyhands.workloads.csv_jobs.service.status import JobStatus, job_status, job_statuses, rfc3339, stage_counts

_MEANING = {
    "completed": "reported a result",
    "failed": "ended without a result",
    "skipped": "unreadable, so left out",
    "cancelled": "will not be executed",
    "running": "executing now",
    "pending": "not started, or waiting for a retry",
}
LONGEST_WAIT = 120
"""Characters of the reason for a wait, beside the figures."""

_SHOWN_FAILED = 5


def exit_code(status: JobStatus) -> ExitCode:
    """Of a command that followed a job: done when every row (up to the limit) was completed."""
    return ExitCode.DONE if status.well else ExitCode.FAILED


def print_status(status: JobStatus) -> None:
    """All of it: state, ledger, usage, output."""
    print(f"{status.name}: {status.state} (job {status.job_id})")
    print_ledger(status)
    print_stages(status)
    print_failed(status)
    if status.waiting:
        print(f"Now {one_line(status.waiting)}")
    if status.last_error:
        print(f"Last error: {one_line(status.last_error)}")
    print(f"Output: {shown_path(Path(status.output_csv_path))}")


def print_failed(status: JobStatus) -> None:
    """The first failed rows, each with its error."""
    if not status.failed_items:
        return
    reader = JournalReader(status.folder)
    try:
        rows = reader.failed_items(_SHOWN_FAILED)
    finally:
        reader.close()
    for row in rows:
        print(f"  {one_line(row.key)}: {one_line(row.message or '')}")


def print_ledger(status: JobStatus) -> None:
    """The rows by state, with causes, and what the whole job has used."""
    reader = JournalReader(status.folder)
    try:
        causes, seconds = ledger(reader.counts())["by_cause"], reader.working_seconds()
        removed = reader.left_input(ItemState.COMPLETED)
        tools = tool_usages(reader.accounts())
    finally:
        reader.close()
    causes["skipped"] = causes.pop("discarded", {})
    if removed:
        causes["completed"] = {"of rows that the table no longer has:": removed}
    if status.beyond_limit_items:
        causes["pending"] = {f"beyond --limit={status.limit}:": status.beyond_limit_items}
    counts = _counts(status)
    rows = [[state, f"{count:,}", _causes(causes.get(state, {})) or _MEANING[state]] for state, count in counts.items()]
    rows.append(["in all", f"{status.total_items:,}", "= the sum of the states"])
    print("Ledger")
    print(table(("state", "rows", ""), rows, right=("rows",)))
    usage = status.to_json()["usage"]
    print(usage_text(usage, seconds))
    if tools:
        headings, shared = shares_table(shares(usage, tools))
        print(f"{SHARES_TITLE}\n{table(headings, shared, right=headings[1:-1])}")


def print_stages(status: JobStatus) -> None:
    """The rows by stage, of a job with stages."""
    stages = stage_counts(status.folder)
    if stages:
        _, *states = StageCounts.__annotations__
        rows = [[one_line(str(value)) for value in stage.values()] for stage in stages]
        print("Stages")
        print(table(("stage", *states), rows, right=states))


def status_line(status: JobStatus) -> str:
    """The main figures in one line."""
    counts = _counts(status)
    pending = counts["pending"] + counts["running"]
    usage = status.usage
    parts = [status.state, f"{status.total_items - pending:,} of {status.total_items:,} ended", details(status)]
    if status.beyond_limit_items:
        parts.append(f"{status.beyond_limit_items:,} beyond --limit={status.limit}")
    parts.append(f"{usage.total_tokens:,} tokens, ${usage.cost:.4f}")
    if status.waiting:
        parts.append(one_line(status.waiting, LONGEST_WAIT))
    return f"{status.name}: {', '.join(parts)}"


def details(status: JobStatus) -> str:
    """The figures beside a bar: running, failed, time left."""
    parts = [f"{status.running_items:,} running"]
    others = {name: count for name, count in _counts(status).items() if name in ("failed", "skipped", "cancelled")}
    parts += [f"{count:,} {name}" for name, count in others.items() if count]
    if status.eta_seconds:
        parts.append(f"{duration(status.eta_seconds)} left")
    return ", ".join(parts)


def _counts(status: JobStatus) -> dict[str, int]:
    return {
        "completed": status.completed_items,
        "failed": status.failed_items,
        "skipped": status.skipped_items,
        "cancelled": status.cancelled_items,
        "running": status.running_items,
        "pending": status.pending_items,
    }


def _causes(causes: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in causes.items())


def status(argv: list[str]) -> int:
    """Print a job's status once, or until no process executes it any more."""
    options = _status_parser().parse_args(argv)
    if options.watch:
        return _watch(options.data_dir, options.job, _Lines(options.json))
    found = job_status(find_job(Path(options.data_dir), options.job, folders=True))
    if options.json:
        stages = stage_counts(found.folder)
        print(json_text({**found.to_json(), **({"stages": stages} if stages else {})}, indent=2))
    else:
        print_status(found)
    return 0


def _status_parser() -> argparse.ArgumentParser:
    result = parser("jobs status", "Show the status of a job. Only reads, so it works while the job is executed.")
    add_job(result)
    result.add_argument("--watch", action="store_true", help="repeat until no process executes the job any more")
    result.add_argument("--json", action="store_true", help="print JSON (with --watch: one line at each change)")
    return result


def _watch(data_dir: str, job: str, lines: _Lines) -> int:
    # Only here, because they take as long to import as everything else that a status needs.
    import os

    from manyhands.processes.event_loop import run_on_loop
    from manyhands.workloads.csv_jobs.service.jobs import JobService

    async def watch() -> None:
        service = JobService(Path(data_dir), environ=os.environ, folders=True)
        status, _ = await service.wait(job, None, lines.show)
        await lines.show(status)

    try:
        run_on_loop(watch())
    finally:
        lines.close()
    return 0


class _Lines:
    """Shows a status as it changes: on a terminal in one place, elsewhere line by line."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._in_place = not as_json and sys.stdout.isatty()
        self._last = ""

    async def show(self, status: JobStatus) -> None:
        line = json_text(status.to_json()) if self._json else status_line(status)
        if line == self._last:
            return
        if self._in_place:
            width = shutil.get_terminal_size().columns - 1
            raw_stream(sys.stdout).write("\r")
            print(f"{line[:width]:<{min(width, len(self._last))}}", end="", flush=True)
        else:
            print(line, flush=True)
        self._last = line

    def close(self) -> None:
        if self._in_place and self._last:
            print()


_COUNTS = ("rows", "completed", "failed", "skipped", "pending", "cost")


def list_jobs(argv: list[str]) -> int:
    """List jobs with their status, the newest first."""
    options = _list_parser().parse_args(argv)
    data_dir = Path(options.data_dir)
    jobs = job_statuses(data_dir)
    for folder, problem in unreadable_runs(data_dir):
        print(f"manyhands: note: {folder}: left out, as it can't be read: {problem}", file=sys.stderr)
    if options.json:
        print(json_text([status.to_json() for status in jobs], indent=2))
    elif jobs:
        print(table(("job", "name", "state", *_COUNTS, "created"), [_row(status) for status in jobs], right=_COUNTS))
    else:
        print(f"there are no jobs in {options.data_dir}")
    return 0


def _list_parser() -> argparse.ArgumentParser:
    result = parser("jobs list", "List the jobs of a data folder with their status, the newest first.")
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
