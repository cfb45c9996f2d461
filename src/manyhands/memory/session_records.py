"""What the journal keeps of a session that has ended, besides its steps."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from manyhands.memory.session import Session


def session_record(session: Session, name: str) -> dict[str, Any]:
    """The scores of its tests, by dataset, and its figures. ``score``: the sum of the datasets' means, of ``max_score`` datasets (behaviour
    specification, section 7); datasets without a scored test are in neither."""
    scheduler, datasets = session.scheduler, dict[str, list[float]]()
    tests = [
        {"test": name, "score": past.score, "tokens": past.tokens} for name, past in sorted(session.past.scores.items())
    ]
    for past in session.past.scores.values():
        datasets.setdefault(past.dataset, []).append(past.score)
    for ended in scheduler.ended:
        definition = ended.test.definition
        unscored = session.unscored.get(definition.unique_id)
        share = None if unscored is not None else ended.evaluation.share
        if share is not None:
            datasets.setdefault(definition.dataset, []).append(share)
        tests.append({"test": definition.unique_id, "score": share, "tokens": ended.tokens})
    means = {dataset: fmean(scores) for dataset, scores in sorted(datasets.items())}
    counters = scheduler.counters
    return {
        "agent": name,
        "simulated": session.agent.simulated,
        "score": sum(means.values()),
        "max_score": len(means),
        "datasets": means,
        "tests": tests,
        "unscored": len(session.unscored),
        "total_tokens": counters.total_tokens,
        "agent_tokens": counters.agent_tokens,
        "duration": counters.duration,
        "agent_cost": session.agent_usage.cost,
        "judge_cost": session.managing_usage.cost,
    }
