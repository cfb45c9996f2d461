"""Finding a piece of text in a file the way a model remembers it, and putting another in its place.

A piece is looked for three times, each time more forgivingly: exactly; ignoring white space at line ends; ignoring
indentation. The first way that finds it decides. It must be found once only, as a change in the wrong place is worse
than none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from manyhands.core.errors import ToolError
from manyhands.tools.text import clean, shorten

_WAYS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("exact", lambda line: line.removesuffix("\r")),
    ("white space at line ends ignored", str.rstrip),
    ("indentation ignored", str.strip),
)
_SEARCHED = 2000
"""Lines of a file among which the nearest ones to a missing piece are looked for."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What ``replaced`` came to: the new text, how many places changed, and how they were found."""

    text: str
    count: int
    how: str


def replaced(text: str, old: str, new: str, *, every: bool = False) -> Replacement:
    """The text with ``new`` for ``old``.

    Raises ToolError if ``old`` is not there, or there more than once and not ``every`` place is meant.
    """
    if not old:
        raise ToolError("old_string is empty: give the text to replace, or use write_file for a new file")
    if old == new:
        raise ToolError("old_string and new_string are the same: nothing would change")
    exact = _replaced_exactly(text, old, new, every)
    return exact if exact is not None else _replaced_by_lines(text, old, new, every)


def found_lines(lines: Sequence[str], piece: Sequence[str], start: int = 0) -> tuple[list[int], str]:
    """Where (line numbers from 0, at or after ``start``) the piece's lines are, and by which way they were found."""
    for how, normal in _WAYS:
        wanted = [normal(line) for line in piece]
        have = [normal(line) for line in lines]
        last = len(lines) - len(piece)
        places = [at for at in range(start, last + 1) if have[at] == wanted[0] and have[at : at + len(piece)] == wanted]
        if places:
            return places, how
    return [], ""


def line_count(lines: Sequence[str]) -> int:
    """How many lines there are, not counting the empty piece that a split leaves after a final newline."""
    return len(lines) - 1 if lines[-1] == "" else len(lines)


def fitted(new: Sequence[str], piece: Sequence[str], found: Sequence[str]) -> list[str]:
    """The new lines with the indentation and line ends that the found lines have, where the piece had others."""
    ending = "\r" if found and found[0].endswith("\r") else ""
    pairs = [(asked, real) for asked, real in zip(piece, found, strict=True) if asked.strip()]
    asked_indent, real_indent = map(_indentation, pairs[0]) if pairs else ("", "")
    result = []
    for line in new:
        bare = line.removesuffix("\r")
        if asked_indent != real_indent and bare.strip() and bare.startswith(asked_indent):
            bare = real_indent + bare[len(asked_indent) :]
        result.append(bare + ending)
    return result


def unified_diff(path: str, before: str | None, after: str | None, new_path: str | None = None) -> str:
    """A unified diff that ``patch`` and ``git apply`` read. None stands for no file."""
    old = [] if before is None else _diff_lines(before)
    new = [] if after is None else _diff_lines(after)
    source = "/dev/null" if before is None else f"a/{path}"
    target = "/dev/null" if after is None else f"b/{new_path or path}"
    return clean("".join(_with_marks(difflib.unified_diff(old, new, source, target))))


def nearest_lines(lines: Sequence[str], piece: Sequence[str]) -> str:
    """The lines of a file that are most like the first line with text of a piece, as advice for the model."""
    wanted = next((line.strip() for line in piece if line.strip()), "")[:300]
    candidates = {
        line.strip()[:300]: number for number, line in reversed(list(enumerate(lines[:_SEARCHED]))) if line.strip()
    }
    close = difflib.get_close_matches(wanted, candidates, n=2, cutoff=0.6)
    if not close:
        return "no line is like its first one; read the file again"
    shown = (f"{candidates[line] + 1}|{shorten(lines[candidates[line]], 200)}" for line in close)
    return "the nearest lines are: " + "  ".join(shown)


def _replaced_exactly(text: str, old: str, new: str, every: bool) -> Replacement | None:
    if old not in text and "\r\n" in text and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    count = text.count(old)
    if count == 0:
        return None
    if count > 1 and not every:
        starts = [match.start() for match in re.finditer(re.escape(old), text)]
        raise _ambiguous("old_string", [text.count("\n", 0, start) for start in starts])
    return Replacement(text.replace(old, new), count, "exact")


def _replaced_by_lines(text: str, old: str, new: str, every: bool) -> Replacement:
    lines = text.split("\n")
    piece = old.removesuffix("\n").split("\n")
    fresh = new.removesuffix("\n").split("\n") if new else []
    places, how = found_lines(lines[: line_count(lines)], piece)
    if not places:
        raise ToolError(f"old_string was not found; {nearest_lines(lines, piece)}")
    places = _apart(places, len(piece))
    if len(places) > 1 and not every:
        raise _ambiguous("old_string", places)
    for place in reversed(places):
        end = place + len(piece)
        lines[place:end] = fitted(fresh, piece, lines[place:end])
    return Replacement("\n".join(lines), len(places), how)


def _apart(places: list[int], length: int) -> list[int]:
    kept: list[int] = []
    for place in places:
        if not kept or place >= kept[-1] + length:
            kept.append(place)
    return kept


def _ambiguous(what: str, places: Sequence[int]) -> ToolError:
    shown = ", ".join(str(place + 1) for place in places[:10])
    return ToolError(
        f"{what} is there {len(places)} times (lines {shown}): add surrounding lines to it so that it is there once, "
        "or set replace_all"
    )


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _diff_lines(text: str) -> list[str]:
    """Lines with their newline; only a newline ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _with_marks(diff: Iterator[str]) -> Iterator[str]:
    for line in diff:
        yield line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
