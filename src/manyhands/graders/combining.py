"""One score from many: several graders at once, and what their scores come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.agents.tool_running import together
from manyhands.core.decimals import weighted_mean
from manyhands.core.errors import ItemError
from manyhands.graders.protocol import LEFT_OUT, PASS_LIMIT, Candidate, Grader, Grading, Score, verdict_of


@dataclass(slots=True)  # not frozen: see Outcome
class Total:
    """What the scores of one answer come to. ``value``: None if a grader broke, and then ``error`` names it, or if none found anything to
    compare; ``left_out``: those that found nothing to compare, and why; ``reasoning``: None if no score has any."""

    value: float | None
    verdict: str
    hits: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()
    reasoning: str | None = None
    error: str | None = None
    left_out: tuple[str, ...] = ()


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
    named after its place in the list; so call this once for a context.

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
