"""The interleaving of tests as lines of text, for a terminal."""

from __future__ import annotations

from manyhands.memory.report.timeline import Course, Stretch, Timeline

MOST_ROWS = 100
"""Tests that are shown."""
_LONGEST_NAME = 32


def schedule_text(timeline: Timeline, width: int) -> list[str]:
    """A line for each test, over the tokens of the conversation in ``width`` columns; above them where filler is, below them a scale."""
    courses = timeline.courses[:MOST_ROWS]
    names = [_short(course.test_id) for course in courses]
    margin = max(map(len, [*names, "filler"]))
    place = _Places(timeline.tokens, width)
    lines = [f"{'filler':<{margin}}  {_filled(timeline.filler, place)}".rstrip()]
    lines += [f"{name:<{margin}}  {_row(course, place)}".rstrip() for name, course in zip(names, courses, strict=True)]
    if left := len(timeline.courses) - len(courses):
        lines.append(f"… and {left:,} more tests")
    end = f"{timeline.tokens:,} tokens"
    return [*lines, f"{'':<{margin}}  0{end:>{max(width - 1, len(end) + 1)}}"]


class _Places:
    def __init__(self, tokens: int, width: int) -> None:
        self._tokens = max(1, tokens)
        self.width = width

    def __call__(self, tokens: int) -> int:
        return min(self.width - 1, tokens * self.width // self._tokens)


def _filled(stretches: tuple[Stretch, ...], place: _Places) -> str:
    cells = [" "] * place.width
    for first, last in stretches:
        for column in range(place(first), place(max(first, last - 1)) + 1):
            cells[column] = "░"
    return "".join(cells)


def _row(course: Course, place: _Places) -> str:
    cells = [" "] * place.width
    end = place.width - 1 if course.end is None else place(course.end)
    for column in range(place(course.begin), end + 1):
        cells[column] = "─"
    for mark, places in (("•", course.told), ("?", course.asked)):
        for tokens in places:
            cells[place(tokens)] = mark
    return "".join(cells)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
