"""The JSON value that an answer holds."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from manyhands.core.jsonio import Json, loads_outside
from manyhands.graders.values import MISSING

_OPENING = re.compile(r"[ \t]*(`{3,}+(?=[^`]*\Z)|~{3,}+)")


def json_in(answer: str) -> Any:
    """The object or list in an answer; MISSING if there is none.

    It is the whole answer, else what is in the first fenced block that is one, else what stands from the first opening bracket to
    the last closing one of its kind (first of the kind that comes first).
    """
    text = answer.strip().removeprefix("\ufeff")
    for part in (text, *_blocks(text)):
        value = _parsed(part)
        if value is not MISSING:
            return value
    starts = sorted((text.find(opening), opening, closing) for opening, closing in ("{}", "[]") if opening in text)
    for start, _, closing in starts:
        value = _parsed(text[start : text.rfind(closing) + 1])
        if value is not MISSING:
            return value
    return MISSING


def _blocks(text: str) -> Iterator[str]:
    """What stands in fenced blocks, in order."""
    lines = text.split("\n")
    fences: dict[str, list[int]] = {}  # lines that are a fence and nothing else, which end blocks
    for number, line in enumerate(lines):
        if line.strip(" \t")[:3] in ("```", "~~~"):
            fences.setdefault(line.strip(" \t"), []).append(number)
    number = 0
    while number < len(lines):
        opening = _OPENING.match(lines[number])
        ends = fences.get(opening[1], []) if opening else []
        after = bisect_right(ends, number)
        if after < len(ends):
            yield "\n".join(lines[number + 1 : ends[after]]).strip()
            number = ends[after]
        number += 1


def _parsed(text: str) -> Json:
    if text[:1] not in ("{", "["):
        return MISSING
    try:
        return loads_outside(text)
    except (ValueError, RecursionError):
        return MISSING
