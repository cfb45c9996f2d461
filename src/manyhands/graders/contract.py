"""What a grader's program or function is given of a candidate, and what it, or a judge, replies: an object with a score.

There are two contracts of what it is given, both of AgentV, by the spelling of the grader's type. ``code_judge``: the first one, where
``answer`` is the text and ``output`` the target's messages. ``code_grader`` and its aliases: the later one, where ``output`` is the text
and ``messages`` the messages. Keys are added to both, none is left out; what is the person's own data is passed on as it is.

=============  =========================================================================================================
``score``      a number, clamped to 0 … 1; may be absent where there are assertions: then the share of those that passed
``hits``       texts; what is no text or blank is left out
``misses``     the like
``reasoning``  a text
``details``    an object, kept as it is
``assertions`` objects with ``text``, ``passed`` and perhaps ``evidence``; they become hits and misses where there are none
=============  =========================================================================================================

Anything else in a reply is a grader that broke, never a zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import orjson

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import Json, loads_outside, type_error
from manyhands.core.settings import shown
from manyhands.core.usage import ZERO, Usage
from manyhands.graders.protocol import Candidate, Grading, Score, verdict_of
from manyhands.processes.scripts import ScriptResult

GRADE = "grade"
"""The kind of a grader's step."""
LATER = "code_grader"
"""The kind whose contract is the later one."""
MAX_CHARACTERS = 1 << 20
"""Characters of an object at most; it is looked for in so many at the end."""
_MAX_FAILURES = 500
"""Lines that look like an object and are none, after which the search is given up."""
_MAX_READ = 1 << 22
"""Characters of such lines and of what follows them that are read in vain before that."""
_SHOWN = 300
_TAIL = 1800
"""Characters of what a program wrote on standard error that a message shows."""


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


def how_it_ended(result: ScriptResult, besides: str = "") -> str:
    """How a program ended that a grader could not use: words that follow its name, and the end of what it wrote on standard error."""
    how = "took too long" if result.exit_code is None else f"ended with exit code {result.exit_code}"
    return with_stderr(how + besides, result)


def with_stderr(text: str, result: ScriptResult) -> str:
    """A text, and behind it the end of what a program wrote on standard error."""
    tail = result.stderr.decode("utf-8", "replace").strip()[-_TAIL:]
    return f"{text}: {tail}" if tail else text


def environment_of(candidate: Candidate) -> dict[str, str]:
    """What AgentV sets for a program."""
    return {} if candidate.workspace is None else {"AGENTV_WORKSPACE_PATH": str(candidate.workspace)}


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


def last_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, or else the last one in it that begins a line; None if there is none of up to ``MAX_CHARACTERS``."""
    text = text.strip().removeprefix("\ufeff")
    window = text if len(text) <= MAX_CHARACTERS else text[-MAX_CHARACTERS:].partition("\n")[2]
    whole = _object(text) if window is text else None
    if whole is not None or len(window) < 2:
        return whole
    decoder = json.JSONDecoder(parse_constant=_refuse)
    found, position, failures, left = None, _line_with_brace(window, 0), 0, _MAX_READ
    while position >= 0 and failures < _MAX_FAILURES and left > 0:
        try:
            value, position = decoder.raw_decode(window, position)
            found = value
        except (ValueError, RecursionError) as error:
            failures += 1
            left -= getattr(error, "pos", len(window)) - position
            position += 1
        position = _line_with_brace(window, position)
    return found if failures < _MAX_FAILURES and left > 0 else _object(window.rpartition("\n")[2])


def _line_with_brace(text: str, start: int) -> int:
    """The next opening brace with nothing but white space before it in its line, or -1."""
    position = text.find("{", start)
    while position >= 0:
        if not text[text.rfind("\n", 0, position) + 1 : position].strip():
            return position
        end = text.find("\n", position)
        position = -1 if end < 0 else text.find("{", end)
    return -1


def _object(text: str) -> dict[str, Any] | None:
    if text[:1] != "{":
        return None
    try:
        value: Json = loads_outside(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def said(value: Mapping[str, Any], who: str) -> dict[str, Any]:
    """What was said about a score, checked, with only what is of use. ``who``: for messages. Raises GraderError."""
    found: dict[str, Any] = {}
    assertions = _assertions(value.get("assertions"), who)
    for name, passed in (("hits", True), ("misses", False)):
        found[name] = _texts(value.get(name), name, who)
        if value.get(name) is None:
            found[name] = [each["text"] for each in assertions if each["passed"] is passed]
    score = value.get("score")
    if score is None and assertions:
        score = sum(each["passed"] for each in assertions) / len(assertions)
    found["score"] = _score(score, value, who)
    reasoning, details = value.get("reasoning"), value.get("details")
    _check(reasoning, str, "reasoning must be a text", who)
    _check(details, dict, "details must be an object", who)
    if reasoning:
        found["reasoning"] = reasoning
    if details or assertions:
        found["details"] = {**(details or {}), **({"assertions": assertions} if assertions else {})}
    return found


def score_of(grader: Any, value: Mapping[str, Any], grading: Grading, *, usage: Usage = ZERO) -> Score:
    """The score of what ``said`` gave. ``grader``: anything with ``name`` and ``type``."""
    return Score(
        grader.name,
        grader.type,
        value["score"],
        verdict_of(value["score"], grading.pass_limit),
        hits=tuple(value["hits"]),
        misses=tuple(value["misses"]),
        reasoning=value.get("reasoning"),
        details=value.get("details"),
        usage=usage,
    )


def _score(score: Any, value: Mapping[str, Any], who: str) -> float:
    if score is None:
        raise GraderError(f"{who} gave no score: {shown(dict(value), _SHOWN)}")
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise GraderError(f"{who} gave a score that is no number: {shown(score)}")
    try:
        number = float(score)
    except OverflowError:
        number = float("inf")
    if not isfinite(number):
        raise GraderError(f"{who} gave a score that is no number from 0 to 1: {shown(score)}")
    return min(max(number, 0.0), 1.0)


def _texts(value: Any, name: str, who: str) -> list[str]:
    _check(value, list, f"{name} must be a list of texts", who)
    return [text for text in value or () if isinstance(text, str) and text.strip()]


def _assertions(value: Any, who: str) -> list[dict[str, Any]]:
    _check(value, list, "assertions must be a list", who)
    found: list[dict[str, Any]] = []
    for each in value or ():
        if not isinstance(each, dict) or not isinstance(each.get("passed"), bool):
            raise GraderError(f"{who}: an assertion must have a text and passed, true or false: {shown(each, _SHOWN)}")
        _check(each.get("text"), str, "an assertion's text must be a text", who)
        evidence = each.get("evidence")
        found.append(
            {
                "text": each.get("text") or "assertion",
                "passed": each["passed"],
                **({} if evidence is None else {"evidence": evidence}),
            }
        )
    return found


def _check(value: Any, kind: type, wanted: str, who: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise GraderError(f"{who}: {wanted}, not {shown(value)}")


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
