"""What graders written with AgentV's SDKs take, as a JSON Schema of our own, and candidates of all kinds to try it on.

The facts are those of the SDKs' source, 4.42.4 and 5.3 alike. An object is refused for a key that is missing, null where it is only
optional, or of another type, never for a key that is unknown. An SDK spells keys with humps before it looks at them; so does ``camel``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from manyhands.graders.messages import tool_uses_of, trace_of
from manyhands.graders.protocol import Candidate


def camel(value: Any) -> Any:
    """With all keys as an SDK spells them: at any depth, except those that begin with a capital letter."""
    if isinstance(value, list):
        return [camel(part) for part in value]
    if isinstance(value, dict):
        return {_camel(name): camel(part) for name, part in value.items()}
    return value


def _camel(name: str) -> str:
    return name if name[:1].isascii() and name[:1].isupper() else re.sub("_([a-z0-9])", lambda c: c[1].upper(), name)


def _object(needed: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {**needed, **optional}, "required": list(needed)}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
_ANY: dict[str, Any] = {}
_MAPPING = {"type": "object"}
_NATURAL = {"type": "integer", "minimum": 0}
_TIMES = {"startTime": _TEXT, "endTime": _TEXT, "durationMs": _NUMBER}
_TOKENS = _object({"input": _NUMBER, "output": _NUMBER}, {"cached": _NUMBER, "reasoning": _NUMBER})
_CALL = _object({"tool": _TEXT}, {"input": _ANY, "output": _ANY, "id": _TEXT, **_TIMES})
_MESSAGE = _object(
    {"role": {"enum": ["assistant", "user", "system", "tool"]}},
    {
        "content": {"anyOf": [_TEXT, _list(_MAPPING), _MAPPING]},
        "toolCalls": _list(_CALL),
        "name": _TEXT,
        "metadata": _MAPPING,
        **_TIMES,
    },
)
_TOOL = _object(
    {"name": _TEXT},
    {
        "callId": _TEXT,
        "input": _ANY,
        "output": _ANY,
        "status": {"enum": ["ok", "error", "timeout", "cancelled", "unknown"]},
        "metadata": _MAPPING,
    },
)
_EVENT = _object(
    {
        "eventId": _TEXT,
        "ordinal": _NATURAL,
        "type": {"enum": ["message", "model_turn", "tool_call", "tool_result", "final_response", "error"]},
    },
    {
        "parentEventId": _TEXT,
        "timestamp": _TEXT,
        "durationMs": {"type": "number", "minimum": 0},
        "message": _object({"role": _TEXT}, {"name": _TEXT, "content": _ANY, "metadata": _MAPPING}),
        "tool": _TOOL,
        "metadata": _MAPPING,
    },
)
_COUNTS = {"type": "object", "additionalProperties": _NUMBER}
_DURATIONS = {"type": "object", "additionalProperties": _list(_NUMBER)}
_SUMMARY = (
    {"eventCount": _NUMBER, "toolCalls": _COUNTS, "errorCount": _NUMBER},
    {"toolDurations": _DURATIONS, "llmCallCount": _NUMBER},
)
_TRACE = _object(
    {**_SUMMARY[0], "messages": _list(_MESSAGE), "events": _list(_EVENT)},
    {**_SUMMARY[1], "tokenUsage": _TOKENS, "costUsd": _NUMBER, "metadata": _MAPPING, **_TIMES},
)
SCHEMA = _object(
    {"criteria": _TEXT, "expectedOutput": _list(_MESSAGE), "inputFiles": _list(_TEXT), "input": _list(_MESSAGE)},
    {
        "output": _or_null(_TEXT),
        "outputPath": _TEXT,
        "messages": _list(_MESSAGE),
        "trace": _or_null(_TRACE),
        "traceSummary": _or_null(_object(*_SUMMARY)),
        "tokenUsage": _or_null(_TOKENS),
        **{name: _or_null(_NUMBER) for name in ("costUsd", "durationMs")},
        **{name: _or_null(_TEXT) for name in ("startTime", "endTime", "fileChanges", "workspacePath")},
        **{name: _or_null(_MAPPING) for name in ("metadata", "config")},
    },
)
"""What an SDK takes, with keys as it spells them."""

# --- Candidates: messages as commands report them, with all that may be wrong with them

_NAMES = st.sampled_from(
    [
        *("role", "name", "content", "metadata", "tool", "id", "input", "output", "arguments", "function", "type"),
        *("tool_calls", "toolCalls", "start_time", "startTime", "end_time", "duration_ms", "durationMs", "status"),
        *(
            "value",
            "text",
            "path",
            "source",
            "media_type",
            "some_key",
            "someKey",
            "SomeKey",
            "some-key",
            "a.b",
            "ü",
            "",
        ),
    ]
)
_SIMPLE = (
    st.none()
    | st.booleans()
    | st.integers(-10, 1 << 40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "file", "image", "text", "ok", "2026-01-01T00:00:00Z", "data:image/png;base64,aGk="])
)
DATA = st.recursive(
    _SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=10,
)
"""Anything that a person may write."""
_PARTS = st.lists(
    DATA | st.fixed_dictionaries({"type": st.sampled_from(["text", "file", "image"]), "value": DATA}), max_size=3
)
_CALLS = st.lists(
    DATA
    | st.fixed_dictionaries(
        {"tool": st.sampled_from(["Read", "read_file"])},
        optional={"input": DATA, "output": DATA, "id": DATA, "start_time": DATA, "duration_ms": DATA, "status": DATA},
    ),
    max_size=3,
)
_ODD = st.dictionaries(_NAMES.filter(lambda name: name not in ("role", "tool_calls")), DATA, max_size=3)
MESSAGES = st.lists(
    st.builds(
        lambda odd, message: {**odd, **message},
        _ODD,
        st.fixed_dictionaries(
            {"role": st.sampled_from(["assistant", "user", "system", "tool", "developer", "narrator"])},
            optional={"content": DATA | _PARTS, "tool_calls": _CALLS | st.none()},
        ),
    ),
    max_size=4,
).map(tuple)
_FIGURES = st.none() | st.floats(0, 1e12)
_TOKEN_USAGE = st.none() | st.fixed_dictionaries(
    {"input": st.integers(0, 1 << 40)}, optional={"output": st.integers(0, 9), "cached": st.none() | st.integers(0, 9)}
)


def _candidate(output: Any, figures: Any, **more: Any) -> Candidate:
    usage, cost, duration = figures
    told = {"token_usage": usage, "cost_usd": cost, "duration_ms": duration}
    trace = None if output is None else trace_of(output, **told)
    uses = tool_uses_of(output or ())
    return Candidate("t", output=output, trace=trace, tool_uses=uses, **told, **more)


CANDIDATES = st.builds(
    _candidate,
    st.none() | MESSAGES,
    st.tuples(_TOKEN_USAGE, _FIGURES, _FIGURES),
    answer=st.sampled_from(["", "short", "long " * 11_000]),
    question=st.sampled_from(["", "What?"]),
    criteria=st.sampled_from(["", "Be right."]),
    input=MESSAGES,
    expected_output=MESSAGES,
    metadata=st.dictionaries(_NAMES, DATA, max_size=3),
    files=st.just((Path("data/one.txt"),)),
    workspace=st.none() | st.just(Path("/tmp/workspace")),
    file_changes=st.none() | st.just("diff"),
)
CONFIGS = st.none() | st.dictionaries(_NAMES | st.just("config"), DATA, min_size=1, max_size=3)
