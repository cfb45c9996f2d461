"""What graders found, as parts of a page: for all workloads whose items' records hold a grade."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.core.outcomes import GRADE
from manyhands.core.text import are, counted
from manyhands.runs.shown.blocks import Block, Cell, Column, Fact, Facts, Fold, Note, Table, Text, Value
from manyhands.runs.shown.cells import number_cell, score_cell, value_cell, verdict_cell

_MAX_DEPTH = 6
"""Composites within composites that are shown; what is deeper is in the record."""
_MAX_LINES = 200
"""Hits, misses and checks of a grader that are shown, and graders on one level."""
_MAX_GRADERS, _MAX_ALL_LINES = 200, 2_000
"""Graders of an item within all others that are shown with what they found, and hits, misses and checks of all of them."""
_WIDTH = 300
_GRADERS = (
    Column("grader", "Grader"),
    Column("type", "Type"),
    Column("verdict", "Verdict"),
    Column("score", "Score", is_number=True),
    Column("weight", "Weight", is_number=True),
    Column("hits", "Hits", is_number=True, about="What the answer has."),
    Column("misses", "Misses", is_number=True, about="What it lacks."),
)
_LINES = (Column("found", "Found"), Column("text", "What"))
_CHECKS = (
    Column("check", "Check"),
    Column("found", "Found"),
    Column("score", "Score", is_number=True),
    Column("reasoning", "Reasoning"),
)


def graded_blocks(record: Mapping[str, Any] | None) -> Iterator[Block]:
    """The grade in an item's record; nothing for one that was not graded."""
    grade = (record or {}).get(GRADE)
    if isinstance(grade, Mapping):
        yield from grade_blocks(
            grade.get("score"), grade.get("verdict"), grade.get("scores") or (), threshold=grade.get("threshold")
        )


def grade_blocks(
    score: float | None, verdict: str | None, scores: Sequence[Mapping[str, Any]], *, threshold: float | None = None
) -> Iterator[Block]:
    """The score of an item, a table of its graders, and a fold for each of them that has more to say. ``scores``: of each grader, as
    results hold them; ``threshold``: the score from which on the verdict is pass."""
    facts = [Fact("Score", score_cell(score, verdict)), Fact("Verdict", verdict_cell(verdict))]
    if threshold is not None:
        facts.append(Fact("Threshold", number_cell(threshold, ".3g"), "The score from which on the verdict is pass."))
    yield Facts(facts, title="Grade")
    if scores:
        yield Table(_GRADERS, [_row(each) for each in scores[:_MAX_LINES]], title="Graders")
        yield from _more(len(scores) - _MAX_LINES, "grader")
    room = _Room()
    for each in scores[:_MAX_LINES]:
        if blocks := list(_found(each, _MAX_DEPTH, room)):
            yield _fold(each, blocks)


@dataclass(slots=True)
class _Room:
    """How much more of an item's grade is shown: graders hold others, and each has lists of its own."""

    graders: int = _MAX_GRADERS
    lines: int = _MAX_ALL_LINES

    def shown(self, lines: Sequence[Any]) -> Sequence[Any]:
        """The lines that there is room for."""
        found = lines[: min(_MAX_LINES, self.lines)]
        self.lines -= len(found)
        return found


def _more(count: int, noun: str) -> Iterator[Block]:
    """A note about those that are not shown; nothing if there are none."""
    if count > 0:
        yield Note(f"{counted(count, f'more {noun}')} {are(count)} in the record only.", "muted")


def _fold(score: Mapping[str, Any], blocks: Sequence[Block]) -> Fold:
    value, verdict = score.get("score"), score.get("verdict")
    cells = (verdict_cell(verdict), score_cell(value, verdict))
    return Fold(_name(score), blocks, cells=cells, is_open=verdict not in ("pass", "left_out"))


def _name(score: Mapping[str, Any]) -> str:
    return str(score.get("name") or score.get("type") or "grader")


def _row(score: Mapping[str, Any]) -> list[Cell]:
    verdict = score.get("verdict")
    return [
        value_cell(_name(score)),
        value_cell(score.get("type")),
        verdict_cell(verdict),
        score_cell(score.get("score"), verdict),
        number_cell(score.get("weight"), ".3g"),
        number_cell(len(score.get("hits") or ())),
        number_cell(len(score.get("misses") or ())),
    ]


def _found(score: Mapping[str, Any], depth: int, room: _Room) -> Iterator[Block]:
    """What a grader has to say besides its score."""
    if error := score.get("error"):
        yield Note(f"The grader itself failed: {error}", "bad")
    if why := score.get("left_out"):
        yield Note(f"Left out, as there is nothing to compare with: {why}", "muted")
    if "required" in score:
        yield Note(f"Required: it must reach {score['required']}, whatever the other graders find.")
    details = score.get("details")
    checks = details.get("checks") if isinstance(details, Mapping) else None
    checks = [each for each in checks if isinstance(each, Mapping)] if isinstance(checks, list) else []
    if checks:
        shown = room.shown(checks)
        yield Table(_CHECKS, [_check(each) for each in shown], title="Checks")
        yield from _more(len(checks) - len(shown), "check")
    lines = [("miss", each) for each in score.get("misses") or ()] + [("hit", each) for each in score.get("hits") or ()]
    if lines:
        shown = room.shown(lines)
        yield Table(_LINES, [_line(*each) for each in shown], title="Misses and hits")
        yield from _more(len(lines) - len(shown), "line")
    if score.get("reasoning"):
        yield Text(str(score["reasoning"]), title="Reasoning")
    if isinstance(details, Mapping) and (rest := {name: each for name, each in details.items() if name != "checks"}):
        yield Fold("Details", [Value(rest)])
    parts = score.get("scores") or ()
    for place, each in enumerate(parts):
        if not depth or room.graders <= 0:
            yield from _more(len(parts) - place, "grader")
            return
        room.graders -= 1
        yield _fold(each, [Table(_GRADERS, [_row(each)]), *_found(each, depth - 1, room)])


def _line(found: str, text: Any) -> list[Cell]:
    return [Cell(found, tone="bad" if found == "miss" else "good"), value_cell(text, width=_WIDTH)]


def _check(check: Mapping[str, Any]) -> list[Cell]:
    satisfied = check.get("satisfied")
    found = Cell("met", tone="good") if satisfied is True else Cell("not met", tone="bad")
    return [
        value_cell(check.get("id")),
        found if isinstance(satisfied, bool) else Cell(""),
        number_cell(check.get("score"), ".3g"),
        value_cell(check.get("reasoning"), width=_WIDTH),
    ]
