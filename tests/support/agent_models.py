"""Models of agent programs whose answers a function makes up: handlers of a ``ScriptedServer`` that speak the programs' protocols."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.testing.scripted_server import RecordedRequest, ScriptedResponse

MCP = "mcp__manyhands"
"""How Codex and Claude Code call the server ``manyhands``."""
USAGE = {"input_tokens": 10, "output_tokens": 5}
"""What every answer is said to take."""


@dataclass(frozen=True)
class Call:
    """A call of a tool by the model. ``server``: the MCP server whose tool it is, if it isn't one of the program's own."""

    tool: str
    arguments: Mapping[str, Any]
    server: str = ""


Script = Callable[[str, Sequence[str]], Call | str]
"""What the model answers to a prompt and the results of its calls so far: another call, or its last words."""
Handler = Callable[[RecordedRequest], ScriptedResponse]


def messages_api(script: Script) -> Handler:
    """Anthropic's Messages API, for Claude Code."""

    def answer(request: RecordedRequest) -> ScriptedResponse:
        if not request.path.endswith("/messages"):
            return ScriptedResponse({})
        blocks = [each for message in request.body["messages"] for each in _blocks(message["content"])]
        prompt = "\n".join(each["text"] for each in blocks if each["type"] == "text")
        results = _results(blocks, "tool_result", "content")
        return _streamed(_message_events(script(prompt, results), number=len(results)))

    return answer


def responses_api(script: Script) -> Handler:
    """OpenAI's Responses API, for Codex."""

    def answer(request: RecordedRequest) -> ScriptedResponse:
        if not request.path.endswith("/responses"):
            return ScriptedResponse({})
        items = request.body["input"]
        prompt = "\n".join(_text(each["content"]) for each in items if each.get("role") == "user")
        results = _results(items, "function_call_output", "output")
        return _streamed(_response_events(script(prompt, results), number=len(results)))

    return answer


def _results(items: Sequence[Mapping[str, Any]], kind: str, field: str) -> list[str]:
    return [_text(each[field]) for each in items if each["type"] == kind]


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(content: Any) -> str:
    return "\n".join(each.get("text", "") for each in _blocks(content))


def _streamed(events: Sequence[Mapping[str, Any]]) -> ScriptedResponse:
    body = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
    return ScriptedResponse(body.encode(), headers={"Content-Type": "text/event-stream"})


def _message_events(answer: Call | str, number: int) -> list[dict[str, Any]]:
    """See https://docs.anthropic.com/en/api/messages-streaming."""
    block: dict[str, Any]
    if isinstance(answer, str):
        reason, block, delta = "end_turn", {"type": "text", "text": ""}, {"type": "text_delta", "text": answer}
    else:
        name = f"{answer.server}__{answer.tool}" if answer.server else answer.tool
        reason, block = "tool_use", {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.arguments)}
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [],
        "usage": USAGE,
    }
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": USAGE},
        {"type": "message_stop"},
    ]


def _response_events(answer: Call | str, number: int) -> list[dict[str, Any]]:
    """See https://platform.openai.com/docs/api-reference/responses-streaming; those that Codex needs."""
    item: dict[str, Any]
    if isinstance(answer, str):
        content = [{"type": "output_text", "text": answer, "annotations": []}]
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}
    else:
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": answer.tool}
        item |= {"arguments": json.dumps(answer.arguments)} | ({"namespace": answer.server} if answer.server else {})
    response = {"id": f"resp_{number}", "output": [item], "usage": {**USAGE, "total_tokens": sum(USAGE.values())}}
    return [
        {"type": "response.created", "response": {"id": response["id"]}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
