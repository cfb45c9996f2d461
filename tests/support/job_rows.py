"""Rows of work for tests of what performs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.rows.prompts import worker_prompt
from manyhands.workloads.csv_jobs.workers.input_echo import WorkerInput
from manyhands.workloads.csv_jobs.workers.printed_result import FoundResult, searched
from manyhands.workloads.csv_jobs.workers.reports import Assignment

JOB_ID = "0b1c2d3e-4f50-4617-8283-94a5b6c7d8e9"
SCORE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 10}, "rationale": {"type": "string"}},
    "required": ["score"],
    "additionalProperties": False,
}


def assignment(
    schema: Mapping[str, Any] | None = None,
    *,
    item_id: str = "row-1",
    row: Mapping[str, Json] | None = None,
    instruction: str = "Score the path.",
    corrections: int = 3,
    max_seconds: float = 30.0,
    printing: bool = False,
) -> Assignment:
    """One row's work, with a prompt as the workload writes it."""
    cells = {"path": "a.rs", "area": "core"} if row is None else dict(row)
    output_schema = OutputSchema.of(schema)
    return Assignment(
        job_id=JOB_ID,
        item_id=item_id,
        row_index=0,
        row=cells,
        instruction=instruction,
        prompt=worker_prompt(JOB_ID, item_id, instruction, cells, output_schema, printing=printing),
        schema=output_schema,
        corrections=corrections,
        max_seconds=max_seconds,
    )


def find_result(text: str, schema: OutputSchema, given: WorkerInput | None = None) -> FoundResult | None:
    """What ``searched`` finds in a text, or None if it finds nothing."""
    found = searched(text, schema, given)
    return found if isinstance(found, FoundResult) else None
