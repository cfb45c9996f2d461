"""Patterns for names and paths: ``*`` and ``?`` within one level, ``**`` over levels, ``[a-z]``, ``[!a]``, ``{one,other}``."""

from __future__ import annotations

import glob
import re
from pathlib import Path

MARKS = frozenset("*?{")
"""What makes a path a pattern."""
MOST_ALTERNATIVES = 1000
_ANY_LEVELS = "**"


def is_pattern(text: str) -> bool:
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
        if len(done) + len(waiting) > MOST_ALTERNATIVES:
            raise ValueError(f"stands for more than {MOST_ALTERNATIVES} patterns")
    return list(dict.fromkeys(done))


def matching_files(pattern: str, folder: Path) -> list[Path]:
    """Files that fit, sorted by path. Hidden ones only if the pattern says the dot; ``**`` does not go through links to folders, which
    may lead round in circles. Raises ValueError as ``alternatives`` does."""
    found = {
        folder / name
        for each in alternatives(pattern)
        for name in glob.glob(each, root_dir=folder, recursive=True)
        if not _through_a_link(name, each, folder)
    }
    return sorted(path for path in found if path.is_file())


def _through_a_link(name: str, pattern: str, folder: Path) -> bool:
    """Whether a path that fits goes through a link to a folder which ``**`` may stand for."""
    if _ANY_LEVELS not in Path(pattern).parts:
        return False
    fixed = Path(pattern).parts.index(_ANY_LEVELS)
    parts = Path(name).parts
    return any(Path(folder, *parts[:length]).is_symlink() for length in range(fixed + 1, len(parts)))


def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression for whole paths, with ``/`` between levels. Raises ValueError as ``alternatives`` does."""
    try:
        return re.compile("|".join(_expression(each) for each in alternatives(pattern)), re.DOTALL)
    except re.error:
        raise ValueError(f"can't be read as a pattern: {pattern}") from None


def _expression(pattern: str) -> str:
    text, place = "", 0
    while place < len(pattern):
        rest = pattern[place:]
        mark = next(mark for mark in _MEANINGS if rest.startswith(mark))
        if mark == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            text += f"[{_characters(rest[1:end])}]"
            place += end + 1
        else:
            text += _MEANINGS[mark] or re.escape(rest[0])
            place += len(mark) or 1
    return text


_MEANINGS = {"**/": "(?:[^/]+/)*", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "[": "", "": ""}


def _characters(inner: str) -> str:
    negated = inner[:1] in ("!", "^")
    kept = inner[1:] if negated else inner
    return ("^/" if negated else "") + re.sub(r"([\\\[\]^&~|])", r"\\\1", kept)


def _braces(text: str) -> tuple[int, int, list[str]] | None:
    """The innermost braces that stand first and have a comma: where they begin and end, and what is between the commas."""
    for found in re.finditer(r"\{([^{}]*)\}", text):
        if "," in found[1]:
            return found.start(), found.end(), found[1].split(",")
    return None
