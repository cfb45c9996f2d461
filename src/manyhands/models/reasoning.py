"""A model's reasoning, gathered from all the places where servers put it, each part once.

The places: ``reasoning``, ``reasoning_content`` and ``thinking`` of the message, its ``reasoning_details`` items,
content parts of type ``thinking`` or ``reasoning``, and ``<think>``, ``<thinking>`` or ``<thought>`` blocks written into
the content, which are taken out of it. ``<REASONING_SCRATCHPAD>`` blocks count as reasoning and stay in the content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.core.jsonio import Json, dumps

_CLOSING_TAGS = ("</think>", "</thinking>", "</thought>")
SCRATCHPAD = "<REASONING_SCRATCHPAD>"
_MOST_SEARCHED = 1 << 22
"""Characters that are searched for parts of reasoning, all searches together."""
_FIELDS = ("reasoning", "reasoning_content", "thinking")
_DETAIL_FIELDS = ("summary", "content", "text")
_REASONING_PARTS = ("thinking", "reasoning")
# Not within backquotes: there a tag is spoken of, not used.
_TAG = re.compile(r"(?<!`)<(/?)(?:think|thinking|thought)>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gathered:
    """An answer taken apart. ``reasoning`` is empty if there is none; ``content`` is None if the server sent none."""

    reasoning: str
    content: str | None


def gather(message: Mapping[str, Any]) -> Gathered:
    """Take an assistant message as a server sent it apart into reasoning and content. Never fails, whatever was sent."""
    content = message.get("content")
    thoughts: list[str] = []
    if content is not None and not isinstance(content, str):
        thoughts, content = _split_parts(content)
    if content and "<" in content:
        inline, content = split_inline(content)
        thoughts += inline
    parts = [flatten(message.get(name)) for name in _FIELDS if message.get(name) is not None]
    details = message.get("reasoning_details")
    if details:
        parts += _details(details)
    return Gathered(join_distinct(parts + thoughts) if parts or thoughts else "", content)


def has_reasoning(message: Mapping[str, Any]) -> bool:
    """Whether an assistant message shows reasoning: gathered beforehand, or as a scratchpad in its content."""
    reasoning = message.get("reasoning")
    if isinstance(reasoning, str) and reasoning.strip():
        return True
    content = message.get("content")
    return isinstance(content, str) and SCRATCHPAD in content


def flatten(value: Json) -> str:
    """The text of content that may be a string, a content part, or a list of these; other JSON as JSON text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(flatten(part) for part in value)
    if isinstance(value, dict):
        for name in ("text", "content", "thinking", "reasoning", "summary"):
            if name in value:
                return flatten(value[name])
    return dumps(value).decode()


def join_distinct(parts: Iterable[str]) -> str:
    """The parts in order, joined by a blank line; a part that stands in another one already is left out.

    Among very many parts, that is so of parts of the longest one that come in its order.
    """
    distinct = list(dict.fromkeys(text for part in parts if (text := part.strip())))
    if sum(map(len, distinct)) * len(distinct) > _MOST_SEARCHED:
        longest = max(distinct, key=len)
        found = standing_in(distinct, longest)
        return "\n\n".join(text for text, inside in zip(distinct, found, strict=True) if text is longest or not inside)
    kept: list[str] = []
    for text in distinct:
        if any(text in earlier for earlier in kept):
            continue
        place = next((index for index, earlier in enumerate(kept) if earlier in text), len(kept))
        kept = [earlier for earlier in kept if earlier not in text]
        kept.insert(min(place, len(kept)), text)
    return "\n\n".join(kept)


def standing_in(parts: Sequence[str], text: str) -> list[bool]:
    """Of each part, whether it stands in the text.

    Many parts of a long text are looked for each behind the one before, since searching all of it for each takes quadratic time; those
    that come in another order may then count as missing.
    """
    if len(text) * len(parts) <= _MOST_SEARCHED:
        return [part in text for part in parts]
    found: list[bool] = []
    behind, left = 0, _MOST_SEARCHED
    for part in parts:
        place = text.find(part, behind) if left > 0 else -1
        found.append(place >= 0)
        left -= 0 if place >= 0 else len(text) - behind
        behind = behind if place < 0 else place + len(part)
    return found


def blocks(content: str, tags: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
    """Blocks that are begun and ended: where each begins, where it ends, and what stands between its tags.

    ``tags``: finds opening tags, with the name as its first group. The same as a search for ``<(tag)>.*?</\\1>``, which however looks
    through the rest of the text for each tag that is never closed.
    """
    unclosed: set[str] = set()
    opening = tags.search(content)
    while opening is not None:
        name, place = opening[1], opening.end()
        end = -1 if name in unclosed else content.find(f"</{name}>", place)
        if end < 0:
            unclosed.add(name)
        else:
            inside, place = content[place:end], end + len(name) + 3
            yield opening.start(), place, inside
        opening = tags.search(content, place)


def split_inline(content: str) -> tuple[list[str], str]:
    """Take think blocks out of a text: the blocks' texts, and what is left, stripped (unchanged if there is no block).

    A closing tag without an opening one ends reasoning that began with the text (several chat templates put the opening
    tag into the prompt). An opening tag at the start of a line that is never closed begins reasoning that was cut off.
    """
    tags = list(_TAG.finditer(content))
    if not tags:
        return [], content
    thoughts: list[str] = []
    visible: list[str] = []
    position = 0  # where the text that is not yet dealt with begins
    opened: int | None = None  # where the open block's text begins
    for tag in tags:
        closing = tag.group(1) == "/"
        if opened is None and not closing:
            visible.append(content[position : tag.start()])
            opened = position = tag.end()
        elif opened is not None and closing:
            thoughts.append(content[opened : tag.start()])
            position, opened = tag.end(), None
        elif closing and not thoughts:
            thoughts.append("".join(visible) + content[position : tag.start()])
            visible, position = [], tag.end()
    return _end(content, tags, thoughts, visible, position, opened)


def _end(
    content: str, tags: list[re.Match[str]], thoughts: list[str], visible: list[str], position: int, opened: int | None
) -> tuple[list[str], str]:
    if opened is None:
        visible.append(content[position:])
    elif _starts_line(content, next(tag.start() for tag in tags if tag.end() == opened)):
        thoughts.append(content[opened:])
    else:
        start = next(tag.start() for tag in tags if tag.end() == opened)
        visible.append(content[start:])
        if not thoughts:
            return [], content
    return [text for text in map(str.strip, thoughts) if text], "".join(visible).strip()


def _starts_line(content: str, position: int) -> bool:
    before = content[:position].rstrip(" \t")
    return not before or before.endswith("\n") or before.lower().endswith(_CLOSING_TAGS)


def _split_parts(content: Json) -> tuple[list[str], str]:
    parts = content if isinstance(content, list) else [content]
    thoughts = [flatten(part) for part in parts if _is_reasoning_part(part)]
    return thoughts, "".join(flatten(part) for part in parts if not _is_reasoning_part(part))


def _is_reasoning_part(part: Json) -> bool:
    return isinstance(part, dict) and part.get("type") in _REASONING_PARTS


def _details(details: Json) -> Iterator[str]:
    for item in details if isinstance(details, list) else [details]:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            found = next((item[name] for name in _DETAIL_FIELDS if item.get(name)), None)
            if found is not None:
                yield flatten(found)
