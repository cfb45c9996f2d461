"""An agent's conversation as graders see it: messages in the shape of evaluations, their tool calls, and the summary that graders and
results get, whose fields are those of AgentV's traces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from manyhands.core.jsonio import Json, loads_outside
from manyhands.core.messages import Message, ToolCall, text_of
from manyhands.core.usage import Usage
from manyhands.graders.protocol import MessageJson, ToolUse


def output_of(messages: Sequence[Message]) -> tuple[MessageJson, ...]:
    """The assistant's messages, each tool call as ``{"tool", "id", "input", "output"}``: ``input`` is read as JSON where it is JSON,
    ``output`` is what the model was shown, None if the conversation ended before."""
    results = {message.get("tool_call_id"): message.get("content") for message in messages if message["role"] == "tool"}
    return tuple(_said(message, results) for message in messages if message["role"] == "assistant")


def answer_of(output: Sequence[MessageJson]) -> str:
    """The last thing that the assistant said; empty if it said nothing."""
    return next((message["content"] for message in reversed(output) if "content" in message), "")


def figures_of(usage: Usage, duration_ms: float) -> dict[str, Any]:
    """What an answer took, by the names that ``Candidate`` has for it. A cost that nobody knows is None."""
    tokens = {"input": usage.input_tokens, "output": usage.output_tokens, "cached": usage.cached_tokens}
    cost = None if usage.unpriced_calls else float(usage.cost)
    return {"token_usage": tokens, "cost_usd": cost, "duration_ms": duration_ms}


def expected_messages(value: Json) -> tuple[MessageJson, ...]:
    """An expected output as messages: a list of messages or one message as it is, anything else as what the assistant should say."""
    if value is None or value == "" or value == []:
        return ()
    values = value if isinstance(value, list) else [value]
    if all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in values):
        return tuple(values)
    return ({"role": "assistant", "content": value},)


def reference_of(expected: Sequence[MessageJson]) -> str:
    """The expected answer as text: what the last message says, or which tools it calls."""
    if not expected:
        return ""
    content = expected[-1].get("content")
    value = expected[-1].get("tool_calls", "") if content is None else content
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _said(message: Message, results: Mapping[Any, Any]) -> MessageJson:
    said: dict[str, Any] = {"role": "assistant"}
    if content := text_of(message.get("content")):
        said["content"] = content
    if calls := message.get("tool_calls"):
        said["tool_calls"] = [_call(call, results) for call in calls]
    return said


def _call(call: ToolCall, results: Mapping[Any, Any]) -> dict[str, Any]:
    function = call["function"]
    result = results.get(call["id"])
    return {
        "tool": function["name"],
        "id": call["id"],
        "input": _json(function["arguments"]),
        "output": None if result is None else text_of(result),
    }


def _json(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


MAX_FIGURE = 1e300
"""Numbers beyond it are no measurements, and don't survive being added up."""


def tool_uses_of(messages: Sequence[MessageJson]) -> tuple[ToolUse, ...]:
    """All tool calls of all messages, in order. Calls that name no tool are left out."""
    calls = [call for message in messages if "tool_calls" in message for call in _calls(message)]
    return tuple([_use(call) for call in calls if tool_name(call) is not None]) if calls else ()


def tool_name(call: Mapping[str, Any]) -> str | None:
    """The tool that a call names: as ``tool``, or in other dialects as ``name``, or as ``function.name``."""
    function = call.get("function")
    inner = function.get("name") if isinstance(function, Mapping) else None
    return next((name for name in (call.get("tool"), call.get("name"), inner) if isinstance(name, str) and name), None)


def trace_of(
    messages: Sequence[MessageJson],
    *,
    uses: Sequence[ToolUse] | None = None,
    errors: int = 0,
    token_usage: Mapping[str, float] | None = None,
    cost_usd: float | None = None,
    duration_ms: float | None = None,
) -> dict[str, Any]:
    """The summary of a conversation. Times are RFC 3339 in UTC with milliseconds; durations are milliseconds. ``uses``: its tool calls,
    where they are known already; ``errors``: those of them that failed."""
    uses = tool_uses_of(messages) if uses is None else uses
    summary: dict[str, Any] = {
        "event_count": len(uses),
        "tool_names": sorted({use.tool for use in uses}) if uses else [],
        "tool_calls_by_name": dict(Counter(use.tool for use in uses)) if uses else {},
        "error_count": errors,
        "llm_call_count": [message.get("role") for message in messages].count("assistant"),
        **_span(messages),
    }
    if durations := _durations(uses):
        summary["tool_durations"] = durations
    if token_usage is not None:
        summary["token_usage"] = dict(token_usage)
    if cost_usd is not None:
        summary["cost_usd"] = cost_usd
    if duration_ms is not None:
        summary["duration_ms"] = duration_ms
    return summary


def moment(value: Json) -> datetime | None:
    """A time as a record gives it (ISO 8601; UTC where it names no zone), or None."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def milliseconds(value: Json) -> float | None:
    """A duration as a record gives it: a number of milliseconds that is not negative, or None."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and is_figure(value) else None


def is_figure(number: float) -> bool:
    """Whether a count, a sum of money or a duration can be this number."""
    return 0 <= number <= MAX_FIGURE


def _use(call: Mapping[str, Any]) -> ToolUse:
    function = call.get("function") if isinstance(call.get("function"), Mapping) else {}
    given = next((part["arguments"] for part in (call, function) if part and "arguments" in part), None)
    return ToolUse(
        tool_name(call) or "",
        call["input"] if "input" in call else _arguments(given),
        call.get("output"),
        _duration(call),
    )


def _arguments(given: Json) -> Json:
    """What a call was given where it says ``arguments``: chat APIs write the object as a text there."""
    if not isinstance(given, str) or not given.lstrip().startswith("{"):
        return given
    try:
        return loads_outside(given)
    except (ValueError, RecursionError):
        return given


def _durations(uses: Sequence[ToolUse]) -> dict[str, list[float]]:
    """Those that are known, by tool."""
    durations: dict[str, list[float]] = {}
    for use in uses:
        if use.duration_ms is not None:
            durations.setdefault(use.tool, []).append(use.duration_ms)
    return durations


def _duration(call: Mapping[str, Any]) -> float | None:
    given = milliseconds(call.get("duration_ms"))
    start, end = moment(call.get("start_time")), moment(call.get("end_time"))
    if given is not None or start is None or end is None:
        return given
    return milliseconds((end - start).total_seconds() * 1000)


def _span(messages: Sequence[MessageJson]) -> dict[str, str]:
    everything = [part for message in messages for part in (message, *_calls(message))]
    parts = [part for part in everything if "start_time" in part or "end_time" in part]
    if not parts:
        return {}
    starts = [found for part in parts if (found := moment(part.get("start_time"))) is not None]
    ends = [found for part in parts if (found := moment(part.get("end_time"))) is not None]
    return {
        **({"start_time": _written(min(starts))} if starts else {}),
        **({"end_time": _written(max(ends))} if ends else {}),
    }


def _written(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _calls(message: MessageJson) -> Sequence[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, (list, tuple)) else ()
