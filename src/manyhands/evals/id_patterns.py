"""Patterns for ids of tests, as the harness that eval files come from has them.

``*`` and ``?`` stand for something within one level of ``/``, ``**`` for something over levels; ``[a-z]``, ``[!a]`` and ``{one,other}`` are
as usual. Groups: ``@(a|b)`` one of these, ``?(…)`` at most one, ``*(…)`` any number, ``+(…)`` at least one, ``!(…)`` anything else. What
begins with ``*``, ``?`` or ``[`` does not fit a dot at the beginning of a level. A backslash takes a character for itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from manyhands.evals.globs import alternatives

_GROUPS = {"@": "", "?": "?", "*": "*", "+": "+", "!": None}
_NO_DOT = r"(?!\.)"


def compiled(patterns: Sequence[str]) -> re.Pattern[str]:
    """One expression for whole ids that fit any of the patterns. Raises ValueError for one that can't be read or stands for too many."""
    try:
        expressions = [_expression(each, "") for pattern in patterns for each in alternatives(pattern)]
        return re.compile("|".join(f"(?:{each})" for each in expressions), re.DOTALL)
    except re.error as error:
        raise ValueError(f"can't be read as a pattern ({error})") from None


def is_group(pattern: str) -> bool:
    """Whether the pattern begins with a group in parentheses."""
    return len(pattern) > 1 and pattern[0] in _GROUPS and pattern[1] == "(" and _end(pattern, 1) is not None


def _expression(pattern: str, after: str, *, first: bool = True) -> str:
    """``after``: what comes behind the pattern, as an expression; ``first``: whether a level begins with it."""
    if not pattern:
        return after
    mark, rest = pattern[0], pattern[1:]
    no_dot = _NO_DOT if first else ""
    if is_group(pattern):
        end = _end(pattern, 1) or 0
        behind = _expression(pattern[end + 1 :], after, first=False)
        inner = "|".join(_expression(part, "", first=first) for part in _parts(pattern[2:end]))
        if mark == "!":
            return f"{no_dot}(?!(?:{inner}){behind}\\Z)[^/]*{behind}"
        return f"(?:{inner}){_GROUPS[mark]}{behind}"
    if pattern.startswith("**/") and first:
        return f"(?:{_NO_DOT}[^/]+/)*" + _expression(pattern[3:], after)
    if mark == "*":
        many = "(?:[^/]|/(?!\\.))*" if pattern.startswith("**") else "[^/]*"
        return no_dot + many + _expression(rest.lstrip("*") if many != "[^/]*" else rest, after, first=False)
    if mark == "?":
        return f"{no_dot}[^/]{_expression(rest, after, first=False)}"
    if mark == "[" and "]" in rest[1:]:
        end = rest.index("]", 1)
        return f"{no_dot}[{_characters(rest[:end])}]{_expression(rest[end + 1 :], after, first=False)}"
    if mark == "\\" and rest:
        mark, rest = rest[0], rest[1:]
    return re.escape(mark) + _expression(rest, after, first=mark == "/")


def _characters(inner: str) -> str:
    negated = inner[:1] in ("!", "^")
    kept = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if negated else inner)
    return f"^/{kept}" if negated else kept


def _end(pattern: str, begin: int) -> int | None:
    """Where the parenthesis that stands at ``begin`` is closed."""
    depth = 0
    for place in range(begin, len(pattern)):
        depth += {"(": 1, ")": -1}.get(pattern[place], 0)
        if depth == 0:
            return place
    return None


def _parts(inner: str) -> list[str]:
    """What stands between the bars of a group, without those of groups within."""
    parts, depth = [""], 0
    for mark in inner:
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if mark == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += mark
    return parts
