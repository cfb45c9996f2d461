"""Unified diffs in bounded time.

Lines that both texts have once are matched first, in their longest common order ("patience" diff, by B. Cohen). Only what lies between
them is compared by difflib, whose time grows with the square of its input and worse, and only as far as a bound allows: beyond it, all
lines between two matched ones count as changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from difflib import SequenceMatcher

_MOST_WORK = 3_000_000
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
    most = min(len(old), len(new))
    start = next((at for at in range(most) if old[at] != new[at]), most)
    end = next((at for at in range(most - start) if old[-1 - at] != new[-1 - at]), most - start)
    if start:
        yield 0, 0, start
    i, j = start, start
    left = _MOST_WORK
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
    places = _once(new, start, len(new) - end)
    pairs = [(i, places[line]) for line, i in _once(old, start, len(old) - end).items() if line in places]
    tops: list[int] = []  # the least place that ends a chain of each length
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
