"""Which tool calls succeeded, for ``tool_stats``.

The original judged by a result's text alone (spec of trajectories, section 6): so "Tool 'x' does not exist" counted as
a success and ``"error": ""`` as a failure. Here the tool layer says whether a call failed (``ToolResult.failed``, kept
in the tool message as ``_failed``), and that mark decides. Only a message without the mark, as those adopted from the
original's files, is judged by its text, with those two mistakes mended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from manyhands.core.jsonio import Json, loads_outside

_FAILED_TEXTS = ("error:", "error executing tool", "tool '")


def failed_by_content(content: Json) -> bool:
    """Whether a result says of itself that the call failed.

    An object has failed if ``error`` holds something (not null, not empty text), if ``content`` is an object of which
    that is true, or if ``success`` is false. A command's exit code says nothing about the call. Text has failed if it
    is empty, starts with ``error:``, or is one of the original's texts for unknown tools and exceptions.
    """
    if isinstance(content, str):
        return _failed_text(content)
    if not isinstance(content, Mapping):
        return False
    inner = content.get("content")
    return (
        _is_error(content.get("error"))
        or content.get("success") is False
        or (isinstance(inner, Mapping) and _is_error(inner.get("error")))
    )


def succeeded(message: Mapping[str, Any]) -> bool:
    """Whether the call that this tool message answers succeeded."""
    mark = message.get("_failed")
    return not mark if isinstance(mark, bool) else not failed_by_content(message.get("content"))


def tool_statistics(messages: Iterable[Mapping[str, Any]], known: Iterable[str]) -> dict[str, dict[str, int]]:
    """``{tool: {"count", "success", "failure"}}`` over a conversation, zero-filled for the known tools (in their
    order), then the other names that were called, sorted.

    A result belongs to the latest call with its id, as some servers number calls anew in each turn. A call without a
    result counts in ``count`` only; a result without a call is ignored.
    """
    names = list(known)
    statistics = {name: {"count": 0, "success": 0, "failure": 0} for name in names}
    open_calls: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            name = call["function"]["name"]
            open_calls[call.get("id", "")] = name
            statistics.setdefault(name, {"count": 0, "success": 0, "failure": 0})["count"] += 1
        if message.get("role") == "tool":
            answered = open_calls.pop(message.get("tool_call_id", ""), None)
            if answered is not None:
                statistics[answered]["success" if succeeded(message) else "failure"] += 1
    others = sorted(statistics.keys() - set(names))
    return {name: statistics[name] for name in [*names, *others]}


def _is_error(value: Json) -> bool:
    return value is not None and value != ""


def _failed_text(text: str) -> bool:
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        try:
            parsed = loads_outside(stripped)
        except ValueError:
            return False
        return not isinstance(parsed, str) and failed_by_content(parsed)
    lowered = stripped.lower()
    if lowered.startswith("tool '"):
        return "does not exist" in lowered
    return not stripped or lowered.startswith(_FAILED_TEXTS)
