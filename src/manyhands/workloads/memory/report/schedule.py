"""How the tests of a conversation lie in it, as lanes of time over its tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from manyhands.core.text import counted
from manyhands.runs.shown.blocks import Cell, Column, Lane, Lanes, Link, Span, Table, Tone
from manyhands.workloads.memory.report.formatting import brief, duration, score_tone, share, whole
from manyhands.workloads.memory.results.timeline import Course, Stretch, Timeline

MAX_LANES = 100
"""Tests that are drawn; the table has all."""
MAX_SPANS = 3_000
"""Spans of all lanes, about: where there are more, those that are next to each other become one."""
ABOUT = (
    "A lane for each test, from its beginning to its end: where it waits, and where it speaks, which is in the colour of its score. Above "
    "them is where the conversation was filled, and where virtual time jumps by 10 minutes or more."
)
_FINEST = 2_000
"""Parts of a lane that can be told apart."""
_MAX_QUESTION = 120

LinkOf = Callable[[str], Link | None]
"""Where a test leads, by its name."""


def schedule_lanes(timeline: Timeline, scores: Mapping[str, float | None], title: str, link_of: LinkOf) -> Lanes:
    """The first tests over the tokens of the conversation. ``scores``: of tests that have ended, by name."""
    gap = 0
    while True:
        lanes = list(_lanes(timeline, scores, link_of, gap))
        if sum(len(lane.spans) for lane in lanes) <= MAX_SPANS or gap > timeline.tokens:
            return Lanes(title, lanes, "tokens of the conversation", "tokens", ABOUT)
        gap = max(2 * gap, timeline.tokens // _FINEST, 1)


def _lanes(timeline: Timeline, scores: Mapping[str, float | None], link_of: LinkOf, gap: int) -> Iterator[Lane]:
    filler = [
        Span(first, last, _filled(last - first), "filler", "muted") for first, last in joined(timeline.filler, gap)
    ]
    jumps = [
        Span(at, at, f"{duration(seconds)} pass at token {at:,}", "time jump")
        for at, seconds in islice(timeline.jumps, _FINEST)
    ]
    yield Lane("filler and time", [*filler, *jumps])
    for course in timeline.courses[:MAX_LANES]:
        score = scores.get(course.test_id)
        tone: Tone = "active" if course.end is None else score_tone(score)
        link = link_of(course.test_id)
        yield Lane(brief(course.test_id), list(_course(course, timeline.tokens, tone, gap)), link)


def _filled(tokens: int) -> str:
    return f"filler, {counted(tokens, 'token')}"


def joined(stretches: Iterable[Stretch], gap: int) -> Iterator[Stretch]:
    """Stretches in order, those as one that are no further apart than ``gap`` tokens."""
    held: Stretch | None = None
    for first, last in stretches:
        if held is not None and gap and first - held[1] <= gap:
            held = (held[0], max(held[1], last))
        else:
            if held is not None:
                yield held
            held = (first, last)
    if held is not None:
        yield held


def _course(course: Course, tokens: int, tone: Tone, gap: int) -> Iterator[Span]:
    """What a test says and asks, in order, and where it waits in between."""
    replied = dict(course.spoken)
    spoken = [(at, replied.get(at, at)) for at in sorted({*course.told, *course.asked, *replied})]
    now = course.begin
    for first, last in joined(spoken, gap):
        if first > now:
            yield Span(now, first, f"waits, {counted(first - now, 'token')}", "waits", "muted")
        asked = course.questions[bisect_left(course.asked, first) : bisect_left(course.asked, max(first + 1, last))]
        said = f"tokens {first:,} to {last:,}"
        if asked:
            yield Span(first, last, f"question, {said}: {brief(asked[-1])[:_MAX_QUESTION]}", "question", tone)
        else:
            yield Span(first, last, f"statement, {said}", "statement", tone)
        now = max(now, last)
    end = tokens if course.end is None else course.end
    if end > now:
        words = "has not ended" if course.end is None else "waits"
        yield Span(now, end, f"{words}, {counted(end - now, 'token')}", "waits", "muted")


COLUMNS = (
    Column("test", "test"),
    Column("begins", "begins at token", is_number=True),
    Column("ends", "ends at token", is_number=True),
    Column("messages", "messages", is_number=True, about="that are no questions"),
    Column("questions", "questions", is_number=True),
    Column("distance", "first message to last question", is_number=True, about="in tokens"),
    Column("score", "score", is_number=True),
)


def schedule_table(courses: Sequence[Course], scores: Mapping[str, float | None], link_of: LinkOf) -> Table:
    """The same in figures, a row for each test."""
    rows = [
        [
            Cell(brief(course.test_id), link=link_of(course.test_id)),
            Cell(whole(course.begin), course.begin),
            Cell("not ended", tone="active") if course.end is None else Cell(whole(course.end), course.end),
            Cell(str(len(course.told)), len(course.told)),
            Cell(str(len(course.asked)), len(course.asked)),
            Cell(whole(course.distance), course.distance),
            score_cell(scores.get(course.test_id)),
        ]
        for course in courses
    ]
    return Table(COLUMNS, rows)


def score_cell(score: float | None) -> Cell:
    """A score from 0 to 1, as a cell of a heat map."""
    if score is None:
        return Cell(share(score), tone="muted")
    return Cell(share(score), score, share=min(1.0, max(0.0, score)))
