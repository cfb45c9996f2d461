"""The status of a job. Only reads, also while a runner executes the job; imports little, so that a status is cheap."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TypedDict, cast, overload

from manyhands.core.errors import RunError, StorageError
from manyhands.core.outcomes import ItemState
from manyhands.core.text import counted
from manyhands.core.usage import Usage, UsageFigures
from manyhands.engine.discards import nothing_kept
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import open_reader
from manyhands.runs.ledger import LIMIT, REMOVED, ledger
from manyhands.runs.steering.control import ask
from manyhands.workloads.csv_jobs.folders import job_folders, recorded_name
from manyhands.workloads.csv_jobs.rows.stage_states import StageCounts, count_stages

STARTED = "job_started_at"
END = "job_end"
"""Facts recorded with the run: when work on the job first began (seconds since 1970 UTC), and how its last session ended:
``{"state": …, "error": text or null, "at": seconds}``, and ``"unwritable": true`` if the file of the results can't hold them."""

PENDING: Final = "pending"
RUNNING: Final = "running"
COMPLETED: Final = "completed"
WITH_FAILURES: Final = "completed_with_failures"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"
LIMIT_REACHED: Final = "limit_reached"
REMEDIES = {"bad_row": "correct these rows of the table, and create another job of it"}
"""What to do about rows that are left out."""
CANCELLED_ON_REQUEST = "cancelled on request"
"""Why a job was cancelled, if a person or a program did that."""
ENDS = frozenset({COMPLETED, WITH_FAILURES, CANCELLED, FAILED, LIMIT_REACHED})
_ORIGINAL = {WITH_FAILURES: FAILED, INTERRUPTED: PENDING}


State = Literal[
    "pending",
    "running",
    "completed",
    "completed_with_failures",
    "limit_reached",
    "cancelled",
    "failed",
    "interrupted",
]
CodexStatus = Literal["pending", "running", "completed", "failed", "cancelled"]


class StatusContent(TypedDict):
    """What ``manyhands jobs status --json`` prints of a job. Times are RFC 3339, UTC; every row is in exactly one of the six counts."""

    job_id: str
    job_name: str
    status: State
    """The same as ``state``."""
    state: State
    """interrupted: rows are left, and no process executes the job; limit_reached: only rows beyond ``limit`` are left."""
    original_status: CodexStatus
    """The state in the words of Codex, which has no others."""
    total_items: int
    pending_items: int
    running_items: int
    completed_items: int
    failed_items: int
    skipped_items: int
    """Rows that can't be read."""
    cancelled_items: int
    limit: int | None
    """How many rows, from the beginning of the table, are executed; null: all."""
    beyond_limit_items: int
    """Pending rows beyond the limit."""
    output_csv_path: str
    """Where the results go."""
    folder: str
    """The job's folder, absolute."""
    runner_active: bool
    """Whether a process executes the job."""
    last_error: str | None
    """Why the job ended without all its rows, in one sentence."""
    eta_seconds: int | None
    """Estimated seconds that the rest will take."""
    waiting: str | None
    """What keeps the job from going on, and until when."""
    created_at: str
    started_at: str | None
    completed_at: str | None
    usage: UsageFigures
    simulated: bool
    """Whether a simulated model made up results."""
    stages: NotRequired[list[StageCounts]]
    """How the rows stand in each stage. Not there for a job without stages, and with ``--watch``."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job in figures. Every row is in exactly one of the six counts."""

    job_id: str
    name: str
    folder: Path
    state: State
    total_items: int
    pending_items: int
    running_items: int
    completed_items: int
    failed_items: int
    skipped_items: int
    """Rows that can't be read."""
    cancelled_items: int
    output_csv_path: str
    runner_active: bool
    """Whether a process executes the job."""
    last_error: str | None
    eta_seconds: int | None
    """Estimated seconds that the rest will take; None if unknown."""
    created_at: float
    """Seconds since 1970 UTC, as the other times."""
    started_at: float | None
    completed_at: float | None
    usage: Usage
    waiting: str | None = None
    """What keeps the runner from going on, and until when."""
    notes: tuple[str, ...] = ()
    """What else the runner has reported."""
    limit: int | None = None
    """How many rows, from the beginning of the table, are executed."""
    beyond_limit_items: int = 0
    """Pending rows beyond the limit."""
    removed_items: int = 0
    """Cancelled rows that the table does not have any more."""
    unwritable: bool = False
    """Whether the file of the results can't hold them, so that another attempt would fail, too."""

    @property
    def original_status(self) -> CodexStatus:
        """The state in the words of Codex, which has no others."""
        if self.state == LIMIT_REACHED:
            return COMPLETED if self.well else FAILED
        return cast(CodexStatus, _ORIGINAL.get(self.state, self.state))

    @property
    def left(self) -> int:
        """How many rows are to be executed yet."""
        return self.pending_items + self.running_items - self.beyond_limit_items

    @property
    def well(self) -> bool:
        """Whether everything that was requested is done."""
        if self.state != LIMIT_REACHED:
            return self.state == COMPLETED
        return not self.failed_items + self.skipped_items + self.cancelled_items - self.removed_items

    @property
    def ended(self) -> bool:
        """Whether it has ended, and goes no further unless it is run again."""
        return self.state in ENDS

    def to_json(self) -> StatusContent:
        """As an object for programs."""
        content: dict[str, Any] = {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "job_name": self.name,
            "status": self.state,
            "original_status": self.original_status,
            "folder": str(self.folder.absolute()),
            "created_at": rfc3339(self.created_at),
            "started_at": rfc3339(self.started_at),
            "completed_at": rfc3339(self.completed_at),
            "usage": {**self.usage.to_json(), "cost": round(self.usage.cost, 6)},
            "simulated": self.usage.simulated_calls > 0,
        }
        return cast(StatusContent, {name: content[name] for name in StatusContent.__annotations__ if name in content})


def job_status(folder: Path) -> JobStatus:
    """Raises RunError if the folder holds no run."""
    active = is_owned(folder)  # before the counts: a job that ends in between has ended in both
    with closing(open_reader(folder)) as reader:
        return status_of(reader, active)


def job_statuses(data_dir: Path) -> list[JobStatus]:
    """All jobs under a data folder, the newest first."""
    statuses = [status for folder in job_folders(data_dir) if (status := _status_or_none(folder)) is not None]
    return sorted(statuses, key=lambda status: status.created_at, reverse=True)


def _status_or_none(folder: Path) -> JobStatus | None:
    """None for a job that can't be read, which must not hide the others."""
    try:
        return job_status(folder)
    except (StorageError, RunError, KeyError, TypeError, ValueError):
        return None


def status_of(reader: JournalReader, active: bool) -> JobStatus:
    """The same from a reader. ``active``: whether a process executes the job."""
    found = reader.counts()
    counts = dict.fromkeys(ItemState, 0)
    for (state, _), items in found.items():
        counts[ItemState(state)] += items
    removed = found.get((ItemState.CANCELLED, REMOVED), 0)
    limit = reader.meta(LIMIT)
    beyond = 0 if limit is None else counts[ItemState.PENDING] + counts[ItemState.RUNNING] - reader.left(limit)
    if not active:  # whoever had them is gone
        counts[ItemState.PENDING] += counts[ItemState.RUNNING]
        counts[ItemState.RUNNING] = 0
    end = reader.meta(END) or {}
    spec = reader.meta("spec")
    state = _state(_Rows(counts, beyond, removed), end, active, reader.meta(STARTED) is not None)
    figures = (ask(reader.folder, {"op": "progress"}) or {}) if active else {}
    eta = figures.get("eta_seconds")
    return JobStatus(
        job_id=str(reader.meta("run_id")),
        name=recorded_name(reader),
        folder=reader.folder,
        state=state,
        total_items=sum(counts.values()),
        pending_items=counts[ItemState.PENDING],
        running_items=counts[ItemState.RUNNING],
        completed_items=counts[ItemState.COMPLETED],
        failed_items=counts[ItemState.FAILED],
        skipped_items=counts[ItemState.DISCARDED],
        cancelled_items=counts[ItemState.CANCELLED],
        output_csv_path=spec["output_csv_path"],
        runner_active=active,
        last_error=_last_error(state, _Rows(counts, beyond, removed), end, nothing_kept(ledger(found), REMEDIES)),
        eta_seconds=eta if isinstance(eta, int) else None,
        created_at=reader.meta("created_at"),
        started_at=reader.meta(STARTED),
        completed_at=end.get("at") if state in ENDS else None,
        usage=reader.usage(),
        waiting=next(iter(_texts(figures.get("waiting"))), None),
        notes=tuple(_texts(figures.get("notes"))),
        limit=limit,
        beyond_limit_items=beyond,
        removed_items=removed,
        unwritable=state == FAILED and bool(end.get("unwritable")),
    )


def stage_counts(folder: Path) -> list[StageCounts]:
    """How the rows stand in each stage; empty for a job without stages. Looks at all rows."""
    with closing(open_reader(folder)) as reader:
        stages = reader.meta("spec")["options"].get("stages") or ()
        return count_stages([stage["name"] for stage in stages], reader.results()) if stages else []


@overload
def rfc3339(time: float) -> str: ...
@overload
def rfc3339(time: float | None) -> str | None: ...
def rfc3339(time: float | None) -> str | None:
    """Seconds since 1970 as RFC 3339 UTC with its offset, to the second."""
    return None if time is None else datetime.fromtimestamp(int(time), UTC).isoformat()


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows by state, and the pending ones beyond the limit and the cancelled ones that were removed from the table."""

    counts: dict[ItemState, int]
    beyond: int
    removed: int


def _state(rows: _Rows, end: dict[str, Any], active: bool, started: bool) -> State:
    if active:
        return RUNNING
    if end.get("state") in (CANCELLED, FAILED):
        return cast(State, end["state"])
    # Without an end, not all rows may be planned, or the results not written.
    if rows.counts[ItemState.PENDING] > rows.beyond or not end:
        return INTERRUPTED if started else PENDING
    if rows.beyond:
        return LIMIT_REACHED
    if rows.counts[ItemState.COMPLETED] == sum(rows.counts.values()) - rows.removed:
        return COMPLETED
    return WITH_FAILURES


def _last_error(state: str, rows: _Rows, end: dict[str, Any], nothing: str | None) -> str | None:
    if end.get("error"):
        return str(end["error"])
    if state != WITH_FAILURES:
        return None
    if nothing is not None:
        return nothing
    failed = rows.counts[ItemState.FAILED] + rows.counts[ItemState.CANCELLED] - rows.removed
    skipped = rows.counts[ItemState.DISCARDED]
    parts = [counted(count, noun) for count, noun in ((failed, "failed item"), (skipped, "skipped row")) if count]
    return f"job completed with {' and '.join(parts)}"


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
