"""The nine tools as a client sees them: names, descriptions, JSON Schemas of arguments and results, and hints.

Names, arguments and keys of results are those of the tools that Codex has for jobs over a CSV file (``spawn_agents_on_csv``); added are
``cancel_agent_job``, ``list_agent_jobs``, ``retry_agent_job``, and keys beside Codex's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from manyhands.workloads.csv_jobs.rows.prompts import REPORT_TOOL
from manyhands.workloads.csv_jobs.service.status import CodexStatus, State

SPAWN = "spawn_agents_on_csv"
RUN = "run_agent_job"
STATUS = "get_agent_job_status"
WAIT = "wait_agent_job"
EXPORT = "export_agent_job_csv"
REPORT = REPORT_TOOL
CANCEL = "cancel_agent_job"
LIST = "list_agent_jobs"
RETRY = "retry_agent_job"

DEFAULT_WAIT_MS = 30_000
MIN_WAIT_MS = 1_000
MAX_WAIT_MS = 300_000
DEFAULT_LISTED = 50
BAD_ROWS = ("fail", "skip")

CODEX_WORDS = get_args(CodexStatus)
STATES = get_args(State)

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hints:
    """What a client may assume about a tool (MCP's annotations)."""

    read_only: bool
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    """The call starts agents, and with them calls of models."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One tool."""

    name: str
    title: str
    description: str
    parameters: Mapping[str, Any]
    result: Mapping[str, Any]
    hints: Hints
    for_workers: bool = False
    """Also for agents that work on a row of a job, however deep jobs may be nested."""


def _object(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return {**schema, "required": list(required), "additionalProperties": False}


def _result(properties: Schema, *optional: str) -> Schema:
    """What a tool answers. It is open: later versions may add keys."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _number(description: str) -> Schema:
    return {"type": "number", "description": description}


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _maybe(kind: str, description: str = "") -> Schema:
    schema: Schema = {"type": [kind, "null"]}
    return {**schema, "description": description} if description else schema


_COUNT: Schema = {"type": "integer", "minimum": 0}
_STATUS_WORD: Schema = {"type": "string", "enum": list(CODEX_WORDS)}
_STATE_WORD: Schema = {"type": "string", "enum": list(STATES)}
_JOB_ID = _text("Id of the job, as spawn_agents_on_csv gave it (its name is accepted too).")
_NOTICES: Schema = {"type": "array", "items": {"type": "string"}, "description": "Remarks; empty as a rule."}

STATUS_RESULT = _result(
    {
        "job_id": {"type": "string"},
        "status": {**_STATUS_WORD, "description": "failed: at least one row failed or was skipped."},
        "total_items": _COUNT,
        "pending_items": _COUNT,
        "running_items": _COUNT,
        "completed_items": _COUNT,
        "failed_items": _COUNT,
        "output_csv_path": {"type": "string"},
        "runner_active": {"type": "boolean", "description": "Whether a process performs the job now."},
        "state": {
            **_STATE_WORD,
            "description": "interrupted: work is left and nobody performs it; run_agent_job goes on.",
        },
        "job_name": {"type": "string"},
        "skipped_items": _COUNT,
        "cancelled_items": _COUNT,
        "last_error": _maybe("string"),
        "eta_seconds": _maybe("integer"),
        "created_at": {"type": "string"},
        "started_at": _maybe("string"),
        "completed_at": _maybe("string"),
        "total_tokens": _COUNT,
        "cost_usd": {"type": "number"},
        "simulated": {"type": "boolean", "description": "Whether a simulated model made up the results."},
        "waiting": {
            **_maybe("string"),
            "description": "What it waits for, and until when: a rate limit, a server that is down.",
        },
    }
)
"""A job's status: Codex's nine keys, then ours. Times are RFC 3339, UTC."""

_FAILED_ITEMS: Schema = {
    "type": ["array", "null"],
    "description": "The first five failed rows.",
    "items": _result(
        {"item_id": {"type": "string"}, "source_id": _maybe("string"), "last_error": _maybe("string")},
    ),
}
ENDED_KEYS = (
    "completed_items",
    "failed_items",
    "skipped_items",
    "pending_items",
    "running_items",
    "cancelled_items",
    "job_error",
    "failed_item_errors",
    "timed_out",
    "next_step",
)
"""Keys of the answer to a spawn that waited."""
SPAWN_RESULT = _result(
    {
        "job_id": {"type": "string"},
        "started": {"type": "boolean"},
        "output_csv_path": {"type": "string"},
        "total_items": _COUNT,
        "status": _STATUS_WORD,
        "state": _STATE_WORD,
        "job_name": {"type": "string"},
        "notices": _NOTICES,
        "completed_items": _COUNT,
        "failed_items": _COUNT,
        "skipped_items": _COUNT,
        "pending_items": _COUNT,
        "running_items": _COUNT,
        "cancelled_items": _COUNT,
        "job_error": _maybe("string"),
        "failed_item_errors": _FAILED_ITEMS,
        "timed_out": {"type": "boolean", "description": "Whether the job still goes on."},
        "next_step": _maybe("string"),
    },
    *ENDED_KEYS,
)

_SPAWN_ARGUMENTS = _object(
    {
        "csv_path": _text("The table: a CSV file whose first row names the columns (or .jsonl, .parquet)."),
        "instruction": _text(
            "What the agents are to do with a row. {column} stands for the row's value in that column; {{ and }} are plain braces."
        ),
        "id_column": _text("Column whose values name the rows; without it they are row-1, row-2, …"),
        "job_name": _text("A name for the job, under which it is also found."),
        "output_csv_path": _text(
            "Where the results go. Without it: next to csv_path, as <its name>.agent-job-<begin of the job id>.csv."
        ),
        "output_schema": {
            "type": "object",
            "description": "JSON Schema for the result of a row. A result that does not fit is refused, and the agent told why.",
        },
        "max_concurrency": _number("How many rows at once at most (default 64). This server may allow fewer."),
        "max_workers": _number("The same as max_concurrency, which counts if both are given."),
        "max_runtime_seconds": _number("How many seconds one row may take (default 1800)."),
        "auto_export": _flag("Write the results to output_csv_path when the job ends (default true)."),
        "wait": _flag(
            "true: answer when the job has ended, or after a few minutes with timed_out true (the job goes on then). "
            "false (the default): answer at once."
        ),
        "on_bad_row": {
            "type": "string",
            "enum": list(BAD_ROWS),
            "description": "A row that can't be used: fail (the default; no job is made) or skip it.",
        },
        "encoding": _text("The file's character encoding, if it is not UTF-8."),
        "delimiter": _text("What separates the fields; found by looking if not given."),
        "instruction_file": _text("A text file that holds the instruction, which is left empty then."),
    },
    ("csv_path", "instruction"),
)

DECLARATIONS: dict[str, Declaration] = {
    tool.name: tool
    for tool in (
        Declaration(
            SPAWN,
            "Start agents on the rows of a table",
            "Sets one agent to work on each row of a CSV file. Each reports one JSON object, and all of them are written to a CSV file: "
            "the columns of the input, then the results. Answers at once with the job's id (with wait=true, when the job has ended); "
            "the job goes on by itself whatever becomes of this call. Follow it with wait_agent_job.",
            _SPAWN_ARGUMENTS,
            SPAWN_RESULT,
            Hints(read_only=False, destructive=True, idempotent=False, open_world=True),
        ),
        Declaration(
            RUN,
            "Go on with a job",
            "Goes on with a job that nobody performs any more: rows that are left are performed, finished ones never again. Failed rows "
            "are for retry_agent_job. Does nothing if the job is being performed or nothing is left.",
            _object(
                {
                    "job_id": _JOB_ID,
                    "max_concurrency": _number("How many rows at once at most, from now on."),
                    "auto_export": _flag("Whether the results are written out when the job ends, from now on."),
                },
                ("job_id",),
            ),
            _result({"started": {"type": "boolean"}, "status": STATUS_RESULT}),
            Hints(read_only=False, destructive=True, idempotent=True, open_world=True),
        ),
        Declaration(
            STATUS,
            "Status of a job",
            "How far a job is: how many rows are pending, running, completed and failed, and whether it is being performed.",
            _object({"job_id": _JOB_ID}, ("job_id",)),
            STATUS_RESULT,
            Hints(read_only=True),
            for_workers=True,
        ),
        Declaration(
            WAIT,
            "Wait for a job",
            "Waits until a job has ended, or for timeout_ms. timed_out true means that it goes on: wait again, or do something else "
            "meanwhile. Nothing is lost by not waiting.",
            _object(
                {
                    "job_id": _JOB_ID,
                    "timeout_ms": _number(
                        f"Milliseconds to wait at most: {MIN_WAIT_MS} to {MAX_WAIT_MS} (default {DEFAULT_WAIT_MS})."
                    ),
                },
                ("job_id",),
            ),
            _result({"status": STATUS_RESULT, "timed_out": {"type": "boolean"}, "next_step": _maybe("string")}),
            Hints(read_only=True),
            for_workers=True,
        ),
        Declaration(
            EXPORT,
            "Write a job's results to a CSV file",
            "Writes what a job has so far to a CSV file, also while it goes on: every row with its status and result. A job writes its "
            "results by itself when it ends, so this is rarely needed. An existing file is replaced.",
            _object(
                {
                    "job_id": _JOB_ID,
                    "output_csv_path": _text("Where to; without it, where the job's own results go."),
                },
                ("job_id",),
            ),
            _result({"job_id": {"type": "string"}, "output_csv_path": {"type": "string"}, "row_count": _COUNT}),
            Hints(read_only=False, destructive=True, idempotent=True),
        ),
        Declaration(
            REPORT,
            "Report the result of a row",
            "For the agent that works on a row: reports its result, exactly once. If accepted is false, reason and violations say why; a "
            "result that does not fit the schema can be corrected and reported again.",
            _object(
                {
                    "job_id": _text("Id of the job, as the agent was told it."),
                    "item_id": _text("Id of the row, as the agent was told it."),
                    "result": {"type": "object", "description": "The result of the row: a JSON object."},
                    "stop": _flag("true: the job is to end early, because further rows are pointless (default false)."),
                },
                ("job_id", "item_id", "result"),
            ),
            _result(
                {
                    "accepted": {"type": "boolean"},
                    "reason": _maybe("string", "Why it was not accepted."),
                    "violations": {"type": "array", "items": {"type": "string"}},
                }
            ),
            Hints(read_only=False, idempotent=False),
            for_workers=True,
        ),
        Declaration(
            CANCEL,
            "Cancel a job",
            "Ends a job: no further row is begun and those in progress are finished. Rows that were not begun stay pending, and "
            "run_agent_job goes on with them.",
            _object(
                {"job_id": _JOB_ID, "firm": _flag("true: also stop the rows in progress (default false).")}, ("job_id",)
            ),
            _result({"status": STATUS_RESULT}),
            Hints(read_only=False, destructive=True, idempotent=True),
        ),
        Declaration(
            LIST,
            "List jobs",
            "The jobs that this server knows, the newest first, each with its status.",
            _object({"limit": _number(f"How many at most (default {DEFAULT_LISTED}).")}),
            _result({"jobs": {"type": "array", "items": STATUS_RESULT}, "total_jobs": _COUNT}),
            Hints(read_only=True),
            for_workers=True,
        ),
        Declaration(
            RETRY,
            "Retry failed rows",
            "Puts the failed rows of a job back and performs them again; all that was completed stays.",
            _object(
                {
                    "job_id": _JOB_ID,
                    "item_ids": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Only these failed rows; without it, all of them.",
                    },
                },
                ("job_id",),
            ),
            _result({"retried_items": _COUNT, "started": {"type": "boolean"}, "status": STATUS_RESULT}),
            Hints(read_only=False, destructive=False, idempotent=True, open_world=True),
        ),
    )
}
"""The tools by name, in the order in which they are listed."""
