"""Patterns of files and of ids of tests.

For files: ``*`` and ``?`` within one level, ``**`` over levels, ``[a-z]``, ``[!a]``, ``{one,other}``. For ids, as AgentV has them, also
groups: ``@(a|b)`` one of these, ``?(…)`` at most one, ``*(…)`` any number, ``+(…)`` at least one, ``!(…)`` anything else. What begins with
``*``, ``?`` or ``[`` does not match a dot at the beginning of a level, and a backslash escapes a character.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path

MARKS = frozenset("*?{")
"""What makes a path a pattern."""
MAX_ALTERNATIVES = 1000
_ANY_LEVELS = "**"


def is_pattern(text: str) -> bool:
    """Whether a path is a pattern."""
    return not MARKS.isdisjoint(text)


def alternatives(pattern: str) -> list[str]:
    """The patterns that braces stand for: ``a{b,c}`` is ``ab`` and ``ac``. Braces without a comma mean themselves.

    Raises ValueError if there are too many.
    """
    done, waiting = list[str](), [pattern]
    while waiting:
        text = waiting.pop()
        found = _braces(text)
        if found is None:
            done.append(text)
        else:
            start, end, choices = found
            waiting += [text[:start] + choice + text[end:] for choice in reversed(choices)]
        if len(done) + len(waiting) > MAX_ALTERNATIVES:
            raise ValueError(f"stands for more than {MAX_ALTERNATIVES} patterns")
    return list(dict.fromkeys(done))


def matching_files(pattern: str, folder: Path) -> list[Path]:
    """The files that match, sorted by path. Hidden ones only match a pattern with the dot; ``**`` does not go through links to folders,
    which may lead in circles. Raises ValueError if the pattern stands for too many."""
    found = {
        folder / name
        for each in alternatives(pattern)
        for name in glob.glob(each, root_dir=folder, recursive=True)
        if not _through_a_link(name, each, folder)
    }
    return sorted(path for path in found if path.is_file())


def _through_a_link(name: str, pattern: str, folder: Path) -> bool:
    """Whether a path that matches goes through a link to a folder at ``**``."""
    if _ANY_LEVELS not in Path(pattern).parts:
        return False
    fixed = Path(pattern).parts.index(_ANY_LEVELS)
    parts = Path(name).parts
    return any(Path(folder, *parts[:length]).is_symlink() for length in range(fixed + 1, len(parts)))


def compiled_glob(pattern: str) -> re.Pattern[str]:
    """A regular expression for whole paths, with ``/`` between levels. Raises ValueError for a pattern that can't be read or stands for too
    many."""
    try:
        return re.compile("|".join(_glob_expression(each) for each in alternatives(pattern)), re.DOTALL)
    except re.error:
        raise ValueError(f"can't be read as a pattern: {pattern}") from None


def _glob_expression(pattern: str) -> str:
    text, position = "", 0
    while position < len(pattern):
        rest = pattern[position:]
        mark = next(mark for mark in _MEANINGS if rest.startswith(mark))
        if mark == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            text += f"[{_glob_characters(rest[1:end])}]"
            position += end + 1
        else:
            text += _MEANINGS[mark] or re.escape(rest[0])
            position += len(mark) or 1
    return text


_MEANINGS = {"**/": "(?:[^/]+/)*", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "[": "", "": ""}


def _glob_characters(inner: str) -> str:
    negated = inner[:1] in ("!", "^")
    kept = inner[1:] if negated else inner
    return ("^/" if negated else "") + re.sub(r"([\\\[\]^&~|])", r"\\\1", kept)


def _braces(text: str) -> tuple[int, int, list[str]] | None:
    """The first innermost braces with a comma: start, end, and the texts between the commas."""
    for found in re.finditer(r"\{([^{}]*)\}", text):
        if "," in found[1]:
            return found.start(), found.end(), found[1].split(",")
    return None


_GROUPS = {"@": "", "?": "?", "*": "*", "+": "+", "!": None}
_NO_DOT = r"(?!\.)"


def compiled_ids(patterns: Sequence[str]) -> re.Pattern[str]:
    """A regular expression for whole ids that match any of the patterns. Raises ValueError for one that can't be read or stands for too
    many."""
    try:
        expressions = [_ids_expression(each, "") for pattern in patterns for each in alternatives(pattern)]
        return re.compile("|".join(f"(?:{each})" for each in expressions), re.DOTALL)
    except re.error as error:
        raise ValueError(f"can't be read as a pattern ({error})") from None


def is_group(pattern: str) -> bool:
    """Whether the pattern begins with a group in parentheses."""
    return len(pattern) > 1 and pattern[0] in _GROUPS and pattern[1] == "(" and _end(pattern, 1) is not None


def _ids_expression(pattern: str, after: str, *, first: bool = True) -> str:
    """The expression of a pattern. ``after``: the expression behind it; ``first``: whether it is at the beginning of a level."""
    if not pattern:
        return after
    mark, rest = pattern[0], pattern[1:]
    no_dot = _NO_DOT if first else ""
    if is_group(pattern):
        end = _end(pattern, 1) or 0
        behind = _ids_expression(pattern[end + 1 :], after, first=False)
        inner = "|".join(_ids_expression(part, "", first=first) for part in _parts(pattern[2:end]))
        if mark == "!":
            return f"{no_dot}(?!(?:{inner}){behind}\\Z)[^/]*{behind}"
        return f"(?:{inner}){_GROUPS[mark]}{behind}"
    if pattern.startswith("**/") and first:
        return f"(?:{_NO_DOT}[^/]+/)*" + _ids_expression(pattern[3:], after)
    if mark == "*":
        many = "(?:[^/]|/(?!\\.))*" if pattern.startswith("**") else "[^/]*"
        return no_dot + many + _ids_expression(rest.lstrip("*") if many != "[^/]*" else rest, after, first=False)
    if mark == "?":
        return f"{no_dot}[^/]{_ids_expression(rest, after, first=False)}"
    if mark == "[" and "]" in rest[1:]:
        end = rest.index("]", 1)
        return f"{no_dot}[{_ids_characters(rest[:end])}]{_ids_expression(rest[end + 1 :], after, first=False)}"
    if mark == "\\" and rest:
        mark, rest = rest[0], rest[1:]
    return re.escape(mark) + _ids_expression(rest, after, first=mark == "/")


def _ids_characters(inner: str) -> str:
    negated = inner[:1] in ("!", "^")
    kept = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if negated else inner)
    return f"^/{kept}" if negated else kept


def _end(pattern: str, begin: int) -> int | None:
    """The index of the parenthesis that closes the one at ``begin``."""
    depth = 0
    for position in range(begin, len(pattern)):
        depth += {"(": 1, ")": -1}.get(pattern[position], 0)
        if depth == 0:
            return position
    return None


def _parts(inner: str) -> list[str]:
    """The texts between the bars of a group, where groups within stay whole."""
    parts, depth = [""], 0
    for mark in inner:
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if mark == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += mark
    return parts


NOT = "!"
_COMMA = re.compile(r"(?<!\\),(?![^{}]*\})(?![^()]*\))(?![^\[\]]*\])")


def split_patterns(text: str) -> list[str]:
    """The patterns of a text with commas between them; commas in brackets of any kind, and behind a backslash, belong to a pattern."""
    return _COMMA.split(text)


def id_filter(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A function that says whether an id matches one of the patterns (or there are none but negated ones) and none of those that are
    negated by a leading ``!``. Raises ValueError for a pattern that can't be read or stands for too many."""
    unwanted = _compiled([pattern.removeprefix(NOT) for pattern in patterns if _is_unwanted(pattern)])
    wanted = _compiled([pattern for pattern in patterns if not _is_unwanted(pattern)])

    def fits(test_id: str) -> bool:
        if wanted is not None and wanted.fullmatch(test_id) is None:
            return False
        return unwanted is None or unwanted.fullmatch(test_id) is None

    return fits


def _is_unwanted(pattern: str) -> bool:
    return pattern.startswith(NOT) and not is_group(pattern)


def _compiled(patterns: Sequence[str]) -> re.Pattern[str] | None:
    return compiled_ids(patterns) if patterns else None
