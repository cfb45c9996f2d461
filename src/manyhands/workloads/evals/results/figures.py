"""The figures of an evaluation: counts that add up, scores with intervals, what it cost. Every share says what it is a share of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NotRequired, TypedDict, cast

from manyhands.core.statistics import (
    Interval,
    Mean,
    bootstrap,
    distribution,
    mean,
    pass_at_k,
    pass_power_k,
    pass_rate,
    quantiles,
)
from manyhands.workloads.evals.items import ERROR, FAILED, GRADER_ERROR, PASSED
from manyhands.workloads.evals.results.result_lines import STATUSES, TestResult
from manyhands.workloads.evals.targets.answer_figures import FIGURES, SummaryFigures

MAX_NAMED = 20
"""Tests that are named of those that were run again."""
BINS = 10
"""Bins of the distribution of scores."""
MAX_RESAMPLED = 1000
"""Scores up to which the interval by resampling is found too; beyond, the other one says the same."""
DENOMINATORS = {
    "mean_score": "tests with a score (passed and failed); errors have none and are counted apart",
    "pass_rate": "tests with a score (passed and failed); errors have none and are counted apart",
    "passed_of_all": "all tests of the run, with errors, skipped, ungraded, invalid and pending ones",
    "trials": "tests of which k trials are known: they have a score, or were not needed as one had passed",
}
PLURALS = {PASSED: PASSED, FAILED: FAILED, ERROR: "errors", GRADER_ERROR: "grader_errors"}
"""What the counts of some statuses are called; others have the name of the status."""
_TALLIES = {each.name: each.tally for each in FIGURES}
_FOR_K = (1, 2, 3, 4, 5, 8, 10, 16, 25, 32, 50, 64, 100)


class IntervalFigure(TypedDict):
    """Where the true value is, with that confidence."""

    low: float
    high: float
    level: float
    """Of confidence."""
    method: str


class MeanFigure(TypedDict):
    """A mean, or a share, with what is known of its error."""

    value: float | None
    tests: int
    """How many it is of."""
    clusters: int
    """How many of these are independent of each other."""
    standard_error: float | None
    standard_deviation: float | None
    interval: NotRequired[IntervalFigure | None]
    bootstrap: NotRequired[IntervalFigure | None]
    """The interval by resampling."""


class Distribution(TypedDict):
    """How many scores are in each of equally wide bins."""

    edges: list[float]
    counts: list[int]


class SampleFigures(TypedDict):
    """Of tests with several samples, by the number k of samples, as text."""

    pass_at_k: dict[str, float]
    """The chance that one of k samples passes."""
    pass_power_k: dict[str, float | None]
    """The chance that all of k samples pass; None where that is not known."""
    tests: dict[str, int]
    """How many tests these are of."""


class RerollFigures(TypedDict):
    """Of tests that were run again from nothing after they had ended, and what all tests came to at first."""

    tests: int
    """How many tests were, each counted for each target."""
    ids: list[str]
    """The ids of the first of them, each once."""
    first_passed: int
    """Tests, of all, that had passed when they had ended first."""
    first_mean_score: float | None
    """Of the scores of all tests when they had ended first."""


class ResultFigures(SummaryFigures):
    """Figures of the results of a target, or of all."""

    tests: dict[str, int]
    """How many there are (``in``), and how many of each status."""
    mean_score: MeanFigure
    pass_rate: MeanFigure
    passed_of_all: float | None
    """Tests that passed ÷ all tests."""
    score_quantiles: dict[str, float]
    """``min``, ``median``, ``max``."""
    distribution: Distribution
    trials: NotRequired[SampleFigures]
    rerolled: NotRequired[RerollFigures]
    simulated: int
    """Answers that are made up."""
    simulated_scores: int
    """Tests that a simulated model judged."""
    graders_left_out: dict[str, int]
    """By the names of graders in how many tests they had nothing to compare."""


class TargetFigures(ResultFigures):
    """Figures of the results of one target."""

    target: str


class RunFigures(ResultFigures):
    """Figures of all results of a run."""

    pass_limit: float
    """The threshold that reports state."""
    tests_with_other_limits: dict[str, int]
    """How many tests have another threshold, by the threshold as text."""
    confidence: float | None
    """The level of intervals; None for no intervals."""
    denominators: dict[str, str]
    """What each share is a share of."""
    targets: list[TargetFigures]


def count_name(status: str) -> str:
    """What the count of a status is called in summaries."""
    return PLURALS.get(status, status)


class Figures:
    """Sums over results: of one target, or of all."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._scores: list[float] = []
        self._passed: list[bool] = []
        self._groups: list[str] = []
        self._tallies = {name: _TALLIES[name]() for name in SummaryFigures.__annotations__}
        self._simulated = self._simulated_scores = 0
        self._samples: Counter[_Samples] = Counter()
        self._rerolled: Counter[str] = Counter()
        """The ids of tests that were run again, and with how many targets."""
        self._first_passed, self._first_scored, self._first_total = 0, 0, 0.0
        self._left_out: Counter[str] = Counter()
        """Graders, and how many tests they had nothing to compare in."""

    def add(self, result: TestResult, group: str) -> None:
        """Count a result. ``group``: what it shares with results that it depends on."""
        self._counts[result.status] += 1
        if result.score is not None:
            self._scores.append(result.score)
            self._passed.append(result.status == PASSED)
            self._groups.append(group)
        for name, tally in self._tallies.items():
            if (value := getattr(result, name)) is not None:
                tally.add(value)
        if result.rerolls is not None:
            self._rerolled[result.test_id or ""] += 1
        is_first = result.rerolls is None
        self._first_passed += (result.status if is_first else result.first_status) == PASSED
        score = result.score if is_first else result.first_score
        if score is not None:
            self._first_scored += 1
            self._first_total += score
        self._simulated += bool(result.simulated)
        self._simulated_scores += result.simulated_scores
        self._left_out.update(result.graders_left_out)
        if (samples := _Samples.of(result)) is not None:
            self._samples[samples] += 1

    def join(self, other: Figures) -> None:
        """Count all that another one has counted."""
        self._counts.update(other._counts)
        self._scores += other._scores
        self._passed += other._passed
        self._groups += other._groups
        for name, tally in self._tallies.items():
            tally.join(other._tallies[name])
        self._rerolled.update(other._rerolled)
        self._first_passed += other._first_passed
        self._first_scored += other._first_scored
        self._first_total += other._first_total
        self._simulated += other._simulated
        self._simulated_scores += other._simulated_scores
        self._samples.update(other._samples)
        self._left_out.update(other._left_out)

    def to_json(self, level: float | None, seed: int) -> ResultFigures:
        """``level``: of confidence, None for no intervals; ``seed``: of resampling."""
        counts = {count_name(status): self._counts[status] for status in STATUSES}
        total = sum(counts.values())
        figures = {
            "tests": {"in": total, **counts},
            "mean_score": self._mean_score(level, seed),
            "pass_rate": _mean_figure(pass_rate(self._passed, self._groups, level or 0.95), level),
            "passed_of_all": counts[PASSED] / total if total else None,
            "score_quantiles": dict(
                zip(("min", "median", "max"), quantiles(self._scores, (0.0, 0.5, 1.0)), strict=False)
            ),
            "distribution": {
                "edges": [each / BINS for each in range(BINS + 1)],
                "counts": distribution(self._scores, BINS),
            },
            **({"trials": self._sample_figures()} if self._samples else {}),
            **({"rerolled": self._reroll_figures()} if self._rerolled else {}),
            **{name: tally.to_json() for name, tally in self._tallies.items()},
            "simulated": self._simulated,
            "simulated_scores": self._simulated_scores,
            "graders_left_out": dict(self._left_out),
        }
        return cast(ResultFigures, figures)

    def _mean_score(self, level: float | None, seed: int) -> MeanFigure:
        found = _mean_figure(mean(self._scores, self._groups, level or 0.95), level)
        if level is not None and len(self._scores) <= MAX_RESAMPLED:
            resampled = bootstrap(self._scores, self._groups, level=level, seed=seed)
            found["bootstrap"] = _interval_figure(resampled)
        return found

    def _reroll_figures(self) -> RerollFigures:
        return {
            "tests": self._rerolled.total(),
            "ids": list(self._rerolled)[:MAX_NAMED],
            "first_passed": self._first_passed,
            "first_mean_score": self._first_total / self._first_scored if self._first_scored else None,
        }

    def _sample_figures(self) -> SampleFigures:
        """pass^k is None where samples ended with the first that passed: what further ones would have come to is not known."""
        max_k = max(samples.known for samples in self._samples)
        wanted = [k for k in dict.fromkeys((*_FOR_K, max_k)) if k <= max_k]
        at: dict[str, float] = {}
        power: dict[str, float | None] = {}
        tests: dict[str, int] = {}
        for k in wanted:
            fit = {samples: count for samples, count in self._samples.items() if samples.known >= k}
            number = sum(fit.values())
            tests[str(k)] = number
            at[str(k)] = sum(count * samples.pass_at(k) for samples, count in fit.items()) / number
            each = [(count, samples.pass_power(k)) for samples, count in fit.items()]
            known = [count * value for count, value in each if value is not None]
            power[str(k)] = sum(known) / number if len(known) == len(each) else None
        return {"pass_at_k": at, "pass_power_k": power, "tests": tests}


@dataclass(frozen=True, slots=True)
class _Samples:
    """The samples of a test that have a score."""

    made: int
    """How many there are."""
    passed: int
    """How many of them passed."""
    known: int
    """Up to how many samples it is known whether one passes: as many as were made; as many as were planned, if they ended with one that
    passed."""
    early: bool = False
    """They end with the first that passes. They are then no random sample, and tell only of the first ones in their order."""
    first: int = 0
    """Which one passed first, from 1; 0 for none."""
    lead: int = 0
    """How many passed before one did not."""

    @classmethod
    def of(cls, result: TestResult) -> _Samples | None:
        if result.trials is None or result.aggregation is None:
            return None
        made = [sample["status"] == PASSED for sample in result.trials if sample.get("score") is not None]
        if not made:
            return None
        stopped = made[-1] and not result.cost_limited
        planned = result.aggregation.get("planned_attempts", 0)
        figures = len(made), sum(made), max(len(made), planned if stopped else 0)
        if result.aggregation.get("stops_early") is not True:
            return cls(*figures)
        first, lead = (made.index(True) + 1 if any(made) else 0), [*made, False].index(False)
        return cls(*figures, early=True, first=first, lead=lead)

    def pass_at(self, k: int) -> float:
        return float(0 < self.first <= k) if self.early else pass_at_k(self.made, self.passed, k)

    def pass_power(self, k: int) -> float | None:
        if not self.early:
            return pass_power_k(self.made, self.passed, k)
        return 1.0 if k <= self.lead else 0.0 if self.lead < self.made else None


class EvalFigures:
    """Figures of a run: of all results, and of each target. ``level``: of confidence, None for no intervals."""

    def __init__(self, level: float | None, seed: int) -> None:
        self._level = level
        self._seed = seed
        self._targets: dict[str | None, Figures] = {}
        """By target; None for tests that were left out before they had one."""
        self._thresholds: Counter[float] = Counter()

    def add(self, result: TestResult) -> None:
        """Count a result. Where several targets answer the same tests these belong together, in the figures of all."""
        group = f"{result.dataset}/{result.test_id}" if result.group is None else f"{result.dataset}//{result.group}"
        if result.target not in self._targets:
            self._targets[result.target] = Figures()
        self._targets[result.target].add(result, group)
        if result.threshold is not None:
            self._thresholds[result.threshold] += 1

    def to_json(self, threshold: float) -> RunFigures:
        """``threshold``: the one that reports state."""
        own = {f"{each:g}": count for each, count in sorted(self._thresholds.items()) if each != threshold}
        found = {name: figures.to_json(self._level, self._seed) for name, figures in self._targets.items()}
        targets: list[TargetFigures] = [
            {"target": name, **figures} for name, figures in found.items() if name is not None
        ]
        return {
            "pass_limit": threshold,
            "tests_with_other_limits": own,
            "confidence": self._level,
            "denominators": DENOMINATORS,
            **(found.popitem()[1] if len(found) == 1 else self._all().to_json(self._level, self._seed)),
            "targets": targets,
        }

    def _all(self) -> Figures:
        every = Figures()
        for figures in self._targets.values():
            every.join(figures)
        return every


def _mean_figure(found: Mean, level: float | None) -> MeanFigure:
    value: MeanFigure = {
        "value": found.value,
        "tests": found.count,
        "clusters": found.clusters,
        "standard_error": found.error,
        "standard_deviation": found.deviation,
    }
    if level is not None:
        value["interval"] = _interval_figure(found.interval)
    return value


def _interval_figure(interval: Interval | None) -> IntervalFigure | None:
    return None if interval is None else cast(IntervalFigure, interval.to_json())
