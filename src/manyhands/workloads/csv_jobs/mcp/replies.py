"""What the tools answer: the original's keys, with null for what is not there, and ours beside them; and each answer in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from manyhands.workloads.csv_jobs.mcp.declarations import ENDED_KEYS, RUN, SPAWN_RESULT, STATUS_RESULT, WAIT
from manyhands.workloads.csv_jobs.service.status import JobStatus

if TYPE_CHECKING:
    from manyhands.workloads.csv_jobs.service.jobs import Spawned

FIRST_ERRORS = 5
"""How many failed rows are told."""
_NO_DETAILS = "rows failed without saying why"


@dataclass(frozen=True, slots=True)
class Reply:
    """A tool's answer: a JSON object, and the same in a sentence or two."""

    content: dict[str, Any]
    text: str


def status_object(status: JobStatus) -> dict[str, Any]:
    """A job's status, as ``STATUS_RESULT`` describes it: what ``JobStatus.to_json`` says, in the original's words."""
    content = {
        **status.to_json(),
        "status": status.original_status,
        "total_tokens": status.usage.total_tokens,
        "cost_usd": round(status.usage.cost, 6),
    }
    return {name: content[name] for name in STATUS_RESULT["properties"]}


def spawned_object(spawned: Spawned, status: JobStatus, notices: Sequence[str]) -> dict[str, Any]:
    """The answer of a spawn that does not wait."""
    content = {
        **status_object(status),
        "started": spawned.started,
        "total_items": spawned.total_items,
        "notices": list(notices),
    }
    return {name: content[name] for name in SPAWN_RESULT["properties"] if name not in ENDED_KEYS}


def ended_object(status: JobStatus, errors: Sequence[Mapping[str, Any]], timed_out: bool) -> dict[str, Any]:
    """What the answer of a spawn that waited has beyond the other's."""
    content = {
        **status_object(status),
        "job_error": _job_error(status, errors),
        "failed_item_errors": [_item_error(error) for error in errors[:FIRST_ERRORS]] or None,
        "timed_out": timed_out,
        "next_step": next_step(status, timed_out),
    }
    return {name: content[name] for name in ENDED_KEYS}


def next_step(status: JobStatus, timed_out: bool) -> str | None:
    """What the caller may do about a job that has not ended; None if it has."""
    if status.ended:
        return None
    if timed_out or status.runner_active:
        return f"The job goes on. Call {WAIT} with job_id {status.job_id}."
    return f"Nobody performs the job. Call {RUN} with job_id {status.job_id} to go on with it."


def status_text(status: JobStatus) -> str:
    """A job's status in a sentence."""
    ended = status.total_items - status.pending_items - status.running_items
    parts = [f"{ended} of {_rows(status.total_items)} ended"]
    parts += [
        f"{count} {word}"
        for count, word in (
            (status.failed_items, "failed"),
            (status.skipped_items, "skipped"),
            (status.cancelled_items, "cancelled"),
            (status.running_items, "running"),
        )
        if count
    ]
    state = status.state.replace("_", " ")
    text = f"Job {_called(status)} is {state}: {', '.join(parts)}."
    return " ".join(part for part in (text, status.last_error, _capital(status.waiting)) if part)


def spawned_text(spawned: Spawned, status: JobStatus) -> str:
    """The answer of a spawn that does not wait, in two sentences."""
    begun = "was started" if spawned.started else f"was made, and is {status.state}"
    return (
        f"Job {spawned.job_id} {begun} with {_rows(spawned.total_items)}; results go to {spawned.output_csv_path}. "
        f"Follow it with {WAIT}."
    )


def _capital(line: str | None) -> str:
    return f"{line[:1].upper()}{line[1:]}." if line else ""


def _called(status: JobStatus) -> str:
    return status.job_id if status.name in ("", status.job_id) else f"{status.name} ({status.job_id})"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _job_error(status: JobStatus, errors: Sequence[Mapping[str, Any]]) -> str | None:
    if status.last_error and status.last_error.strip():
        return status.last_error
    if status.failed_items and not any(error["last_error"] for error in errors):
        return _NO_DETAILS
    return None


def _item_error(error: Mapping[str, Any]) -> dict[str, Any]:
    return {name: error.get(name) for name in ("item_id", "source_id", "last_error")}
