"""JSON values: whether two are equal, and what stands at a path within one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from manyhands.core.jsonio import Json

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
