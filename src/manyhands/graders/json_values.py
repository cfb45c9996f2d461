"""JSON values: the one that an answer holds, whether two are equal, and what stands at a path within one."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from manyhands.core.jsonio import Json, loads_outside

Steps = tuple[str | int, ...]


class Missing:
    """What stands where nothing is; null is something."""


MISSING: Final = Missing()

_STEP = re.compile(r"(?:^|\.)(?P<name>[^.\[\]]+)|\[(?P<index>\d{1,9})\]|\[(?P<quoted>\"[^\"]*\"|'[^']*')\]")


def equal(one: Json, other: Json) -> bool:
    """Whether two JSON values are the same: 1 and 1.0 are, 1 and true are not; the order of keys does not count."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if _is_list(one) and _is_list(other):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def steps_of(path: str) -> Steps:
    """A path as steps: names with dots between them, ``[n]`` for the n-th item of a list (from 0), ``["a.b"]`` for a name with dots.

    Raises ValueError for anything else.
    """
    steps: list[str | int] = []
    end = 0
    while end < len(path):
        step = _STEP.match(path, end)
        if step is None:
            raise ValueError('must be names with dots between them, and [0] for items of lists, as in "rows[0].name"')
        end = step.end()
        steps.append(int(step["index"]) if step["index"] else step["name"] or step["quoted"][1:-1])
    if not steps:
        raise ValueError("must not be empty")
    return tuple(steps)


def at(value: Json, steps: Steps) -> Any:
    """What stands at a path; MISSING if there is nothing."""
    for step in steps:
        if isinstance(value, Mapping):
            value = value.get(step, MISSING) if isinstance(step, str) else MISSING
        elif _is_list(value):
            value = _item(value, step)
        else:
            return MISSING
    return value


def _item(value: Sequence[Any], step: str | int) -> Any:
    index = step if isinstance(step, int) else int(step) if step.isdecimal() and len(step) < 10 else len(value)
    return value[index] if index < len(value) else MISSING


def _is_list(value: Json) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


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
