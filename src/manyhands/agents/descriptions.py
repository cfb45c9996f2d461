"""What became of an item and what its agent did, in lines for people who watch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from manyhands.agents.trajectory import MODEL, TOOL, TOOLS, fold
from manyhands.core.messages import Message, text_of
from manyhands.core.outcomes import Outcome
from manyhands.engine.contract import Item, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.models.openai.response import RAW


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


def item_lines(
    label: str, item: Item, outcome: Outcome, why: str, reader: JournalReader, preview: int
) -> Iterator[str]:
    """A line for the item, then one for each of its last attempt's tool calls, whose arguments and results are cut to ``preview``
    characters. ``why``: what is said behind the state."""
    yield f"[{label}] {outcome.state} ({why})" if why else f"[{label}] {outcome.state}"
    for line in _calls(item, reader, preview):
        yield f"[{label}]   {line}"


def _calls(item: Item, reader: JournalReader, preview: int) -> Iterator[str]:
    row = reader.item(str(item.number))
    if row is None:
        return
    messages = fold(reader.steps(row.number, row.attempt))
    results = {message.get("tool_call_id"): message for message in messages if message["role"] == "tool"}
    for message in messages:
        for call in message.get("tool_calls", []):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            yield f"{name}({_cut(arguments, preview)}) -> {_result(results.get(call['id']), preview)}"


def _result(message: Message | None, preview: int) -> str:
    return "" if message is None else _cut(str(message.get("content")), preview)


def _cut(text: str, preview: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= preview else line[:preview] + "…"
