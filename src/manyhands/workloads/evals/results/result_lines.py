"""The result of each test at each target, made of the run's items.

Figures are JSON numbers as JavaScript writes them, 1 and not 1.0; what came from the test or its target stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from statistics import stdev
from typing import Any, ClassVar, Required, Self, TypedDict, cast

from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState
from manyhands.core.statistics import mean, weighted_mean
from manyhands.engine.contract import ItemRow, ReplacedOutcome
from manyhands.graders.protocol import ScoreRecord, verdict_of
from manyhands.workloads.evals.items import (
    COST_LIMIT,
    DEPENDENCY_FAILED,
    ERROR,
    FAILED,
    FAILED_DEPENDENCIES,
    GRADER_ERROR,
    INVALID,
    NEEDLESS,
    PASS_AT_K,
    PASSED,
    PASSED_BEFORE,
    RERUN,
    SKIPPED,
    UNGRADED,
    ItemRecord,
)
from manyhands.workloads.evals.targets.answer_figures import FIGURES, NUMBERS, AnswerFigures, TrialFigures

PENDING = "pending"
"""The status of a test that has not ended."""
STATUSES = (PASSED, FAILED, ERROR, GRADER_ERROR, SKIPPED, UNGRADED, INVALID, PENDING)
"""All statuses of tests; their counts add up to the number of tests."""
WITHOUT_SCORE = (ERROR, GRADER_ERROR)
"""The statuses of tests that are errors."""
MEAN, CONFIDENCE = "mean", "confidence_interval"
"""Strategies for samples, besides ``PASS_AT_K``."""
NO_ID = "(no id)"
"""The name of an invalid test of which not even the id could be read."""


class TrialRecord(TrialFigures, total=False):
    """One of several samples of a test; fields that are not known are left out."""

    attempt: Required[int]
    """The number of the sample, from 0."""
    score: float
    verdict: str
    status: Required[str]
    scores: list[ScoreRecord]
    answer: str
    error: str


class Aggregation(TypedDict, total=False):
    """How the samples of a test became one result."""

    strategy: Required[str]
    """``pass_at_k``, ``mean`` or ``confidence_interval``."""
    passed_attempts: Required[int]
    """Samples that passed."""
    total_attempts: Required[int]
    """Samples that were made."""
    mean: float
    min: float
    max: float
    ci95_lower: float
    ci95_upper: float
    stddev: float
    planned_attempts: int
    """Samples that were planned, where fewer were made as the others proved needless."""
    stops_early: bool
    """True where no sample follows one that passed."""


@dataclass(slots=True, kw_only=True)
class TestResult(AnswerFigures):
    """What came of a test at one target: a line of ``results.jsonl``, whose fields have this order, the figures behind ``output``. What is
    None is left out there, but for the fields without a default."""

    __test__: ClassVar[bool] = False  # it is no test of pytest's

    timestamp: str | None
    """When the test ended, as ISO 8601 in UTC with milliseconds."""
    test_id: str | None
    """None for an invalid test of which not even the id could be read."""
    dataset: str
    """What the eval file is called."""
    conversation_id: str | None = None
    score: float | None
    """From 0 to 1; None without one."""
    status: str
    """One of ``STATUSES``."""
    verdict: str | None = None
    """pass, borderline or fail."""
    threshold: float | None = None
    """The score from which on the test has passed."""
    hits: list[str]
    misses: list[str]
    answer: str
    """The text of the target's answer."""
    target: str | None
    """None for an invalid test, which no target was run with."""
    reasoning: str | None = None
    input: list[dict[str, Json]]
    """The test's messages."""
    expected_output: list[dict[str, Json]] | None = None
    criteria: str | None = None
    scores: list[ScoreRecord] | None = None
    """What each grader found."""
    error: str | None = None
    """What went wrong, or why the test was left out."""
    cause: str | None = None
    """Why there is no score."""
    trace: dict[str, Json] | None = None
    """A summary of the target's tool calls."""
    output: list[dict[str, Json]] | None = None
    """The target's messages."""
    notices: list[str] | None = None
    """Lines for the person."""
    file_changes: str | None = None
    """What the target changed in its workspace, as a diff."""
    collected: str | None = None
    """What the target's command `collect` printed at the end."""
    collected_problem: str | None = None
    """Why that is not to be relied on, such as `exit code 1`."""
    before_each_output: str | None = None
    """What the hook printed that ran before the test."""
    after_each_output: str | None = None
    """What the hook printed that ran after the test."""
    simulated: bool | None = None
    """True where a simulated model answered."""
    metadata: dict[str, Json] | None = None
    tags: list[str] | None = None
    group: str | None = None
    """What the test shares with others that are not independent of it."""
    turns: list[dict[str, Json]] | None = None
    """Of a conversation: what was said, answered and scored, turn by turn."""
    depends_on: list[str] | None = None
    failed_dependencies: list[str] | None = None
    attempts: int | None = None
    """How often the test was attempted, where more than once."""
    rerolls: int | None = None
    """How often the test was run again from nothing after it had ended; None if never. Its score is then no first try."""
    first_status: str | None = None
    """Of a test that was: its status when it had ended first."""
    first_score: float | None = None
    """Its score then, if it had one."""
    aggregation: Aggregation | None = None
    trials: list[TrialRecord] | None = None
    """The samples, where a test has several."""
    cost_limited: bool | None = None
    """True where samples were not made because those before had cost what they may."""
    before_all_output: str | None = None
    """What the hook printed that ran before all tests; in the first result of an eval file that has a workspace."""
    after_all_output: str | None = None
    """What the hook printed that ran after all tests; in the same result."""
    workspace_path: str | None = None
    """Where the workspace is kept: absolute; as ``results`` gives it, below the run folder."""

    def to_json(self) -> dict[str, Json]:
        """As it is written."""
        values = zip(_FIELDS, _values_of(self), strict=True)
        return {name: value for name, value in values if value is not None or name in _ALWAYS}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Self:
        """What ``to_json`` has given; keys that are not known are passed over. Raises ValueError if one is missing."""
        if missing := [name for name in _ALWAYS if name not in value]:
            raise ValueError(f"no result of a test (it has no {missing[0]})")
        return cls(**{name: value[name] for name in _FIELDS if name in value})

    @property
    def simulated_scores(self) -> bool:
        """Whether a simulated model had a say in its scores, those of its samples included."""
        return any(score.get("simulated") for scores in self._all_scores() for score in scores)

    @property
    def passed(self) -> bool:
        """Whether its score is at or above its threshold."""
        return self.status == PASSED

    @property
    def reroll_label(self) -> str | None:
        """That it is no first try, and what that came to, for people; None if it is one."""
        if self.rerolls is None:
            return None
        first = self.first_status if self.first_score is None else f"{self.first_score:.3f}"
        return f"re-rolled {'once' if self.rerolls == 1 else f'{self.rerolls} times'}; first: {first}"

    @property
    def simulated_label(self) -> str | None:
        """What of it is made up, for people; None if nothing is."""
        return "simulated" if self.simulated else "simulated judge" if self.simulated_scores else None

    @property
    def graders_left_out(self) -> set[str]:
        """The names of the graders that had nothing to compare, in any of its samples; of a composite's members behind its own."""
        return {name for scores in self._all_scores() for name in _names_left_out(scores)}

    def _all_scores(self) -> Iterator[Sequence[ScoreRecord]]:
        yield self.scores or ()
        for sample in self.trials or ():
            yield sample.get("scores") or ()


def _in_order() -> Iterator[str]:
    """The names of a result's fields as lines have them."""
    figures = [each.name for each in FIGURES]
    for each in fields(TestResult):
        if each.name not in figures:
            yield each.name
        if each.name == "output":
            yield from figures


_FIELDS = tuple(_in_order())
_values_of = attrgetter(*_FIELDS)
_SCORE_FIGURES = ("score", "weight", "required", "min_score")
_ALWAYS = dict.fromkeys(each.name for each in fields(TestResult) if each.default is MISSING)


def results(
    rows: Iterable[ItemRow], thresholds: Sequence[float], replaced: Iterable[ReplacedOutcome] = ()
) -> Iterator[TestResult]:
    """The result of each test and target, in order of the input, streamed; of those that have not ended, with status ``pending``.

    ``thresholds``: of each file's tests, but for those with one of their own; ``replaced``: what items had come to before they were
    executed again.
    """
    return (result for _, result in grouped_results(rows, thresholds, replaced))


def grouped_results(
    rows: Iterable[ItemRow], thresholds: Sequence[float], replaced: Iterable[ReplacedOutcome] = ()
) -> Iterator[tuple[list[ItemRow], TestResult]]:
    """The items of each test and target, one for each sample, and its result; as ``results``."""
    before = dict[int, list[ReplacedOutcome]]()
    for outcome in replaced:
        if outcome.state is ItemState.COMPLETED or (outcome.state is ItemState.FAILED and outcome.why == RERUN):
            before.setdefault(outcome.number, []).append(outcome)
    present = (row for row in rows if not row.left_input)
    for _, same in groupby(present, key=_test_of):
        planned = list(same)
        result = _result(planned, thresholds)
        if before and (rerolls := max(len(before.get(row.number, ())) for row in planned)):
            first = _result([_as_at_first(row, before.get(row.number)) for row in planned], thresholds)
            result.rerolls, result.first_status, result.first_score = rerolls, first.status, first.score
        yield planned, result


def _result(planned: Sequence[ItemRow], thresholds: Sequence[float]) -> TestResult:
    return result_of(planned[0], thresholds) if len(planned) == 1 else _combined(planned, thresholds)


def _as_at_first(row: ItemRow, replaced: Sequence[ReplacedOutcome] | None) -> ItemRow:
    """An item as it was when it had ended first."""
    if not replaced:
        return row
    named = ("state", "reason", "cause", "message", "record", "finished_at")
    return replace(row, **{name: getattr(replaced[0], name) for name in named})


def _test_of(row: ItemRow) -> tuple[Any, ...]:
    payload = row.payload
    if "test" not in payload:
        return (payload["file"], row.key)
    return (payload["file"], payload["test"]["id"], payload["target"])


def result_of(row: ItemRow, thresholds: Sequence[float]) -> TestResult:
    """The result of one item, as if it were the test's only sample. ``thresholds``: as of ``results``."""
    payload, recorded = row.payload, cast(ItemRecord, row.record or {})
    test = payload.get("test", {})
    threshold = test.get("threshold")
    if threshold is None:
        threshold = thresholds[payload["file"]]
    status, score = _status(row, recorded, threshold)
    depends = FAILED_DEPENDENCIES in recorded
    return TestResult(
        timestamp=_time(row.finished_at),
        test_id=test.get("id", payload.get("id")),
        dataset=payload["dataset"],
        conversation_id=test.get("conversation_id"),
        score=plain(score),
        status=status,
        verdict=verdict_of(score, threshold) if score is not None else None,
        threshold=plain(threshold),
        hits=recorded.get("hits") or [],
        misses=recorded.get("misses") or [],
        answer=recorded.get("answer") or "",
        target=payload.get("target"),
        reasoning=recorded.get("reasoning"),
        input=test.get("input", []),
        expected_output=test.get("expected_output"),
        criteria=test.get("criteria"),
        scores=_with_plain_numbers(recorded.get("scores")),
        error=_error(row, recorded) if status in (*WITHOUT_SCORE, SKIPPED, INVALID) else None,
        cause=DEPENDENCY_FAILED if depends else row.cause if status in WITHOUT_SCORE else None,
        trace=recorded.get("trace"),
        output=recorded.get("output"),
        notices=recorded.get("notices") or None,
        file_changes=recorded.get("file_changes"),
        collected=(recorded.get("collected") or {}).get("output"),
        collected_problem=(recorded.get("collected") or {}).get("problem"),
        before_each_output=recorded.get("before_each_output"),
        after_each_output=recorded.get("after_each_output"),
        simulated=recorded.get("simulated") or None,
        metadata=test.get("metadata"),
        tags=test.get("tags"),
        group=payload.get("group"),
        turns=_with_plain_numbers(recorded.get("turns")),
        depends_on=test.get("depends_on"),
        failed_dependencies=recorded.get("failed_dependencies"),
        attempts=row.performances if row.performances > 1 and not depends else None,
        workspace_path=recorded.get("workspace"),
        **{each.name: _plain_figure(recorded.get(each.name)) for each in FIGURES},
    )


def _status(row: ItemRow, recorded: ItemRecord, threshold: float) -> tuple[str, float | None]:
    """A status is taken of the score and today's threshold, which a resume may have changed."""
    if not row.state.final:
        return PENDING, None
    if row.state is ItemState.DISCARDED:
        return (SKIPPED if row.reason in (DEPENDENCY_FAILED, *NEEDLESS) else INVALID), None
    if row.state is not ItemState.COMPLETED:
        return (GRADER_ERROR if recorded.get("status") == GRADER_ERROR else ERROR), None
    score = recorded.get("score")
    if score is None:
        return UNGRADED, None
    return (PASSED if score >= threshold else FAILED), score


def _error(row: ItemRow, recorded: ItemRecord) -> str:
    return str(recorded.get("error") or row.message or row.reason or row.cause or row.state)


def _combined(planned: Sequence[ItemRow], thresholds: Sequence[float]) -> TestResult:
    """One result of all samples of a test: of the fields that are not figures, those of the best one. ``planned``: with those that proved
    needless.

    pass_at_k: the best score; mean: their mean; confidence_interval: the lower end of the t interval of 95 %. A sample that broke leaves
    the test without a score, but for pass_at_k where another one passed.
    """
    rows = [row for row in planned if row.reason not in NEEDLESS] or planned
    samples = [result_of(row, thresholds) for row in rows]
    strategy = (planned[0].payload["test"].get("trials") or {}).get("strategy") or PASS_AT_K
    result = _of_samples(samples, strategy)
    for figure in FIGURES:
        known = [value for each in samples if (value := getattr(each, figure.name)) is not None]
        setattr(result, figure.name, _plain_figure(figure.of_samples(known)) if known else None)
    result.trials = [_sample_record(row.payload["trial"], each) for row, each in zip(rows, samples, strict=True)]
    reasons = {row.reason for row in planned}
    if result.aggregation is not None and len(planned) > len(rows):
        result.aggregation["planned_attempts"] = len(planned)
    stopped = PASSED_BEFORE in reasons or any((row.record or {}).get("stops_early") for row in rows)
    if result.aggregation is not None and stopped:
        result.aggregation["stops_early"] = True
    result.cost_limited = True if COST_LIMIT in reasons else None
    return result


def _of_samples(samples: Sequence[TestResult], strategy: str) -> TestResult:
    """The best one, with what all of them come to together."""
    best = max(samples, key=lambda each: (each.score is not None, each.score or 0))
    passed = sum(each.status == PASSED for each in samples)
    aggregation = Aggregation(strategy=strategy, passed_attempts=passed, total_attempts=len(samples))
    result = replace(best, aggregation=aggregation)
    if strategy == PASS_AT_K and passed:
        return result
    for status in (PENDING, *WITHOUT_SCORE, SKIPPED, UNGRADED):
        broken = next((each for each in samples if each.status == status), None)
        if broken is not None:
            kept = ("status", "score", "verdict", "error", "cause")
            return replace(result, **{name: getattr(broken, name) for name in kept})
    score, figures = _one_score([each.score or 0 for each in samples], strategy)
    threshold = best.threshold or 0
    result.score, result.verdict = plain(score), verdict_of(score, threshold)
    result.status = PASSED if score >= threshold else FAILED
    result.aggregation = cast(Aggregation, {**aggregation, **_each_plain(figures)})
    return result


def _one_score(scores: Sequence[float], strategy: str) -> tuple[float, dict[str, float]]:
    """What several scores come to, and the figures that tell how."""
    if strategy == MEAN:
        value = weighted_mean([(score, 1) for score in scores])
        return value, {"mean": value, "min": min(scores), "max": max(scores)}
    if strategy == CONFIDENCE:
        found, deviation = mean(scores), stdev(scores) if len(scores) > 1 else 0.0
        known = found.interval if found.error or len(scores) == 1 else None
        low, high = (scores[0], scores[0]) if known is None else (known.low, known.high)
        return low, {"mean": found.value or 0.0, "ci95_lower": low, "ci95_upper": high, "stddev": deviation}
    return max(scores), {}


def _sample_record(number: int, sample: TestResult) -> TrialRecord:
    kept = ("score", "verdict", "status", "scores", "answer", "error", *NUMBERS)
    found = {name: value for name in kept if (value := getattr(sample, name)) is not None}
    return cast(TrialRecord, {"attempt": number, **found})


def _names_left_out(scores: Iterable[ScoreRecord], within: str = "") -> Iterator[str]:
    for score in scores:
        inner = [*_names_left_out(score["scores"], f"{within}{score['name']} > ")] if "scores" in score else []
        yield from inner
        if "left_out" in score and not inner:
            yield within + score["name"]


def plain(number: Any) -> Any:
    """A number as an int if it is whole; anything else as it is."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _plain_figure(value: Any) -> Any:
    return _each_plain(value) or None if isinstance(value, dict) else plain(value)


def _each_plain(numbers: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: plain(number) for name, number in (numbers or {}).items()}


def _with_plain_numbers(scores: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
    """The graders' scores (or turns), those of members of a composite too."""
    if scores is None:
        return None
    found = []
    for score in scores:
        figures = {name: plain(score[name]) for name in _SCORE_FIGURES if name in score}
        if "scores" in score:
            figures["scores"] = _with_plain_numbers(score["scores"])
        found.append({**score, **figures})
    return found


def _time(moment: float | None) -> str | None:
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
