"""The JSON value that an answer holds."""

from __future__ import annotations

import re
from typing import Any

from manyhands.core.jsonio import Json, loads
from manyhands.graders.values import MISSING

_FENCED = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<inside>.*?)^[ \t]*(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE
)
_LONGEST = 1 << 20
"""Characters of an answer that is searched for fences."""


def json_in(answer: str) -> Any:
    """The object or list in an answer; MISSING if there is none.

    It is the whole answer, else what is in the first fenced block that is one, else what stands from the first opening bracket to
    the last closing one of its kind (first of the kind that comes first), as the specification says for objects, section 4.5.
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


def _blocks(text: str) -> list[str]:
    return [] if len(text) > _LONGEST else [found["inside"].strip() for found in _FENCED.finditer(text)]


def _parsed(text: str) -> Json:
    if text[:1] not in ("{", "["):
        return MISSING
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return MISSING
