"""Conversations as chat messages for training: without our own keys, with reasoning where it is wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.messages import Message, ToolCall, text_of
from manyhands.export.conversations import Conversation, Turn
from manyhands.export.format import Losses, Unfit

NO_CONVERSATION = "without a conversation"
NO_ANSWER = "without an answer"


def chat_messages(
    turns: Sequence[Turn], reasoning: str, losses: Losses, *, field: str = "reasoning_content"
) -> list[dict[str, Any]]:
    """The messages of turns as chat completions have them, arguments as JSON text.

    ``reasoning``: ``keep`` puts it between think tags before the content, ``field`` into the field of that name, ``drop`` leaves it out,
    which is counted.
    """
    return [_chat_message(turn.message, reasoning, losses, field) for turn in turns]


def _chat_message(message: Message, reasoning: str, losses: Losses, field: str) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message["role"], "content": message.get("content")}
    calls = message.get("tool_calls")
    if found["content"] is None and not calls:
        found["content"] = ""
    thought = message.get("reasoning")
    if thought and thought.strip():
        if reasoning == "field":
            found[field] = thought
        elif reasoning == "keep":
            found["content"] = with_thinking(thought, text_of(found["content"]))
        else:
            losses.add("messages' reasoning")
    if calls:
        found["tool_calls"] = [call_of(call) for call in calls]
    if message["role"] == "tool":
        found["tool_call_id"] = message.get("tool_call_id", "")
        if "name" in message:
            found["name"] = message["name"]
        found["content"] = text_of(found["content"])
    return found


def with_thinking(thought: str, content: str) -> str:
    """A content with the reasoning before it, between the think tags of reasoning models."""
    return f"<think>\n{thought.strip()}\n</think>\n\n{content}" if content else f"<think>\n{thought.strip()}\n</think>"


def call_of(call: ToolCall) -> dict[str, Any]:
    """A tool call with nothing else than what chat completions have."""
    function = call["function"]
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }


def arguments_of(call: ToolCall) -> dict[str, Json] | None:
    """A call's arguments as an object; None if the model wrote something else."""
    try:
        found = json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def check_answered(conversation: Conversation) -> None:
    """Raises Unfit for a conversation without an assistant's message."""
    if not conversation.turns:
        raise Unfit(NO_CONVERSATION)
    if not any(turn.role == "assistant" for turn in conversation.turns):
        raise Unfit(NO_ANSWER)


def until_last_answer(turns: Sequence[Turn]) -> list[Turn]:
    """The turns up to the last assistant message: what follows it is trained on by nobody."""
    last = max((at for at, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
    return list(turns[: last + 1])


def images_in(turns: Sequence[Turn]) -> int:
    """How many content parts are no text."""
    return sum(1 for turn in turns for _ in _other_parts(turn.message.get("content")))


def _other_parts(content: Json) -> Iterator[Json]:
    if isinstance(content, list):
        yield from (part for part in content if not (isinstance(part, dict) and part.get("type") == "text"))


def tool_definitions(conversation: Conversation) -> list[dict[str, Any]]:
    """The tools that were available, as chat-completions tool objects."""
    return [dict(tool) for tool in conversation.tools]
