"""What a report says, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from manyhands.core.statistics import Mean
from manyhands.memory.report.comparison import Pairing, pairings
from manyhands.memory.report.gathering import Reported


def report_json(agents: Sequence[Reported]) -> dict[str, Any]:
    """The figures of all agents, and the differences between them. Scores are from 0 to 1."""
    return {"agents": [_agent(agent) for agent in agents], "differences": [_pairing(each) for each in pairings(agents)]}


def _agent(agent: Reported) -> dict[str, Any]:
    figures, timeline = agent.figures, agent.timeline
    return {
        "label": agent.label,
        "run": figures.run,
        "agent": figures.agent,
        "folder": str(figures.folder),
        "about": dict(figures.about),
        "isolated": agent.is_isolated,
        "memory_span": figures.memory_span,
        "overruns": agent.overruns,
        "published": asdict(figures.published),
        "mean_score": _mean(figures.accuracy),
        "tests": {"in": len(figures.tests), "scored": figures.accuracy.count, "unscored": figures.unscored},
        "datasets": {name: _mean(found) for name, found in figures.datasets.items()},
        "unscored_datasets": dict(figures.unscored_datasets),
        "session": None if figures.stats is None else _without_state(figures.stats.content()),
        "timeline": None if timeline is None else asdict(timeline),
        "results": [
            {
                "dataset": test.dataset,
                "example": test.example,
                "score": test.score,
                "tokens": test.tokens,
                "distance": agent.distance(test),
                "needles": test.needles,
            }
            for test in figures.tests
        ],
    }


def _without_state(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != "rnd_state"}


def _mean(found: Mean) -> dict[str, Any]:
    return asdict(found)


def _pairing(pair: Pairing) -> dict[str, Any]:
    return asdict(pair)
