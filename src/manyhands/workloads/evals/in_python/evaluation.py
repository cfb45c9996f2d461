"""What came of an evaluation, for the program that asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.core.errors import ManyhandsError
from manyhands.core.text import counted, cut, one_line, printable
from manyhands.workloads.evals.items import FAILED, GRADER_ERROR
from manyhands.workloads.evals.results.result_lines import NO_ID, TestResult
from manyhands.workloads.evals.results.summary import EvalSummary, reroll_line

MAX_LISTED = 20
"""Tests that an error names."""
MAX_ANSWER = 1000
"""Characters of an answer that a message shows."""


class EvaluationFailed(ManyhandsError, AssertionError):
    """Tests of an evaluation did not pass. An AssertionError, so that test runners take it for a failed test."""


@dataclass(frozen=True, slots=True)
class EvalCounts:
    """How many tests there are, each of them in one of the counts, and the figures of all. A test counts once for each of its targets."""

    total: int
    passed: int
    failed: int
    """Below the threshold."""
    errors: int
    """The target gave no answer that could be graded."""
    grader_errors: int
    skipped: int
    """A test that it depends on ended in an error."""
    ungraded: int
    invalid: int
    """Left out, as it can't be run."""
    pending: int
    """Not ended, as the run stopped before."""
    mean_score: float | None
    """Of the tests with a score."""
    pass_rate: float | None
    """Passed of those with a score."""
    cost_usd: float
    """Of all calls of the run, those of judges and of earlier tries included, as far as it is known."""
    rerolled: int
    """Tests whose score is no first try."""

    @classmethod
    def of(cls, figures: EvalSummary) -> EvalCounts:
        counts = dict(figures["tests"])
        return cls(
            total=counts.pop("in"),
            **counts,
            mean_score=figures["mean_score"]["value"],
            pass_rate=figures["pass_rate"]["value"],
            cost_usd=figures["model_usage"]["cost"],
            rerolled=figures["rerolled"]["tests"] if "rerolled" in figures else 0,
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluation that was executed. Iterating gives its results."""

    results: tuple[TestResult, ...] = field(repr=False)
    """One for each test and target, in order, also of those that have not ended."""
    summary: EvalCounts
    figures: EvalSummary = field(repr=False)
    """All of ``eval_summary.json``: intervals, and figures of each target."""
    run_dir: Path
    """Its folder, with the journal, ``results.jsonl`` and ``eval_summary.json``."""
    passed: bool
    """Whether there are tests, and all of them have passed."""
    stopped: str | None = None
    """Why it ended before all tests had; None if they have."""
    notes: tuple[str, ...] = ()
    """What a person should know, a line each."""

    @property
    def score(self) -> float | None:
        """The mean of the tests with a score; None if there are none."""
        return self.summary.mean_score

    @property
    def run_name(self) -> str:
        return self.run_dir.name

    def __iter__(self) -> Iterator[TestResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def result(self, test_id: str, target: str | None = None) -> TestResult:
        """The result of a test; of a target, where there are several. Raises KeyError."""
        for result in self.results:
            if result.test_id == test_id and target in (None, result.target):
                return result
        raise KeyError(test_id if target is None else f"{test_id} @ {target}")

    def raise_for_failures(self) -> None:
        """Raises EvaluationFailed that names the tests that did not pass, if there are any, or if there are no tests."""
        if self.passed:
            return
        wrong = [each for each in self.results if not each.passed]
        lines = [f"{len(wrong):,} of {counted(len(self.results), 'test')} did not pass ({self.run_dir})"]
        lines += [f"  {line}" for each in wrong[:MAX_LISTED] for line in reasons(each)[:1]]
        if len(wrong) > MAX_LISTED:
            lines.append(f"  … and {len(wrong) - MAX_LISTED:,} more")
        if self.stopped is not None:
            lines.append(f"the run stopped: {self.stopped}")
        if (rerolled := reroll_line(self.figures)) is not None:
            lines.append(rerolled)
        raise EvaluationFailed("\n".join(lines))


def reasons(result: TestResult) -> list[str]:
    """Why a test did not pass: a line that names it, one for each grader, and the beginning of the answer."""
    name = one_line(result.test_id or NO_ID) + ("" if result.target is None else f" @ {result.target}")
    label = "" if result.reroll_label is None else f" ({result.reroll_label})"
    if result.status != FAILED:
        what = "grader error" if result.status == GRADER_ERROR else result.status
        why = "" if result.error is None else f": {one_line(result.error, MAX_ANSWER)}"
        return [f"{name}{label}: {what}{why}", *_answer(result)]
    first = next(iter(result.misses), None)
    said = f"{name}{label}: score {result.score or 0:.3f}, below the threshold of {result.threshold or 0:g}"
    lines = [said if first is None else f"{said}: {one_line(first, MAX_ANSWER)}"]
    for score in result.scores or ():
        found = "error" if score.get("score") is None else f"{score['score']:.3f}"
        lines.append(f"  {found}  {one_line(score['name'])}")
        lines += [f"         missed: {one_line(miss, MAX_ANSWER)}" for miss in score.get("misses") or ()]
        if score.get("reasoning"):
            lines.append(f"         {one_line(str(score['reasoning']), MAX_ANSWER)}")
    return [*lines, *_answer(result)]


def _answer(result: TestResult) -> list[str]:
    return [f"answer: {printable(cut(result.answer, MAX_ANSWER))}"] if result.answer else []
