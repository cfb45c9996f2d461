"""An agent's steps for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from manyhands.agents.trajectory import MODEL, TOOL, TOOLS
from manyhands.core.messages import text_of
from manyhands.engine.workload import RecordedStep
from manyhands.models.openai_response import RAW


def describe_step(step: RecordedStep) -> Iterable[tuple[str, str]]:
    """Who said what, in order; for tools, each call's result."""
    if step.kind == MODEL:
        return _model_step(step)
    if step.kind == TOOLS:
        pairs = zip(step.request["calls"], step.output["results"], strict=True)
        return [(call_label(call), _text(result)) for call, result in pairs]
    if step.kind == TOOL:
        return [(call_label(step.request["call"]), _text(step.output))]
    return [(step.kind, json.dumps(step.output, ensure_ascii=False))]


def call_label(call: dict[str, Any]) -> str:
    """A recorded tool call in one line."""
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{call.get('name', '?')}({text})"


def _model_step(step: RecordedStep) -> Iterator[tuple[str, str]]:
    for message in step.request.get("added", []):
        why = f" (by this program: {message['_synthetic']})" if "_synthetic" in message else ""
        role = str(message.get("role")) + (" (given)" if "_given" in message else "") + why
        if (text := text_of(message.get("content"))) or not message.get("tool_calls"):
            yield role, text
        for call in message.get("tool_calls", []):
            yield f"{role}, calls", f"{call['function']['name']}({call['function']['arguments']})"
    if "overflow" in step.output:
        yield "overflow", step.output["overflow"]
    message = step.output.get("message", {})
    if message.get("reasoning"):
        yield "assistant, reasoning", message["reasoning"]
    if content := text_of(message.get("content")):
        yield "assistant", content
    raw = (step.output.get("extra") or {}).get(RAW) or {}
    if "content" in raw:
        yield "assistant, as sent", text_of(raw["content"])
    for call in message.get("tool_calls", []):
        yield "assistant, calls", f"{call['function']['name']}({call['function']['arguments']})"
    if following := step.output.get("next"):
        yield "then", f"{following} {step.output.get('stop', '')}".strip()


def _text(result: dict[str, Any]) -> str:
    content = result.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1)
    return f"(failed) {text}" if result.get("failed") else text
