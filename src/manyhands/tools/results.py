"""What tools return, as the model gets it: JSON, clean, and within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import to_jsonable_python

from manyhands.core.jsonio import Json, dumps
from manyhands.core.text import clean, shorten
from manyhands.tools.protocol import ToolResult

_MIN_STRING = 200
"""Strings within a result are not cut below this many characters; if that isn't enough, the result is cut as text."""


def result_of(value: Any, max_output: int) -> ToolResult:
    """A tool function's return value as a result of at most ``max_output`` characters.

    Text, JSON values, pydantic models and dataclasses are taken. An object has failed if its ``error`` is neither null nor empty text, if
    its ``content`` is an object of which that is true, or if its ``success`` is false. A ``ToolResult`` keeps its own marks.
    """
    if isinstance(value, ToolResult):
        return replace(value, content=bounded(_clean(value.content), max_output))
    content = _clean("" if value is None else to_jsonable_python(value, fallback=str, bytes_mode="base64"))
    return ToolResult(bounded(content, max_output), _has_failed(content))


def _has_failed(content: Json) -> bool:
    if not isinstance(content, dict):
        return False
    inner = content.get("content")
    return _is_error(content) or content.get("success") is False or (isinstance(inner, dict) and _is_error(inner))


def _is_error(content: Mapping[str, Any]) -> bool:
    return content.get("error") not in (None, "")


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
    if cap < _MIN_STRING:  # text that grows when written as JSON
        cap = limit // 2
    while cap >= _MIN_STRING:
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
