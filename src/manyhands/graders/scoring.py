"""What a grader's score comes to by the keys that all kinds have (weight, required, min_score, negate), and one score from many.

A grader that breaks says so: it never counts as a score of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from manyhands.core.errors import GraderError, ItemError, ManyhandsError
from manyhands.core.redaction import KNOWN
from manyhands.core.statistics import inverse, weighted_mean
from manyhands.graders.preprocessors import PreprocessorEntry, with_files
from manyhands.graders.protocol import (
    LEFT_OUT,
    PASS_LIMIT,
    Candidate,
    Grader,
    Grading,
    Score,
    is_answer_only,
    verdict_of,
)
from manyhands.tools.services.steps import together

_MAX_ERROR = 2000


@dataclass(frozen=True, slots=True)
class Configured:
    """A grader with the keys that all kinds have.

    Both minimums (``required`` and ``min_score``) are held against the value after ``negate``.
    """

    grader: Grader
    name: str
    type: str
    weight: float = 1.0
    required: float | bool | None = None
    """The minimum; True: ``min_score``, or without one the run's pass limit; None: not required."""
    negate: bool = False
    """The value becomes 1 − value, hits and misses are swapped, and the verdict is that of the new value (so what was borderline at 0.7
    fails at 0.3)."""
    min_score: float | None = None
    """The verdict is pass from this score on, and fail below it."""
    preprocessors: tuple[PreprocessorEntry, ...] = ()
    """For files in the answer."""

    @property
    def answer_only(self) -> bool:
        """As ``is_answer_only``; what reads files in the answer looks at more than its text."""
        return is_answer_only(self.grader) and not self.preprocessors

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        score, limit = checked(await self._found(candidate, grading)), grading.pass_limit
        if self.negate and score.value is not None:
            score = negated(score, limit)
        minimum, verdict = self._minimum(limit), score.verdict or verdict_of(score.value or 0.0, limit)
        if self.min_score is not None and score.value is not None:
            verdict = own_verdict(score.value, verdict, self.min_score, limit)
        mine = (self.name, self.type, self.weight, minimum, self.min_score)
        if verdict == score.verdict and mine == (
            score.name,
            score.type,
            score.weight,
            score.minimum,
            score.min_score,
        ):
            return score
        return Score(  # as dataclasses.replace would, in a tenth of the time
            self.name,
            self.type,
            score.value,
            verdict,
            score.hits,
            score.misses,
            score.reasoning,
            self.weight,
            minimum,
            score.details,
            score.scores,
            score.error,
            score.usage,
            self.min_score,
            score.left_out,
        )

    def _minimum(self, pass_limit: float) -> float | None:
        if self.required is None or self.required is False:
            return None
        if self.min_score is not None:
            return self.min_score
        return pass_limit if self.required is True else self.required

    async def _found(self, candidate: Candidate, grading: Grading) -> Score:
        try:
            if self.preprocessors:
                candidate = await with_files(candidate, self.preprocessors, grading)
            return await self.grader.grade(candidate, grading)
        except GraderError as error:
            return failed(self.name, self.type, str(error))
        except ManyhandsError:
            raise
        except Exception as error:  # the boundary to graders of other packages, which may raise anything
            if isinstance(error, ExceptionGroup) and error.subgroup(_is_the_engines) is not None:
                raise  # of a composite, several of whose members could not go on
            return failed(self.name, self.type, " ".join(f"{type(error).__name__}: {error}".split()))


def _is_the_engines(error: BaseException) -> bool:
    return isinstance(error, ManyhandsError) and not isinstance(error, GraderError)


def own_verdict(value: float, verdict: str, min_score: float, pass_limit: float) -> str:
    """The verdict of a grader that has a ``min_score``: pass from it on, else fail. ``verdict``: what it was by the run's pass limit; where
    something else made it fail (a required rubric, an aggregator's program), it stays so."""
    overruled = verdict == "fail" and verdict_of(value, pass_limit) != "fail"
    return "pass" if value >= min_score and not overruled else "fail"


def failed(name: str, kind: str, error: str) -> Score:
    """What is left of a grader that broke: no value."""
    return Score(name, kind, None, "error", error=KNOWN.text(error)[:_MAX_ERROR])


def checked(score: Score) -> Score:
    """The score with a value from 0 to 1, or without one and with an error, or with what there was nothing to compare for."""
    if score.left_out is not None and score.error is None:
        return score
    if score.error is not None or score.value is None:
        return replace(score, value=None, verdict="error", error=score.error or "the grader gave no score")
    if not isfinite(score.value):
        return replace(score, value=None, verdict="error", error=f"the grader gave {score.value} as its score")
    return score if 0 <= score.value <= 1 else replace(score, value=min(max(score.value, 0.0), 1.0))


def negated(score: Score, pass_limit: float) -> Score:
    """The opposite of a score that has a value."""
    before = score.value or 0.0
    value = inverse(before)
    reasoning = f"[Negated] {score.reasoning or ''}".rstrip() + f" (original score {before:g})"
    return replace(
        score,
        value=value,
        verdict=verdict_of(value, pass_limit),
        hits=score.misses,
        misses=score.hits,
        reasoning=reasoning,
    )


@dataclass(slots=True)  # not frozen: see Outcome
class Total:
    """What the scores of one answer come to."""

    value: float | None
    """0 to 1; None if a grader broke, and then ``error`` names it, or if none found anything to compare."""
    verdict: str
    hits: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()
    reasoning: str | None = None
    """None if no score has any."""
    error: str | None = None
    left_out: tuple[str, ...] = ()
    """Graders that found nothing to compare, and why."""


def combine(scores: Sequence[Score], pass_limit: float = PASS_LIMIT) -> Total:
    """The scores of all graders of a test as one.

    ::

        value = Σ(score · weight) ÷ Σ(weight)        0 if all weights are 0, or if a required grader is below its minimum

    If a grader broke there is no value, whatever the others say and however little it weighs. One that found nothing to compare counts as
    if it were not there; if there is no other, there is no value. What is below its minimum is the first of the misses. Raises ValueError
    for no scores at all.
    """
    if not scores:
        raise ValueError("there are no scores to combine")
    if len(scores) == 1 and (alone := _alone(scores[0], pass_limit)) is not None:
        return alone
    hits = tuple([hit for score in scores for hit in score.hits])
    misses = tuple([miss for score in scores for miss in score.misses])
    reasoning = " | ".join([f"{score.name}: {score.reasoning}" for score in scores if score.reasoning]) or None
    error = "; ".join([f"{score.name}: {score.error or 'no score'}" for score in scores if broken(score)]) or None
    left_out = tuple([f"{score.name}: {score.left_out}" for score in scores if score.left_out is not None])
    if error is not None:
        return Total(None, "error", hits, misses, reasoning, error, left_out)
    counted = heeded(scores)
    if not counted:
        return Total(None, LEFT_OUT, hits, misses, reasoning, left_out=left_out)
    below = short(counted)
    if below:
        misses = (*[f"{score.name}: {shortfall(score)}" for score in below], *misses)
        return Total(0.0, verdict_of(0.0, pass_limit), hits, misses, reasoning, left_out=left_out)
    if left_out and not any(score.weight for score in counted):
        return Total(None, LEFT_OUT, hits, misses, reasoning, left_out=left_out)
    value = weighted_mean([(score.value or 0.0, score.weight) for score in counted])
    return Total(value, verdict_of(value, pass_limit), hits, misses, reasoning, left_out=left_out)


def _alone(score: Score, pass_limit: float) -> Total | None:
    """What most tests come to, which have one grader; None if there is more to be said."""
    value, minimum = score.value, score.minimum
    if value is None or score.error is not None or score.reasoning or (minimum is not None and value < minimum):
        return None
    value = value if score.weight else 0.0
    return Total(value, verdict_of(value, pass_limit), score.hits, score.misses)


def broken(score: Score) -> bool:
    """Whether the grader itself failed."""
    return score.error is not None or (score.value is None and score.left_out is None)


def heeded(scores: Sequence[Score]) -> tuple[Score, ...]:
    """Those that found something to compare."""
    return tuple([score for score in scores if score.left_out is None])


def short(scores: Sequence[Score]) -> tuple[Score, ...]:
    """The required ones that are below their minimum."""
    return tuple(
        [
            score
            for score in scores
            if score.minimum is not None and score.value is not None and score.value < score.minimum
        ]
    )


def shortfall(score: Score) -> str:
    """What is wrong with a required score that is below its minimum."""
    value, minimum = f"{score.value:g}", f"{score.minimum:g}"
    if value == minimum:  # they differ further on than people want to read
        value = repr(score.value)
    return f"{value} is below the required {minimum}"


async def grade_all(graders: Sequence[Grader], candidate: Candidate, grading: Grading) -> tuple[Score, ...]:
    """The scores of all graders, in their order. They run at the same time, each with a scope of its own for its steps, which is
    named after its position in the list; so call this once for a context.

    Raises what ``Grader.grade`` raises; if several can't go on for reasons of the item, the first of these ItemErrors alone.
    """
    scopes = (grading.context.scope(f"grader-{index}") for index in range(len(graders)))
    runs = [
        grader.grade(candidate, Grading(scope, grading.judges, grading.scripts, grading.seconds, grading.pass_limit))
        for grader, scope in zip(graders, scopes, strict=True)
    ]
    try:
        return tuple(await together(runs)) if runs else ()
    except ExceptionGroup as group:
        failures, others = group.split(ItemError)
        if failures is None or others is not None:
            raise
        raise _first(failures) from group


def _first(group: ExceptionGroup[ItemError]) -> ItemError:
    error: ItemError | ExceptionGroup[ItemError] = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
