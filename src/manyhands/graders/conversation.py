"""An agent's conversation as graders see it: messages in the shape of evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.messages import Message, ToolCall, text_of
from manyhands.core.usage import Usage
from manyhands.graders.protocol import MessageJson


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
