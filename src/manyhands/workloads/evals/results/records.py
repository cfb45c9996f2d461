"""From items of a run to one result for each test and target.

Figures are JSON numbers as JavaScript writes them, 1 and not 1.0; what came from the test or its target stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from statistics import stdev
from typing import Any

from manyhands.core.decimals import exact_sum, weighted_mean
from manyhands.core.outcomes import ItemState
from manyhands.core.statistics import mean
from manyhands.engine.contract import ItemRow
from manyhands.graders.protocol import verdict_of
from manyhands.workloads.evals.items import ERROR, FAILED, GRADER_ERROR, INVALID, PASSED, SKIPPED, UNGRADED
from manyhands.workloads.evals.order import COST_LIMIT, DEPENDENCY_FAILED, FAILED_DEPENDENCIES, NEEDLESS, PASSED_BEFORE
from manyhands.workloads.evals.workspaces.workspace import PLACE

PENDING = "pending"
OF_WORKSPACES = ("file_changes", "before_each_output", "after_each_output", PLACE)
"""What is recorded of a test's workspace."""
STATUSES = (PASSED, FAILED, ERROR, GRADER_ERROR, SKIPPED, UNGRADED, INVALID, PENDING)
"""What a test can have come to; their counts add up to the number of tests."""
WITHOUT_SCORE = (ERROR, GRADER_ERROR)
PASS_AT_K, MEAN, CONFIDENCE = "pass_at_k", "mean", "confidence_interval"
NO_ID = "(no id)"
"""What a test is called that was left out since not even its id could be read."""
_OF_SCORES = ("score", "weight", "required", "min_score")
Record = dict[str, Any]


def results(
    rows: Iterable[ItemRow], threshold: float | Sequence[float], strategy: str | None = None
) -> Iterator[Record]:
    """The result of each test and target, in order of the input, streamed; of those that have not ended, with status ``pending``.

    ``threshold``: the pass limit of tests without one of their own, or that of each file; ``strategy``: how trials become one,
    where the test doesn't say.
    """
    present = (row for row in rows if not row.left_input)
    for _, same in groupby(present, key=_test_of):
        planned = list(same)
        if len(planned) == 1:
            record = _trial(planned[0], _limit_of(planned[0], threshold))
            record["trial"] = None
            yield _tidy(record)
            continue
        made = [row for row in planned if row.reason not in NEEDLESS] or planned
        limited = any(row.reason == COST_LIMIT for row in planned)
        trials = [_trial(row, _limit_of(row, threshold)) for row in made]
        for trial in trials:
            trial["stops_early"] |= any(row.reason == PASSED_BEFORE for row in planned)
        yield _combined(trials, strategy, len(planned), cost_limited=limited)


def _limit_of(row: ItemRow, threshold: float | Sequence[float]) -> float:
    return threshold if isinstance(threshold, (int, float)) else threshold[row.payload["file"]]


def _test_of(row: ItemRow) -> tuple[Any, ...]:
    payload = row.payload
    if "test" not in payload:
        return (payload["file"], row.key)
    return (payload["file"], payload["test"]["id"], payload["target"])


def _trial(row: ItemRow, threshold: float) -> Record:
    """The result of one item."""
    payload, found = row.payload, row.record or {}
    test = payload.get("test", {})
    limit = test.get("threshold")
    limit = threshold if limit is None else limit
    status, score = _status(row, found, limit)
    record: Record = {
        "timestamp": _time(row.finished_at),
        "test_id": test.get("id", payload.get("id")),
        "dataset": payload["dataset"],
        "conversation_id": test.get("conversation_id"),
        "score": plain(score),
        "status": status,
        "verdict": verdict_of(score, limit) if score is not None else None,
        "threshold": plain(limit),
        "hits": found.get("hits") or [],
        "misses": found.get("misses") or [],
        "answer": found.get("answer") or "",
        "target": payload.get("target"),
        "reasoning": found.get("reasoning"),
        "input": test.get("input", []),
        "expected_output": test.get("expected_output"),
        "criteria": test.get("criteria"),
        "scores": _with_plain_numbers(found.get("scores")),
        "error": _error(row, found) if status in (*WITHOUT_SCORE, SKIPPED, INVALID) else None,
        "cause": DEPENDENCY_FAILED if FAILED_DEPENDENCIES in found else row.cause if status in WITHOUT_SCORE else None,
        "trace": found.get("trace"),
        "output": found.get("output"),
        "token_usage": _each_plain(found.get("token_usage")) or None,
        "cost_usd": plain(found.get("cost_usd")),
        "duration_ms": plain(found.get("duration_ms")),
        "notices": found.get("notices") or None,
        **{name: found[name] for name in OF_WORKSPACES if name in found},
        "simulated": found.get("simulated") or None,
        "metadata": test.get("metadata"),
        "tags": test.get("tags"),
        "group": payload.get("group"),
        "turns": _with_plain_numbers(found.get("turns")),
        "depends_on": test.get("depends_on"),
        FAILED_DEPENDENCIES: found.get(FAILED_DEPENDENCIES),
        "attempts": row.performances if row.performances > 1 and FAILED_DEPENDENCIES not in found else None,
        "trial": payload.get("trial", 0),
        "strategy": (test.get("trials") or {}).get("strategy"),
        "stops_early": bool(found.get("stops_early")),
    }
    return record


_ALWAYS = frozenset(
    ("timestamp", "test_id", "dataset", "score", "status", "hits", "misses", "answer", "target", "input")
)


def _status(row: ItemRow, found: Mapping[str, Any], limit: float) -> tuple[str, float | None]:
    """A status is taken of the score and today's limit, which a resume may have changed."""
    if not row.state.final:
        return PENDING, None
    if row.state is ItemState.DISCARDED:
        return (SKIPPED if row.reason == DEPENDENCY_FAILED else INVALID), None
    if row.state is not ItemState.COMPLETED:
        return (GRADER_ERROR if found.get("status") == GRADER_ERROR else ERROR), None
    score = found.get("score")
    if score is None:
        return UNGRADED, None
    return (PASSED if score >= limit else FAILED), score


def _error(row: ItemRow, found: Mapping[str, Any]) -> str:
    return str(found.get("error") or row.message or row.reason or row.cause or row.state)


def _combined(trials: Sequence[Record], strategy: str | None, planned: int, *, cost_limited: bool) -> Record:
    """One result of all trials of a test: of the fields that are not figures, those of the best one. ``planned``: how many there would have
    been, had none proved needless.

    pass_at_k: the best score; mean: their mean; confidence_interval: the lower end of the t interval of 95 %. A trial that broke leaves
    the test without a score, but for pass_at_k where another one passed.
    """
    strategy = trials[0].pop("strategy") or strategy or PASS_AT_K
    best = max(trials, key=lambda trial: (trial["score"] is not None, trial["score"] or 0))
    result = {**best, "trial": None, **_of_trials(trials, strategy, best)}
    for name in ("cost_usd", "duration_ms"):
        known = [trial[name] for trial in trials if trial[name] is not None]
        result[name] = plain(exact_sum(known)) if known else None
    result["token_usage"] = _each_plain(added_tokens(trial["token_usage"] for trial in trials)) or None
    result["trials"] = [_attempt(trial) for trial in trials]
    if planned > len(trials):
        result["aggregation"]["planned_attempts"] = planned
    if any(trial["stops_early"] for trial in trials):
        result["aggregation"]["stops_early"] = True
    return _tidy(result | ({"cost_limited": True} if cost_limited else {}))


def _of_trials(trials: Sequence[Record], strategy: str, best: Record) -> Record:
    passed = [trial for trial in trials if trial["status"] == PASSED]
    aggregation: Record = {"strategy": strategy, "passed_attempts": len(passed), "total_attempts": len(trials)}
    if strategy == PASS_AT_K and passed:
        return {"aggregation": aggregation}
    broken = next(
        (
            trial
            for status in (PENDING, *WITHOUT_SCORE, SKIPPED, UNGRADED)
            for trial in trials
            if trial["status"] == status
        ),
        None,
    )
    if broken is not None:
        kept = {name: broken[name] for name in ("status", "score", "verdict", "error", "cause")}
        return {**kept, "aggregation": aggregation}
    score, figures = _one_score([trial["score"] for trial in trials], strategy)
    limit = best["threshold"]
    found = {"score": plain(score), "verdict": verdict_of(score, limit), "status": PASSED if score >= limit else FAILED}
    return {**found, "aggregation": aggregation | _each_plain(figures)}


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


def _attempt(trial: Record) -> Record:
    kept = ("score", "verdict", "status", "scores", "answer", "error", "cost_usd", "duration_ms")
    return {"attempt": trial["trial"], **{name: trial[name] for name in kept if trial[name] is not None}}


def simulated_scores(record: Record) -> bool:
    """Whether a simulated model had a say in the result's scores, those of its trials included."""
    trials = (trial.get("scores") or () for trial in record.get("trials") or ())
    return any(score.get("simulated") for scores in (record.get("scores") or (), *trials) for score in scores)


def graders_left_out(record: Record) -> set[str]:
    """The names of the graders that had nothing to compare in a test, in any of its trials; of a composite's members behind its own."""
    trials = (trial.get("scores") or () for trial in record.get("trials") or ())
    return {name for scores in (record.get("scores") or (), *trials) for name in _names_left_out(scores)}


def _names_left_out(scores: Iterable[Record], within: str = "") -> Iterator[str]:
    for score in scores:
        inner = [*_names_left_out(score.get("scores", ()), f"{within}{score['name']} > ")]
        yield from inner
        if "left_out" in score and not inner:
            yield within + score["name"]


def added_tokens(usages: Iterable[Mapping[str, float] | None]) -> dict[str, float] | None:
    """The sums of token counts by kind; None if nobody knows any."""
    total: dict[str, float] = {}
    for usage in usages:
        for name, count in (usage or {}).items():
            total[name] = total.get(name, 0) + count
    return total or None


def plain(number: Any) -> Any:
    """The same number, as an int if it is whole; anything else as it is."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _each_plain(numbers: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: plain(number) for name, number in (numbers or {}).items()}


def _with_plain_numbers(scores: Sequence[Record] | None) -> list[Record] | None:
    """The graders' scores, those of members of a composite too."""
    if scores is None:
        return None
    found = []
    for score in scores:
        figures: Record = {name: plain(score[name]) for name in _OF_SCORES if name in score}
        if "scores" in score:
            figures["scores"] = _with_plain_numbers(score["scores"])
        found.append({**score, **figures})
    return found


def _tidy(record: Record) -> Record:
    record.pop("strategy", None)
    record.pop("stops_early", None)
    return {name: value for name, value in record.items() if value is not None or name in _ALWAYS}


def _time(moment: float | None) -> str | None:
    if moment is None:
        return None
    second, microseconds = divmod(round(1_000_000 * moment), 1_000_000)
    return f"{_second(second)}.{microseconds // 1000:03}Z"


@lru_cache(maxsize=64)
def _second(moment: int) -> str:
    """Ended tests come by the thousand a second."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S")
