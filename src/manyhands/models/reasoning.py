"""A model's reasoning, gathered from all the fields where servers put it, each part once.

The fields: ``reasoning``, ``reasoning_content`` and ``thinking`` of the message, its ``reasoning_details`` items, and
content parts of type ``thinking`` or ``reasoning``. Only if a server sends nothing in any of them, ``<think>``, ``<thinking>`` or
``<thought>`` blocks that open the content are taken out of it; tags anywhere else are text that the model wrote.
``<REASONING_SCRATCHPAD>`` blocks count as reasoning and stay in the content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.core.jsonio import Json, dumps

SCRATCHPAD = "REASONING_SCRATCHPAD"
"""The tag of reasoning that stands in a content in so many words."""
_MAX_SEARCHED = 1 << 22
"""Characters that are searched for parts of reasoning, all searches together."""
FIELDS = ("reasoning", "reasoning_content", "thinking")
"""Where a message may have reasoning as text."""
_DETAIL_FIELDS = ("summary", "content", "text")
_REASONING_PARTS = ("thinking", "reasoning")
# Not within backquotes: there a tag is spoken of, not used.
_TAG = re.compile(r"(?!(?<=`)</?\w+>`)<(/?)(think|thinking|thought)(?:\s[^<>]{0,200})?>", re.IGNORECASE)


@dataclass(slots=True)  # not frozen: see Outcome
class Gathered:
    """An answer taken apart."""

    reasoning: str
    content: str | None
    unbegun: bool = False
    """The content ends reasoning (by ``</think>``) that it never begins, and it was left as it is."""


def gather(message: Mapping[str, Any], *, implied_think: bool = False, cut_off: bool = False) -> Gathered:
    """Take an assistant message as a server sent it apart into reasoning and content. Never fails, whatever was sent.

    ``implied_think``: the server's template opens the reasoning block in the prompt, so that content may end one that it does not begin.
    ``cut_off``: the token limit ended the answer; under ``implied_think`` it is all reasoning if it did not come to that end.
    """
    content = message.get("content")
    own: list[str] = []
    if content is not None and not isinstance(content, str):
        own, content = _split_parts(content)
    parts = [flatten(message.get(name)) for name in FIELDS if message.get(name) is not None]
    details = message.get("reasoning_details")
    if details:
        parts += _details(details)
    parts += own
    sent = any(part.strip() for part in parts) or _is_withheld(details)
    unbegun = False
    if content and not sent and implied_think and cut_off and not _TAG.search(content):
        parts, content = [content], ""
    elif content and not sent and "<" in content:
        found, rest = split_inline(content, implied=implied_think)
        unbegun = rest is content and _is_unbegun(content)
        parts, content = found, rest
    return Gathered(join_distinct(parts) if parts else "", content, unbegun)


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
    if len(distinct) < 2:
        return distinct[0] if distinct else ""
    if sum(map(len, distinct)) * len(distinct) > _MAX_SEARCHED:
        longest = max(distinct, key=len)
        found = standing_in(distinct, longest)
        return "\n\n".join(text for text, inside in zip(distinct, found, strict=True) if text is longest or not inside)
    kept: list[str] = []
    for text in distinct:
        if any(text in earlier for earlier in kept):
            continue
        position = next((index for index, earlier in enumerate(kept) if earlier in text), len(kept))
        kept = [earlier for earlier in kept if earlier not in text]
        kept.insert(min(position, len(kept)), text)
    return "\n\n".join(kept)


def standing_in(parts: Sequence[str], text: str) -> list[bool]:
    """Of each part, whether it stands in the text.

    Many parts of a long text are looked for each behind the one before, since searching all of it for each takes quadratic time; those
    that come in another order may then count as missing.
    """
    if len(text) * len(parts) <= _MAX_SEARCHED:
        return [part in text for part in parts]
    found: list[bool] = []
    behind, left = 0, _MAX_SEARCHED
    for part in parts:
        position = text.find(part, behind) if left > 0 else -1
        found.append(position >= 0)
        left -= 0 if position >= 0 else len(text) - behind
        behind = behind if position < 0 else position + len(part)
    return found


def blocks(content: str, tags: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
    """Blocks that are begun and ended: where each begins, where it ends, and what stands between its tags.

    ``tags``: finds opening tags, with the name as its first group. The same as a search for ``<(tag)>.*?</\\1>``, which however looks
    through the rest of the text for each tag that is never closed.
    """
    unclosed: set[str] = set()
    opening = tags.search(content)
    while opening is not None:
        name, position = opening[1], opening.end()
        end = -1 if name in unclosed else content.find(f"</{name}>", position)
        if end < 0:
            unclosed.add(name)
        else:
            inside, position = content[position:end], end + len(name) + 3
            yield opening.start(), position, inside
        opening = tags.search(content, position)


def split_inline(content: str, *, implied: bool = False) -> tuple[list[str], str]:
    """Take the think blocks that open a text out of it: their texts, and what comes behind them (the very text if none opens it).

    Blank space may stand before and between them. A block that is never closed is reasoning that was cut off, to the end of the text.
    ``implied``: a closing tag without an opening one ends reasoning that began with the text.
    """
    tags = list(_TAG.finditer(content))
    if not tags:
        return [], content
    thoughts: list[str] = []
    behind = index = 0
    lone = _lone_closing(tags) if implied and not _opens(content, 0, tags[0]) else None
    if lone is not None:
        thoughts.append(content[: tags[lone].start()])
        behind, index = tags[lone].end(), lone + 1
    last = {(tag[1], tag[2].lower()): position for position, tag in enumerate(tags)}
    while index < len(tags) and _opens(content, behind, tags[index]):
        closing = _closing(tags, index, last)
        if closing is None:
            thoughts.append(content[tags[index].end() :])
            behind = len(content)
            break
        thoughts.append(content[tags[index].end() : tags[closing].start()])
        behind, index = tags[closing].end(), closing + 1
    if not behind:
        return [], content
    return [text for text in map(str.strip, thoughts) if text], content[behind:].lstrip()


def _opens(content: str, behind: int, tag: re.Match[str]) -> bool:
    """Whether nothing but an opening tag comes next."""
    return not tag[1] and not content[behind : tag.start()].strip()


def _closing(tags: Sequence[re.Match[str]], index: int, last: Mapping[tuple[str, str], int]) -> int | None:
    """Which tag closes the block that one opens: the next of its name; or if there is none, the next one of any name. ``last``: of
    each kind of tag, the last one, so that looking for what does not come takes no time."""
    name = tags[index][2].lower()
    same = last.get(("/", name), -1) > index
    if not same and max((position for (slash, _), position in last.items() if slash), default=-1) <= index:
        return None
    return next(
        position
        for position in range(index + 1, len(tags))
        if tags[position][1] and (not same or tags[position][2].lower() == name)
    )


def _lone_closing(tags: Sequence[re.Match[str]]) -> int | None:
    """The first closing tag that no opening one before it belongs to."""
    opened = 0
    for position, tag in enumerate(tags):
        if not tag[1]:
            opened += 1
        elif not opened:
            return position
        else:
            opened -= 1
    return None


def _is_unbegun(content: str) -> bool:
    tags = list(_TAG.finditer(content))
    return bool(tags) and all(tag[1] for tag in tags)


def _split_parts(content: Json) -> tuple[list[str], str]:
    parts = content if isinstance(content, list) else [content]
    thoughts = [flatten(part) for part in parts if _is_reasoning_part(part)]
    return thoughts, "".join(flatten(part) for part in parts if not _is_reasoning_part(part))


def _is_reasoning_part(part: Json) -> bool:
    return isinstance(part, dict) and part.get("type") in _REASONING_PARTS


def _is_withheld(details: Json) -> bool:
    """Whether there is reasoning that nobody but the server can read."""
    return any(
        isinstance(item, dict) and bool(item.get("data"))
        for item in (details if isinstance(details, list) else [details])
    )


def _details(details: Json) -> Iterator[str]:
    for item in details if isinstance(details, list) else [details]:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            found = next((item[name] for name in _DETAIL_FIELDS if item.get(name)), None)
            if found is not None:
                yield flatten(found)
