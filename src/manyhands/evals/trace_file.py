"""What each test took, a line of JSON for each: ``--trace_file``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO

from manyhands.core.jsonio import line
from manyhands.evals.result_records import Record
from manyhands.graders.traces import tool_uses_of

_FIGURES = ("score", "duration_ms", "cost_usd", "token_usage")


def write_trace(handle: BinaryIO, records: Iterable[Record]) -> None:
    """A line for each result: ``test_id``, ``dataset``, ``target``, ``status``, ``score``, ``duration_ms``, ``cost_usd``, ``token_usage``
    (null where not known), and ``spans``: the tool calls in order."""
    for record in records:
        handle.write(line(_trace(record)).encode() + b"\n")


def _trace(record: Record) -> dict[str, Any]:
    told = {name: record.get(name) for name in ("test_id", "dataset", "target", "status", *_FIGURES)}
    uses = tool_uses_of(record.get("output") or ())
    return {**told, "spans": [{"type": "tool", "name": use.tool, "duration_ms": use.duration_ms} for use in uses]}
