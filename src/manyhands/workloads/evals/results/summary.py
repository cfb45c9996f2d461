"""The figures of an evaluation: counts that add up, scores with intervals, what it cost. Every share says what it is a share of."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
from manyhands.workloads.evals.results.records import STATUSES, TestResult

BINS = 10
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
_FOR_K = (1, 2, 3, 4, 5, 8, 10, 16, 25, 32, 50, 64, 100)


def count_name(status: str) -> str:
    """What the count of a status is called in summaries."""
    return PLURALS.get(status, status)


class Figures:
    """Sums over results: of one target, or of all."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._scores = array("d")
        self._passed = array("b")
        self._groups = array("q")
        """Hashes: only which are equal matters. They take a tenth of the names' memory; of 100,000, two are alike by chance once in
        10⁹ runs."""
        self._durations = array("d")
        self._cost, self._priced = 0.0, 0
        self._tokens: Counter[str] = Counter()
        self._with_tokens = 0
        self._simulated = self._simulated_scores = 0
        self._trials: Counter[_Tries] = Counter()
        self._left_out: Counter[str] = Counter()
        """Graders, and how many tests they had nothing to compare in."""

    def add(self, result: TestResult, group: str) -> None:
        """Count a result. ``group``: what it shares with results that it depends on."""
        self._counts[result.status] += 1
        if result.score is not None:
            self._scores.append(result.score)
            self._passed.append(result.status == PASSED)
            self._groups.append(hash(group))
        if result.cost_usd is not None:
            self._cost, self._priced = self._cost + result.cost_usd, self._priced + 1
        if result.token_usage:
            self._tokens.update(result.token_usage)
            self._with_tokens += 1
        if result.duration_ms is not None:
            self._durations.append(result.duration_ms)
        self._simulated += bool(result.simulated)
        self._simulated_scores += result.simulated_scores
        self._left_out.update(result.graders_left_out)
        if (tries := _Tries.of(result)) is not None:
            self._trials[tries] += 1

    def join(self, other: Figures) -> None:
        """Count all that another one has counted."""
        self._counts.update(other._counts)
        self._scores += other._scores
        self._passed += other._passed
        self._groups += other._groups
        self._durations += other._durations
        self._cost, self._priced = self._cost + other._cost, self._priced + other._priced
        self._tokens.update(other._tokens)
        self._with_tokens += other._with_tokens
        self._simulated += other._simulated
        self._simulated_scores += other._simulated_scores
        self._trials.update(other._trials)
        self._left_out.update(other._left_out)

    def to_json(self, level: float | None, seed: int) -> dict[str, Any]:
        counts = {count_name(status): self._counts[status] for status in STATUSES}
        total = sum(counts.values())
        return {
            "tests": {"in": total, **counts},
            "mean_score": self._mean_score(level, seed),
            "pass_rate": _mean_json(
                pass_rate([bool(each) for each in self._passed], self._groups, level or 0.95), level
            ),
            "passed_of_all": counts[PASSED] / total if total else None,
            "score_quantiles": dict(
                zip(("min", "median", "max"), quantiles(self._scores, (0.0, 0.5, 1.0)), strict=False)
            ),
            "distribution": {
                "edges": [each / BINS for each in range(BINS + 1)],
                "counts": distribution(self._scores, BINS),
            },
            **({"trials": self._trial_figures()} if self._trials else {}),
            "cost_usd": {"sum": round(self._cost, 6), "tests_with_cost": self._priced},
            "token_usage": {**self._tokens, "tests_with_usage": self._with_tokens},
            "duration_ms": {
                "tests_with_duration": len(self._durations),
                **dict(zip(("median", "p90", "max"), quantiles(self._durations, (0.5, 0.9, 1.0)), strict=False)),
            },
            "simulated": self._simulated,
            "simulated_scores": self._simulated_scores,
            "graders_left_out": dict(self._left_out),
        }

    def _mean_score(self, level: float | None, seed: int) -> dict[str, Any]:
        found = _mean_json(mean(self._scores, self._groups, level or 0.95), level)
        if level is not None and len(self._scores) <= MAX_RESAMPLED:
            resampled = bootstrap(self._scores, self._groups, level=level, seed=seed)
            found["bootstrap"] = _interval_json(resampled)
        return found

    def _trial_figures(self) -> dict[str, Any]:
        """pass^k is None where trials ended with the first that passed: what further ones would have come to is not known."""
        most = max(tries.known for tries in self._trials)
        wanted = [k for k in dict.fromkeys((*_FOR_K, most)) if k <= most]
        at, power, tests = {}, {}, {}
        for k in wanted:
            fit = {tries: count for tries, count in self._trials.items() if tries.known >= k}
            number = sum(fit.values())
            tests[str(k)] = number
            at[str(k)] = sum(count * tries.pass_at(k) for tries, count in fit.items()) / number
            each = [(count, tries.pass_power(k)) for tries, count in fit.items()]
            known = [count * value for count, value in each if value is not None]
            power[str(k)] = sum(known) / number if len(known) == len(each) else None
        return {"pass_at_k": at, "pass_power_k": power, "tests": tests}


@dataclass(frozen=True, slots=True)
class _Tries:
    """The trials of a test that have a score. ``known``: up to how many trials it is known whether one passes: as many as were made; as
    many as were planned, if they ended with one that passed.

    ``early``: they end with the first that passes. They are then no sample of trials, and tell only of the first ones in their order.
    ``first``: which one passed first, from 1; 0 for none. ``lead``: how many passed before one did not.
    """

    made: int
    passed: int
    known: int
    early: bool = False
    first: int = 0
    lead: int = 0

    @classmethod
    def of(cls, result: TestResult) -> _Tries | None:
        if result.trials is None or result.aggregation is None:
            return None
        made = [trial["status"] == PASSED for trial in result.trials if trial.get("score") is not None]
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

    def to_json(self, threshold: float) -> dict[str, Any]:
        """As it is in ``eval_summary.json``, without what tells of the run."""
        own = {f"{each:g}": count for each, count in sorted(self._thresholds.items()) if each != threshold}
        found = {name: figures.to_json(self._level, self._seed) for name, figures in self._targets.items()}
        targets = [{"target": name, **figures} for name, figures in found.items() if name is not None]
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


def statuses(summary: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The counts of a summary, by the names that they have there, in order."""
    for status in STATUSES:
        yield count_name(status), summary["tests"][count_name(status)]


def _mean_json(found: Mean, level: float | None) -> dict[str, Any]:
    value: dict[str, Any] = {
        "value": found.value,
        "tests": found.count,
        "clusters": found.clusters,
        "standard_error": found.error,
        "standard_deviation": found.deviation,
    }
    if level is not None:
        value["interval"] = _interval_json(found.interval)
    return value


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else interval.to_json()
