"""Finding a piece of text in a file the way a model remembers it, putting another in its place, and showing what changed.

A piece is looked for three times, each time more forgivingly: exactly; ignoring white space at line ends; ignoring
indentation. The first way that finds it decides. It must be found once only, as a change in the wrong place is worse
than none.

Changes are shown as a unified diff, made in bounded time. Lines that both texts have once are matched first, in their longest common order
("patience" diff, by B. Cohen). Only what lies between them is compared by difflib, whose time grows with the square of its input and worse,
and only as far as a bound allows: beyond it, all lines between two matched ones count as changed.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from manyhands.core.errors import ToolError
from manyhands.core.text import MAX_COMPARED_LENGTH, clean, closest, shorten

_MAX_WORK = 3_000_000
"""Steps, about, that difflib may take for one diff."""
_CONTEXT = 3

Block = tuple[int, int, int]
"""Lines that are the same: where in the old text, where in the new one, how many."""


class LineMatcher(SequenceMatcher[str]):
    """difflib's interface (opcodes, and these grouped) to the blocks that are found in bounded time."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        super().__init__(None, "", "")
        self.a, self.b = old, new
        self._found = [*_blocks(old, new), (len(old), len(new), 0)]

    def get_opcodes(self) -> list[tuple[str, int, int, int, int]]:  # type: ignore[override]
        codes = []
        i = j = 0
        for old_at, new_at, size in self._found:
            if i < old_at or j < new_at:
                tag = "replace" if i < old_at and j < new_at else "delete" if i < old_at else "insert"
                codes.append((tag, i, old_at, j, new_at))
            i, j = old_at + size, new_at + size
            if size:
                codes.append(("equal", old_at, i, new_at, j))
        return codes


def unified(old: Sequence[str], new: Sequence[str], source: str, target: str) -> Iterator[str]:
    """The lines of a unified diff, as ``difflib.unified_diff`` gives them."""
    begun = False
    for group in LineMatcher(old, new).get_grouped_opcodes(_CONTEXT):
        if not begun:
            begun = True
            yield f"--- {source}\n"
            yield f"+++ {target}\n"
        spans = (_span(group[0][1], group[-1][2]), _span(group[0][3], group[-1][4]))
        yield f"@@ -{spans[0]} +{spans[1]} @@\n"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (" " + line for line in old[i1:i2])
            else:
                yield from ("-" + line for line in old[i1:i2])
                yield from ("+" + line for line in new[j1:j2])


def _span(start: int, end: int) -> str:
    """As GNU diff writes a range of lines."""
    if end - start == 1:
        return str(start + 1)
    return f"{start + 1 if end > start else start},{end - start}"


def _blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[Block]:
    """Blocks in order, next to each other joined."""
    last: Block | None = None
    for i, j, size in _pieces(old, new):
        if last is not None and (last[0] + last[2], last[1] + last[2]) == (i, j):
            last = (last[0], last[1], last[2] + size)
            continue
        if last is not None:
            yield last
        last = (i, j, size)
    if last is not None:
        yield last


def _pieces(old: Sequence[str], new: Sequence[str]) -> Iterator[Block]:
    limit = min(len(old), len(new))
    start = next((at for at in range(limit) if old[at] != new[at]), limit)
    end = next((at for at in range(limit - start) if old[-1 - at] != new[-1 - at]), limit - start)
    if start:
        yield 0, 0, start
    i, j = start, start
    left = _MAX_WORK
    for next_i, next_j in [*_once_in_both(old, new, start, end), (len(old) - end, len(new) - end)]:
        left = yield from _between(old[i:next_i], new[j:next_j], i, j, left)
        if next_i < len(old) - end:
            yield next_i, next_j, 1
        i, j = next_i + 1, next_j + 1
    if end:
        yield len(old) - end, len(new) - end, end


def _between(old: Sequence[str], new: Sequence[str], i: int, j: int, left: int) -> Generator[Block, None, int]:
    """Blocks in lines that begin at ``i`` and ``j``. Returns what is left of the steps that may be taken."""
    if not old or not new or left <= 0:
        return left
    counts = Counter(new)
    pairs = sum(counts[line] for line in old)
    left -= (pairs + len(old) + len(new)) * min(len(old), len(new))
    if left > 0 and pairs:
        for a, b, size in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
            if size:
                yield i + a, j + b, size
    return left


def _once_in_both(old: Sequence[str], new: Sequence[str], start: int, end: int) -> list[tuple[int, int]]:
    """Where the lines are that each text has once, in the longest order that is the same in both."""
    positions = _once(new, start, len(new) - end)
    pairs = [(i, positions[line]) for line, i in _once(old, start, len(old) - end).items() if line in positions]
    tops: list[int] = []  # the least position that ends a chain of each length
    ends: list[int] = []
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        length = bisect_left(tops, j)
        before.append(ends[length - 1] if length else -1)
        tops[length : length + 1] = [j]
        ends[length : length + 1] = [number]
    chain = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def _once(lines: Sequence[str], start: int, end: int) -> dict[str, int]:
    counts = Counter(lines[start:end])
    return {lines[at]: at for at in range(start, end) if counts[lines[at]] == 1}


_WAYS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("exact", lambda line: line.removesuffix("\r")),
    ("white space at line ends ignored", str.rstrip),
    ("indentation ignored", str.strip),
)
_SEARCHED = 2000
"""Lines of a file among which the nearest ones to a missing piece are looked for."""
MAX_LINES = 1_000_000
"""Lines of a file that is changed."""
MAX_FOUND = 11
"""Occurrences of a piece that are looked for. One is enough for a change, and two are too many; the others are for the message."""
_FEW = 50
"""Occurrences of a line at each of which the rest of a piece is looked for, rather than in the whole file."""
_MAX_STEPS = 100_000_000
"""Lines that are looked at for one file's changes: what a few hundred changes of the largest file take where all of its lines are alike."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What ``replaced`` came to: the new text, how many positions changed, and how they were found."""

    text: str
    count: int
    how: str


def replaced(text: str, old: str, new: str, *, every: bool = False) -> Replacement:
    """The text with ``new`` for ``old``.

    Raises ToolError if ``old`` is not there, or there more than once and not ``every`` position is meant.
    """
    if not old:
        raise ToolError("old_string is empty: give the text to replace, or use write_file for a new file")
    if old == new:
        raise ToolError("old_string and new_string are the same: nothing would change")
    _check_size(text.count("\n"))
    exact = _replaced_exactly(text, old, new, every)
    return exact if exact is not None else _replaced_by_lines(text, old, new, every)


class Lines:
    """A file's lines, in which pieces are found in about the time that it takes to read them.

    Each line that occurs is numbered, and a text is made of the numbers as characters, so that a piece of lines is found as a piece of
    text is, in linear time. Rare lines are found by their positions. Raises ToolError for a file of too many lines.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        _check_size(len(lines))
        self.lines = lines
        self._forms: dict[str, _Form] = {}
        self._left = _MAX_STEPS

    def find(self, piece: Sequence[str], start: int = 0, limit: int = MAX_FOUND) -> tuple[list[int], str]:
        """Where (line numbers from 0, at or after ``start``) the piece's lines are, at most so many, and by which way they were
        found. Raises ToolError if that takes too long."""
        for how, normal in _WAYS:
            positions = self._positions(self._form(how, normal), [normal(line) for line in piece], start, limit)
            if positions:
                return positions, how
        return [], ""

    def find_apart(self, piece: Sequence[str]) -> tuple[list[int], str]:
        """The same for all positions that don't overlap, as a replacement of every position has them."""
        for how, normal in _WAYS:
            form = self._form(how, normal)
            wanted = form.numbered([normal(line) for line in piece])
            positions: list[int] = []
            position = -1 if wanted is None else form.text.find(wanted)
            while wanted is not None and position >= 0:
                positions.append(position)
                position = form.text.find(wanted, position + len(wanted))
            if positions:
                return positions, how
        return [], ""

    def at(self, piece: Sequence[str], position: int, how: str) -> bool:
        """Whether the piece is at a position, by one of the ways."""
        normal = dict(_WAYS)[how]
        found = self.lines[max(position, 0) : position + len(piece)]
        return len(found) == len(piece) and all(map(lambda one, other: normal(one) == normal(other), found, piece))

    def line(self, text: str, start: int) -> int | None:
        """The first line at or after ``start`` that is this text but for white space around it, or else that holds it."""
        form = self._form(*_WAYS[-1])
        positions = form.positions.get(text, ())
        index = bisect_left(positions, start)
        if index < len(positions):
            return positions[index]
        found = next((at for at in range(start, len(self.lines)) if text in self.lines[at]), None)
        self._spend((len(self.lines) if found is None else found) - start)
        return found

    def _form(self, how: str, normal: Callable[[str], str]) -> _Form:
        if how not in self._forms:
            self._forms[how] = _Form.of([normal(line) for line in self.lines])
        return self._forms[how]

    def _positions(self, form: _Form, piece: list[str], start: int, limit: int) -> list[int]:
        wanted = form.numbered(piece)
        if wanted is None:
            return []
        offset, rare = min(enumerate(form.positions[line] for line in piece), key=lambda each: len(each[1]))
        if len(rare) <= _FEW:
            self._spend(len(rare))
            begins = (position - offset for position in rare)
            return [at for at in begins if at >= start and form.text.startswith(wanted, at)][:limit]
        positions: list[int] = []
        while len(positions) < limit:
            position = form.text.find(wanted, start)
            self._spend((position if position >= 0 else len(form.text)) - start + len(piece))
            if position < 0:
                break
            positions.append(position)
            start = position + 1
        return positions

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise ToolError(
                "there are too many changes for a file of this size with so many lines alike: "
                "send fewer changes at once, each with a line that is rare in the file"
            )


@dataclass(frozen=True, slots=True)
class _Form:
    """Lines as one of the ways sees them."""

    numbers: dict[str, str]
    """A character for each line that occurs."""
    positions: dict[str, list[int]]
    """By line, where it is."""
    text: str
    """The file, made of these characters."""

    @classmethod
    def of(cls, lines: Sequence[str]) -> _Form:
        positions: dict[str, list[int]] = {}
        for at, line in enumerate(lines):
            positions.setdefault(line, []).append(at)
        numbers = {line: chr(number) for number, line in enumerate(positions)}
        return cls(numbers, positions, "".join(map(numbers.__getitem__, lines)))

    def numbered(self, piece: Sequence[str]) -> str | None:
        """The piece, made of the same characters; None if it has a line that the file has not."""
        numbers = [self.numbers.get(line) for line in piece]
        return None if None in numbers else "".join(numbers)  # type: ignore[arg-type]


def line_count(lines: Sequence[str]) -> int:
    """How many lines there are, not counting the empty piece that a split leaves after a final newline."""
    return len(lines) - 1 if lines[-1] == "" else len(lines)


def fitted(new: Sequence[str], piece: Sequence[str], found: Sequence[str]) -> list[str]:
    """The new lines with the indentation and line ends that the found lines have, where the piece had others."""
    ending = "\r" if found and found[0].endswith("\r") else ""
    pairs = [(given, real) for given, real in zip(piece, found, strict=True) if given.strip()]
    given_indent, real_indent = map(_indentation, pairs[0]) if pairs else ("", "")
    result = []
    for line in new:
        bare = line.removesuffix("\r")
        if given_indent != real_indent and bare.strip() and bare.startswith(given_indent):
            bare = real_indent + bare[len(given_indent) :]
        result.append(bare + ending)
    return result


def unified_diff(path: str, before: str | None, after: str | None, new_path: str | None = None) -> str:
    """A unified diff that ``patch`` and ``git apply`` read, but for huge files, which it only names. None stands for no file."""
    if sum(text.count("\n") for text in (before, after) if text is not None) > 4 * MAX_LINES:
        return f"[{path}: too many lines to be shown]\n"
    old = [] if before is None else _diff_lines(before)
    new = [] if after is None else _diff_lines(after)
    source = "/dev/null" if before is None else f"a/{path}"
    target = "/dev/null" if after is None else f"b/{new_path or path}"
    return clean("".join(_with_marks(unified(old, new, source, target))))


def nearest_lines(lines: Sequence[str], piece: Sequence[str]) -> str:
    """The lines of a file that are most like the first line with text of a piece, as advice for the model."""
    wanted = next((line.strip() for line in piece if line.strip()), "")[:MAX_COMPARED_LENGTH]
    candidates = {
        line.strip()[:MAX_COMPARED_LENGTH]: number
        for number, line in reversed(list(enumerate(lines[:_SEARCHED])))
        if line.strip()
    }
    close = closest(wanted, candidates, n=2)
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
        raise _ambiguous("old_string", count, _lines_of(text, old))
    return Replacement(text.replace(old, new), count, "exact")


def _replaced_by_lines(text: str, old: str, new: str, every: bool) -> Replacement:
    lines = text.split("\n")
    piece = old.removesuffix("\n").split("\n")
    fresh = new.removesuffix("\n").split("\n") if new else []
    positions, how = Lines(lines[: line_count(lines)]).find_apart(piece)
    if not positions:
        raise ToolError(f"old_string was not found; {nearest_lines(lines, piece)}")
    if len(positions) > 1 and not every:
        raise _ambiguous("old_string", len(positions), positions)
    changed: list[str] = []
    behind = 0
    for position in positions:
        end = position + len(piece)
        changed += [*lines[behind:position], *fitted(fresh, piece, lines[position:end])]
        behind = end
    return Replacement("\n".join(changed + lines[behind:]), len(positions), how)


def _lines_of(text: str, piece: str) -> list[int]:
    """On which lines, from 0, the first ten positions of a piece begin."""
    found: list[int] = []
    line = behind = 0
    position = text.find(piece)
    while position >= 0 and len(found) < MAX_FOUND - 1:
        line += text.count("\n", behind, position)
        found.append(line)
        behind = position
        position = text.find(piece, position + len(piece))
    return found


def _ambiguous(what: str, count: int, positions: Sequence[int]) -> ToolError:
    shown = ", ".join(str(position + 1) for position in positions[: MAX_FOUND - 1])
    return ToolError(
        f"{what} is there {count} times (lines {shown}): add surrounding lines to it so that it is there once, "
        "or set replace_all"
    )


def _check_size(lines: int) -> None:
    if lines > MAX_LINES:
        raise ToolError(
            f"the file has {lines} lines, and files of at most {MAX_LINES} are changed here: "
            "use a program, such as sed, with the terminal tool"
        )


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _diff_lines(text: str) -> list[str]:
    """Lines with their newline; only a newline ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _with_marks(diff: Iterator[str]) -> Iterator[str]:
    for line in diff:
        yield line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
