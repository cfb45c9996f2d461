"""The timeline of a conversation: where each test began, spoke, waited and ended, in tokens and in virtual time.

As data for a report, and as lines of text for a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from manyhands.core.text import cut
from manyhands.workloads.memory.conversation.events import MESSAGES, SENDS, Event, EventType

JUMP = 600.0
"""Seconds of virtual time between two events from which on it is shown that time has jumped."""
Stretch = tuple[int, int]
"""From one position of the conversation to another, in tokens since its beginning."""


@dataclass(slots=True)
class Course:
    """One test in the conversation. Positions are tokens since the conversation's beginning."""

    test_id: str
    begin: int
    end: int | None = None
    """None if the log ends before the test does."""
    told: list[int] = field(default_factory=list)
    """Positions of its messages that are no questions."""
    asked: list[int] = field(default_factory=list)
    """Positions of its questions."""
    spoken: list[Stretch] = field(default_factory=list)
    """Its messages with their replies."""
    questions: list[str] = field(default_factory=list)
    """The texts of its questions."""

    @property
    def distance(self) -> int | None:
        """Tokens from its first message to its last question; None for a test without questions."""
        return self.asked[-1] - min(*self.told[:1], *self.asked[:1], self.asked[-1]) if self.asked else None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The tests of a conversation over its tokens."""

    courses: tuple[Course, ...]
    """One for each test, in the order in which they began."""
    filler: tuple[Stretch, ...]
    """Where the conversation was filled."""
    jumps: tuple[tuple[int, float], ...]
    """Where virtual time jumped, and by how many seconds."""
    tokens: int
    """Of the whole conversation."""
    seconds: float
    """Virtual time from its first event to its last."""
    resumes: int
    """How often the conversation was interrupted and resumed."""
    fillers: int
    """Messages of filler."""

    def course(self, test_id: str) -> Course | None:
        """The course of a test; None if it never began."""
        return next((each for each in self.courses if each.test_id == test_id), None)


def timeline_of(events: Iterable[Event], token_len: Callable[[str], int]) -> Timeline:
    """Where everything was. ``token_len``: tokens of a text, which is called once for each message and reply."""
    drawn = _Drawing(token_len)
    for event in events:
        drawn.take(event)
    return drawn.result()


class _Drawing:
    def __init__(self, token_len: Callable[[str], int]) -> None:
        self._token_len = token_len
        self._courses: dict[str, Course] = {}
        self._filler: list[Stretch] = []
        self._jumps: list[tuple[int, float]] = []
        self._tokens = self._sent_at = self._resumes = self._fillers = 0
        self._first: float | None = None
        self._introduced = False
        self._last = 0.0

    def take(self, event: Event) -> None:
        if self._first is None:
            self._introduced = event.type is EventType.SEND_FILL
        self._pass_time(event.timestamp)
        if event.type is EventType.SUITE_RESET:
            self._resumes += 1
        elif event.type is EventType.BEGIN:
            self._courses.setdefault(event.test_id, Course(event.test_id, self._tokens))
        elif event.type is EventType.END and event.test_id in self._courses:
            self._courses[event.test_id].end = self._tokens
        elif event.type in MESSAGES:
            self._message(event)

    def result(self) -> Timeline:
        seconds = 0.0 if self._first is None else self._last - self._first
        # A conversation that begins with an introduction marks its own beginning as if it were resumed there.
        resumes = max(0, self._resumes - self._introduced)
        fillers = self._fillers - self._introduced
        courses = tuple(self._courses.values())
        return Timeline(courses, tuple(self._filler), tuple(self._jumps), self._tokens, seconds, resumes, fillers)

    def _pass_time(self, now: float) -> None:
        if self._first is None:
            self._first = self._last = now
        if now - self._last >= JUMP:
            self._jumps.append((self._tokens, now - self._last))
        self._last = max(self._last, now)

    def _message(self, event: Event) -> None:
        before = self._tokens
        self._tokens += self._token_len(event.message) if event.message else 0
        course = self._courses.get(event.test_id)
        if event.type in SENDS:
            self._sent_at = before
            self._fillers += event.type is EventType.SEND_FILL
            if course is not None:
                (course.asked if event.is_question else course.told).append(before)
                course.questions += [event.message] if event.is_question else []
        elif event.type is EventType.RESPONSE_FILL:
            self._fill(self._sent_at, self._tokens)
        elif course is not None:
            course.spoken.append((self._sent_at, self._tokens))

    def _fill(self, first: int, last: int) -> None:
        """Filler that follows on filler is one stretch."""
        if self._filler and self._filler[-1][1] == first:
            first = self._filler.pop()[0]
        self._filler.append((first, last))


MAX_ROWS = 100
"""Tests that are shown."""
_MAX_NAME = 32


def schedule_text(timeline: Timeline, width: int) -> list[str]:
    """A line for each test, over the tokens of the conversation in ``width`` columns; above them where filler is, below them a scale."""
    courses = timeline.courses[:MAX_ROWS]
    names = [cut(course.test_id, _MAX_NAME) for course in courses]
    margin = max(map(len, [*names, "filler"]))
    columns = _Columns(timeline.tokens, width)
    lines = [f"{'filler':<{margin}}  {_filled(timeline.filler, columns)}".rstrip()]
    lines += [
        f"{name:<{margin}}  {_row(course, columns)}".rstrip() for name, course in zip(names, courses, strict=True)
    ]
    if left := len(timeline.courses) - len(courses):
        lines.append(f"… and {left:,} more tests")
    end = f"{timeline.tokens:,} tokens"
    return [*lines, f"{'':<{margin}}  0{end:>{max(width - 1, len(end) + 1)}}"]


class _Columns:
    def __init__(self, tokens: int, width: int) -> None:
        self._tokens = max(1, tokens)
        self.width = width

    def __call__(self, tokens: int) -> int:
        return min(self.width - 1, tokens * self.width // self._tokens)


def _filled(stretches: tuple[Stretch, ...], columns: _Columns) -> str:
    cells = [" "] * columns.width
    for first, last in stretches:
        for column in range(columns(first), columns(max(first, last - 1)) + 1):
            cells[column] = "░"
    return "".join(cells)


def _row(course: Course, columns: _Columns) -> str:
    cells = [" "] * columns.width
    end = columns.width - 1 if course.end is None else columns(course.end)
    for column in range(columns(course.begin), end + 1):
        cells[column] = "─"
    for mark, positions in (("•", course.told), ("?", course.asked)):
        for tokens in positions:
            cells[columns(tokens)] = mark
    return "".join(cells)
