"""Conversations, in the shape of OpenAI's chat completions, with a few keys of our own.

Messages are plain dicts because they travel: to the journal, over the wire, into files. Keys that start with ``_`` are
ours and never go to an endpoint.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypedDict

from manyhands.core.jsonio import Json


class FunctionCall(TypedDict):
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class ToolCall(TypedDict, total=False):
    id: str
    type: Literal["function"]
    function: FunctionCall
    extra_content: Any
    """Opaque data that some servers (Gemini) want back unchanged."""


class Message(TypedDict, total=False):
    """One message. ``role`` is always there; the rest depends on it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Any
    """Text, None, or a list of content parts (multimodal prompts)."""
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str
    """For a tool message: the name of the tool."""
    reasoning: str
    """For an assistant message: all reasoning text, gathered from wherever the server put it, once; absent if none."""
    reasoning_details: list[Any]
    """The server's own reasoning items, sent back unchanged."""
    _reasoning_field: str
    """The field in which the server sent the reasoning, if it is another one than ``reasoning_content``."""
    _synthetic: str
    """Set when this program wrote the message, not a person, model or tool; says why (``continue``, ``summary_request`` …)."""
    _given: bool
    """Set when the message was there before the agent began: it is part of the conversation, but nobody here said it."""
    _failed: bool
    """For a tool message: whether the call failed."""


def text_of(content: Json) -> str:
    """A message's content as text: parts joined by line breaks, anything that is not text as ``<kind>``."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content)
    return "" if content is None else json.dumps(content, ensure_ascii=False)


def _part_text(part: Json) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return json.dumps(part, ensure_ascii=False)
    text = part.get("text")
    if isinstance(text, str):
        return text
    return f"<{str(part.get('type', 'part')).removesuffix('_url').removeprefix('input_')}>"
