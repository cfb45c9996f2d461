"""The results of tests, and figures of them, as cells of tables: each state has a sign and a word besides its tone."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.core.text import one_line
from manyhands.runs.shown.blocks import Cell, Link, Tone
from manyhands.runs.summaries import brief
from manyhands.workloads.evals.items import ERROR, FAILED, GRADER_ERROR, PASSED
from manyhands.workloads.evals.results.figures import MeanFigure
from manyhands.workloads.evals.results.result_lines import NO_ID, PENDING, WITHOUT_SCORE, TestResult, TrialRecord

MAX_NAME = 120
"""Characters of a name (of a test, a target, a tag) that stand in a cell."""
MAX_DOTS = 20
"""Trials that have a sign each."""
_MARKS = {PASSED: "✓", FAILED: "✗", PENDING: "…"}
_TONES: dict[str, Tone] = {PASSED: "good", FAILED: "bad", ERROR: "warn", GRADER_ERROR: "warn"}
_DOTS = {PASSED: "●", FAILED: "○", PENDING: "◌"}


def mark(status: str) -> str:
    """The sign of a status: ✓ passed, ✗ failed, ! an error, … not ended, – anything else."""
    return _MARKS.get(status, "!" if status in WITHOUT_SCORE else "–")


def tone_of(status: str) -> Tone:
    """What a status means to a person."""
    return _TONES.get(status, "muted")


def status_text(status: str) -> str:
    """A status with its sign."""
    return f"{mark(status)} {status.replace('_', ' ')}"


def status_cell(status: str, about: str = "", link: Link | None = None) -> Cell:
    """A status by itself."""
    return Cell(status_text(status), status, tone_of(status), about, link)


def score_text(score: float | None) -> str:
    """A score as people read it."""
    return "–" if score is None else f"{score:.3f}"


def score_cell(score: float | None, tone: Tone = "") -> Cell:
    """A score by itself."""
    return Cell(score_text(score), score, tone)


def result_cell(result: TestResult, link: Link | None = None) -> Cell:
    """What came of a test at a target: the sign, the score or else the status, and a sign for each of several trials."""
    status = result.status
    said = status.replace("_", " ") if result.score is None else score_text(result.score)
    text = " ".join(filter(None, (mark(status), said, dots(result.trials or ()))))
    return Cell(text, result.score, tone_of(status), _why(result), link)


def dots(trials: Sequence[TrialRecord]) -> str:
    """A sign for each trial: ● passed, ○ failed, ! an error, ◌ not ended; of many, how many of them passed."""
    if len(trials) > MAX_DOTS:
        return f"{sum(each['status'] == PASSED for each in trials)}/{len(trials)} ●"
    return "".join(_DOTS.get(each["status"], mark(each["status"])) for each in trials)


def _why(result: TestResult) -> str:
    """The status in words, and what is most to be known of it."""
    parts = [status_text(result.status), brief(result.error or next(iter(result.misses), None))]
    parts += [text for text in (result.reroll_label, result.simulated_label) if text is not None]
    return "; ".join(filter(None, parts))


def name_text(name: str | None) -> str:
    """A name on one line, cut where it is too long."""
    return one_line(name or NO_ID, MAX_NAME)


def name_cell(name: str | None, link: Link | None = None) -> Cell:
    """A name; the whole of it where it is cut."""
    text = name_text(name)
    return Cell(text, about=name if name is not None and text != name else "", link=link)


def estimate_text(found: MeanFigure, *, is_share: bool) -> str:
    """A figure with its interval; a share in per cent."""

    def text(value: float) -> str:
        return f"{100 * value:.1f} %" if is_share else f"{value:.3f}"

    if found["value"] is None:
        return "–"
    interval = found.get("interval")
    if interval is None:
        return text(found["value"])
    return f"{text(found['value'])} [{text(interval['low'])} … {text(interval['high'])}]"


def estimate_cell(found: MeanFigure, *, is_share: bool) -> Cell:
    """The same; how the interval was found beside it."""
    interval = found.get("interval")
    about = "" if interval is None else f"{100 * interval['level']:g} %, {interval['method']}"
    return Cell(estimate_text(found, is_share=is_share), found["value"], about=about)
