"""Tool results as the model and the journal get them."""

from __future__ import annotations

from typing import Any

from manyhands.core.jsonio import Json, spaced
from manyhands.core.messages import Message, ToolCall
from manyhands.tools.protocol import ToolResult
from manyhands.tools.results import bounded


def as_text(content: Json) -> str:
    """A result's content for the model: text as it is, everything else as JSON; nothing for None."""
    if isinstance(content, str):
        return content
    return "" if content is None else spaced(content)


def recorded(result: ToolResult, longest: int) -> dict[str, Any]:
    """A result as the journal holds it: ``content``, cut to about ``longest`` characters, and of ``failed`` and ``ends`` what is true.

    Raises TypeError or ValueError if the content is not JSON.
    """
    marks = {"failed": result.failed, "ends": result.ends}
    return {"content": bounded(result.content, longest)} | {name: True for name, is_set in marks.items() if is_set}


def from_record(record: dict[str, Any]) -> ToolResult:
    """The reverse of ``recorded``."""
    return ToolResult(record["content"], bool(record.get("failed")), bool(record.get("ends")))


def refusal(reason: str) -> ToolResult:
    """The answer to a call that was not run, or that failed as a call."""
    return ToolResult({"error": reason}, failed=True)


def tool_message(call: ToolCall, result: ToolResult) -> Message:
    """The message that answers a call."""
    return {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": call["function"]["name"],
        "content": as_text(result.content),
        "_failed": result.failed,
    }
