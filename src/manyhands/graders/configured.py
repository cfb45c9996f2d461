"""What holds for graders of every kind: weight, required, min_score, negate, and that one that breaks says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import isfinite

from manyhands.core.decimals import inverse
from manyhands.core.errors import GraderError, ManyhandsError
from manyhands.core.redaction import KNOWN
from manyhands.graders.preprocessors import PreprocessorEntry
from manyhands.graders.protocol import Candidate, Grader, Grading, Score, verdict_of

_MAX_ERROR = 2000


@dataclass(frozen=True, slots=True)
class Configured:
    """A grader with the keys that all kinds have.

    ``required``: the minimum; True: ``min_score``, or without one the run's pass limit; None: not required. ``min_score``: the verdict is
    pass from this score on, and fail below it. ``negate``: the value becomes 1 − value, hits and misses change places, and the
    verdict is that of the new value (so what was borderline at 0.7 fails at 0.3); both minimums are held against the new value too.
    ``preprocessors``: for files in the answer.
    """

    grader: Grader
    name: str
    type: str
    weight: float = 1.0
    required: float | bool | None = None
    negate: bool = False
    min_score: float | None = None
    preprocessors: tuple[PreprocessorEntry, ...] = ()

    @property
    def answer_only(self) -> bool:
        """Whether it looks at nothing but the answer's text, and waits for nothing."""
        return bool(getattr(self.grader, "answer_only", False)) and not self.preprocessors

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
                candidate = await _with_files(candidate, self.preprocessors, grading)
            return await self.grader.grade(candidate, grading)
        except GraderError as error:
            return failed(self.name, self.type, str(error))
        except ManyhandsError:
            raise
        except Exception as error:  # the boundary to graders of other packages, which may raise anything
            if isinstance(error, ExceptionGroup) and error.subgroup(_is_the_engines) is not None:
                raise  # of a composite, several of whose members could not go on
            return failed(self.name, self.type, " ".join(f"{type(error).__name__}: {error}".split()))


async def _with_files(candidate: Candidate, preprocessors: Sequence[PreprocessorEntry], grading: Grading) -> Candidate:
    """The module is imported where it is needed, as kinds of graders are."""
    found: Candidate = await import_module("manyhands.graders.preprocessors").with_files(
        candidate, preprocessors, grading
    )
    return found


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
