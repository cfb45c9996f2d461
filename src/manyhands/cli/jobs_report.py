"""Where a job stands, in words. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.cli.plain import duration, one_line, shown_path, table, usage_text
from manyhands.engine.reader import JournalReader, item_row
from manyhands.engine.summary import ledger

if TYPE_CHECKING:
    from manyhands.csv_jobs.status import JobStatus

_MEANING = {
    "completed": "reported a result",
    "failed": "ended without a result",
    "skipped": "can't be read, so left out",
    "cancelled": "not to be performed any more",
    "running": "in work now",
    "pending": "not begun, or waiting for another try",
}
LONGEST_WAIT = 120
"""Characters beside the figures that say what is waited for."""

_SHOWN_FAILED = 5


def exit_code(status: JobStatus) -> int:
    """0 when every row was completed."""
    return 0 if status.state == "completed" else 1


def print_status(status: JobStatus) -> None:
    """The whole of it: state, ledger, bill, output."""
    print(f"{status.name}: {status.state} (job {status.job_id})")
    print_ledger(status)
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
        rows = [item_row(row) for row in reader.all("first_failed_items", _SHOWN_FAILED)]
    finally:
        reader.close()
    for row in rows:
        print(f"  {one_line(row.key)}: {one_line(row.message or '')}")


def print_ledger(status: JobStatus) -> None:
    """The rows by state, with causes, and what the whole job has used."""
    reader = JournalReader(status.folder)
    try:
        causes, seconds = ledger(reader.counts())["by_cause"], reader.working_seconds()
    finally:
        reader.close()
    causes["skipped"] = causes.pop("discarded", {})
    counts = _counts(status)
    rows = [[state, f"{count:,}", _causes(causes.get(state, {})) or _MEANING[state]] for state, count in counts.items()]
    rows.append(["in all", f"{status.total_items:,}", "= the sum of the states"])
    print("Ledger")
    print(table(("state", "rows", ""), rows, right=("rows",)))
    print(usage_text(status.usage.to_json(), seconds))


def status_line(status: JobStatus) -> str:
    """The main figures in one line."""
    counts = _counts(status)
    pending = counts["pending"] + counts["running"]
    usage = status.usage
    parts = [status.state, f"{status.total_items - pending:,} of {status.total_items:,} ended", details(status)]
    parts.append(f"{usage.total_tokens:,} tokens, ${usage.cost:.4f}")
    if status.waiting:
        parts.append(one_line(status.waiting, LONGEST_WAIT))
    return f"{status.name}: {', '.join(parts)}"


def details(status: JobStatus) -> str:
    """The figures beside a bar: in work, what went wrong, time left."""
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
