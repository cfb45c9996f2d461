"""What tools return, made into what models are told: JSON, clean, and within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic_core import to_jsonable_python

from manyhands.core.jsonio import Json, dumps
from manyhands.tools.protocol import ToolResult
from manyhands.tools.success import failed_by_content
from manyhands.tools.text import clean, shorten

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
