"""What tools return, made into what models are told: JSON, clean, and within bounds; and which calls succeeded, for ``tool_stats``.

The tool layer says whether a call failed (``ToolResult.failed``, kept in the tool message as ``_failed``), and that mark decides. A
message without the mark, as those adopted from the original batch runner's files, is judged by its text. The original itself judged by
text alone, so that "Tool 'x' does not exist" counted as a success and ``"error": ""`` as a failure; these two mistakes are mended here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import to_jsonable_python

from manyhands.core.jsonio import Json, dumps, loads_outside
from manyhands.core.text import clean, shorten
from manyhands.tools.protocol import ToolResult

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


_SHORTEST = 200
"""Strings within a result are not cut below this many characters; if that isn't enough, the result is cut as text."""


def result_of(value: Any, max_output: int) -> ToolResult:
    """A tool function's return value as a result of at most ``max_output`` characters.

    Text, JSON values, pydantic models and dataclasses are taken; an object with an error in it (see ``success``) is
    marked as failed. A ``ToolResult`` keeps its own marks.
    """
    if isinstance(value, ToolResult):
        return replace(value, content=bounded(_clean(value.content), max_output))
    content = _clean("" if value is None else to_jsonable_python(value, fallback=str, bytes_mode="base64"))
    failed = isinstance(content, dict) and failed_by_content(content)
    return ToolResult(bounded(content, max_output), failed)


def bounded(content: Json, limit: int) -> Json:
    """The content with its longest strings shortened until its JSON has at most ``limit`` characters.

    Heads and tails are kept, with a note of how much was left out. Where that does not suffice (many small parts), it
    becomes text, and the text is shortened.
    """
    if isinstance(content, str):
        return shorten(content, limit)
    size = _size(content)
    if size <= limit or not isinstance(content, (dict, list)):
        return content
    cap = _cap(sorted(map(len, _strings(content)), reverse=True), size - limit)
    if cap < _SHORTEST:  # text that grows when written as JSON
        cap = limit // 2
    while cap >= _SHORTEST:
        smaller = _shortened(content, cap)
        if _size(smaller) <= limit:
            return smaller
        cap = cap * 4 // 5
    return shorten(dumps(content).decode("utf-8", "replace"), limit)


def _size(content: Json) -> int:
    return len(dumps(content).decode("utf-8", "replace"))


def _cap(lengths: list[int], excess: int) -> int:
    """The length to which the longest strings must be cut to save ``excess`` characters in all."""
    saved = 0
    for count, length in enumerate(lengths, start=1):
        following = lengths[count] if count < len(lengths) else 0
        step = (length - following) * count
        if saved + step >= excess:
            return max(0, length - -(-(excess - saved) // count))
        saved += step
    return 0


def _strings(content: Json) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, (list, dict)):
        for item in content.values() if isinstance(content, dict) else content:
            yield from _strings(item)


def _shortened(content: Json, cap: int) -> Json:
    if isinstance(content, str):
        return shorten(content, cap)
    if isinstance(content, list):
        return [_shortened(item, cap) for item in content]
    if isinstance(content, dict):
        return {key: _shortened(item, cap) for key, item in content.items()}
    return content


def _clean(content: Json) -> Json:
    if isinstance(content, str):
        return clean(content)
    if isinstance(content, list):
        return [_clean(item) for item in content]
    if isinstance(content, dict):
        return {clean(str(key)): _clean(item) for key, item in content.items()}
    return content
