"""What a grader's program or function is told about a candidate.

Two contracts, both of AgentV, by the spelling of the grader's type. ``code_judge``: the first one, where ``answer`` is the text and
``output`` the target's messages. ``code_grader`` and its aliases: the later one, where ``output`` is the text and ``messages`` the
messages. Keys are added to both, none is left out; what is the person's own data is passed on as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import Json, type_error
from manyhands.graders.protocol import Candidate

GRADE = "grade"
"""The kind of a grader's step."""


def folder_of(candidate: Candidate, folder: Path, cwd: str | None = None) -> Path:
    """Where a program is run: the candidate's folder (or the other, if it has none), or ``cwd`` from there. Raises GraderError if
    there is no such folder."""
    base = folder if candidate.folder == Path() else candidate.folder
    if cwd is None:
        return base
    for start in (base, folder):
        if (start / cwd).is_dir():
            return start / cwd
    raise GraderError(f"cwd: there is no folder {base / cwd}")


def environment_of(candidate: Candidate) -> dict[str, str]:
    """What AgentV sets for a program."""
    return {} if candidate.workspace is None else {"AGENTV_WORKSPACE_PATH": str(candidate.workspace)}


LATER = "code_grader"
"""The kind whose contract is the later one."""


def payload_of(candidate: Candidate, kind: str, config: Json = None) -> dict[str, Any]:
    """The payload for a grader of that kind. ``config``: the entry's own keys, None if there are none."""
    return _later(candidate, config) if kind == LATER else _first(candidate, config)


def _first(candidate: Candidate, config: Json) -> dict[str, Any]:
    return {
        "question": candidate.question,
        "criteria": candidate.criteria,
        "expected_output": list(candidate.expected_output),
        "reference_answer": candidate.reference_answer,
        "answer": candidate.answer,
        "output": _messages(candidate),
        "guideline_files": [str(path) for path in candidate.guideline_files],
        "input_files": [str(path) for path in candidate.files],
        "input": list(candidate.input),
        "trace": candidate.trace,
        **_common(candidate, config),
    }


def _later(candidate: Candidate, config: Json) -> dict[str, Any]:
    return {
        "input": list(candidate.input),
        "input_files": [str(path) for path in candidate.files],
        "criteria": candidate.criteria,
        "output": candidate.answer,
        "expected_output": list(candidate.expected_output),
        "messages": _messages(candidate) or [],
        "trace": candidate.trace,
        "trace_summary": _summary(candidate),
        "token_usage": candidate.token_usage,
        "cost_usd": candidate.cost_usd,
        "duration_ms": candidate.duration_ms,
        "guideline_files": [str(path) for path in candidate.guideline_files],
        **_common(candidate, config),
    }


def _common(candidate: Candidate, config: Json) -> dict[str, Any]:
    return {
        "file_changes": candidate.file_changes,
        "workspace_path": None if candidate.workspace is None else str(candidate.workspace),
        "config": config,
        "test_id": candidate.test_id,
        "metadata": candidate.metadata,
    }


def _messages(candidate: Candidate) -> list[Any] | None:
    return None if candidate.output is None else list(candidate.output)


def _summary(candidate: Candidate) -> dict[str, Any] | None:
    if candidate.trace is None:
        return None
    summary = dict(candidate.trace)
    summary["tool_calls"] = summary.get("tool_calls_by_name") or {}
    return summary


def encoded(payload: Json) -> bytes:
    """JSON with an indentation of two spaces, which is what the contract says, and a line break."""
    try:
        return orjson.dumps(payload, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except type_error:
        return json.dumps(payload, indent=2, ensure_ascii=True).encode() + b"\n"
