"""What the journal keeps of a session that has ended, besides its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from manyhands.workloads.memory.conversation.driver import NO_JUDGE, Conversation
from manyhands.workloads.memory.datasets.base import BaseDataset

RULES_VERSION = 2
"""Of the rules by which answers are scored; goes up where one of them gives an answer another score."""


def session_record(session: Conversation, name: str) -> dict[str, Any]:
    """The scores of its tests, by dataset, and its figures. ``score``: the sum of the datasets' means, of ``max_score`` datasets. A dataset
    of which a test has no score is in neither, but in ``unscored_datasets``, with the reason; ``unscored``: how many tests these have;
    ``rules``: the version of the rules, which earlier versions did not record."""
    scheduler, datasets = session.scheduler, dict[str, list[float | None]]()
    reasons: dict[str, str] = {}
    tests = []
    for ended in scheduler.ended:
        definition = ended.test.definition
        unscored = session.unscored.get(definition.unique_id)
        share = None if unscored is not None else ended.evaluation.share
        datasets.setdefault(definition.dataset, []).append(share)
        if unscored is not None:
            reasons.setdefault(definition.dataset, unscored)
        tests.append({"test": definition.unique_id, "score": share, "tokens": ended.tokens})
    counters = scheduler.counters
    return {
        "agent": name,
        "simulated": session.agent.simulated,
        "rules": RULES_VERSION,
        **dataset_scores(datasets, reasons),
        "tests": tests,
        "total_tokens": counters.total_tokens,
        "agent_tokens": counters.agent_tokens,
        "duration": counters.duration,
        "agent_cost": session.agent_usage.cost,
        "judge_cost": session.managing_usage.cost,
    }


def true_record(record: Mapping[str, Any], datasets: Mapping[str, BaseDataset], *, has_judge: bool) -> dict[str, Any]:
    """A record as it would be made now: earlier versions took the mean of the tests that had a score. ``datasets``: by name;
    ``has_judge``: whether a model may have judged what is scored."""
    if "tests" not in record or "unscored_datasets" in record:
        return dict(record)
    scores: dict[str, list[float | None]] = {}
    reasons: dict[str, str] = {}
    for test in record["tests"]:
        name = max((each for each in datasets if test["test"].startswith(f"{each} - ")), key=len, default="")
        judged = name in datasets and datasets[name].is_judged and not has_judge
        score = None if judged else test["score"]
        scores.setdefault(name, []).append(score)
        if score is None:
            reasons.setdefault(name, NO_JUDGE)
    return {**record, **dataset_scores(scores, reasons)}


def dataset_scores(datasets: Mapping[str, Sequence[float | None]], reasons: Mapping[str, str]) -> dict[str, Any]:
    """What the scores of tests, by dataset, come to. ``reasons``: why datasets have no score."""
    known = {
        dataset: [score for score in scores if score is not None]
        for dataset, scores in sorted(datasets.items())
        if dataset not in reasons
    }
    means = {dataset: fmean(scores) for dataset, scores in known.items()}
    return {
        "score": sum(means.values()),
        "max_score": len(means),
        "datasets": means,
        "unscored": sum(len(scores) for dataset, scores in datasets.items() if dataset in reasons),
        **({"unscored_datasets": dict(sorted(reasons.items()))} if reasons else {}),
    }
