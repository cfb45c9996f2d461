"""The vocabulary of the workload: a table, a row of it, the work on a row, an accepted report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from manyhands.core.jsonio import Json
from manyhands.engine.contract import Context, Item

if TYPE_CHECKING:
    from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema

BAD_ROW = "bad_row"
"""The reason of rows that were skipped because they can't be used."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row as its item's payload holds it."""

    row_index: int
    """Counts from 0 over all rows that are not blank."""
    line: int
    """Where it begins in its file, from 1; of a Parquet table, its number."""
    source_id: str | None
    """The id column's value; None where there is none or it is blank."""
    cells: tuple[Json, ...]
    """In the order of the headers: text from CSV, JSON values from the other formats."""
    problem: str | None = None
    """Why it can't be used, if it can't."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "row_index": self.row_index,
            "line": self.line,
            "source_id": self.source_id,
            "row": list(self.cells),
        }
        return value if self.problem is None else {**value, "problem": self.problem}

    @classmethod
    def of(cls, item: Item) -> Self:
        payload = item.payload
        return cls(
            payload["row_index"], payload["line"], payload["source_id"], tuple(payload["row"]), payload.get("problem")
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """One row's work, as a worker gets it."""

    job_id: str
    item_id: str
    row_index: int
    row: Mapping[str, Json]
    """The cells by column."""
    instruction: str
    """The template filled in."""
    prompt: str
    """The whole text for an agent, which names the report tool."""
    schema: OutputSchema
    corrections: int
    """How often a report that does not fit the schema may be corrected."""
    max_seconds: float
    """How long the worker may take, from its launch."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A report that was accepted."""

    result: dict[str, Any]
    reported_at: float
    """Seconds since 1970 UTC, by the context's clock."""
    via: str
    """How it came: ``tool``, ``mcp``, ``stdout`` or ``function``."""
    stop: bool = False
    """The worker asks to end the job."""
    corrections: int = 0
    """Refused reports before it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Worker(Protocol):
    """Does the work of rows. Opened once in each process that executes rows."""

    async def run(self, context: Context, assignment: Assignment) -> Accepted:
        """Raises ItemError: INVALID_OUTPUT for a report that does not fit or did not come, WORKER_ERROR for a worker that broke,
        TIMEOUT, and what the model client raises."""
        ...
