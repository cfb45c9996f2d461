"""Agents side by side: what two that ran the same tests differ by, and how sure that is; and all figures of a report as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from manyhands.core.statistics import Mean, Paired, paired
from manyhands.workloads.memory.report.gathering import Reported, test_name


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two agents. ``result``: of the differences, ``first`` less ``second``, over the tests that both ran; None if there is none;
    ``pairs``: how many; ``first_only``, ``second_only``: tests that only one of them ran; ``unscored``: that both ran, but that have no
    score on a side."""

    first: str
    second: str
    result: Paired | None
    pairs: int
    first_only: int
    second_only: int
    unscored: int


def pairings(agents: Sequence[Reported]) -> list[Pairing]:
    """All pairs. Tests of one dataset are taken to depend on each other."""
    return [_pairing(first, second) for first, second in combinations(agents, 2)]


def _pairing(first: Reported, second: Reported) -> Pairing:
    one, other = _scores(first), _scores(second)
    both = [name for name in one if name in other]
    pairs = [(a, b, name[0]) for name in both if (a := one[name]) is not None and (b := other[name]) is not None]
    differences = [a - b for a, b, _ in pairs]
    return Pairing(
        first.label,
        second.label,
        paired(differences, [dataset for _, _, dataset in pairs]) if pairs else None,
        len(pairs),
        len(one) - len(both),
        len(other) - len(both),
        len(both) - len(pairs),
    )


def _scores(agent: Reported) -> Mapping[tuple[str, str, str], float | None]:
    """By dataset, example, and what the test says."""
    return {(test.dataset, test.example, agent.same[test_name(test)]): test.score for test in agent.figures.tests}


def report_json(agents: Sequence[Reported]) -> dict[str, Any]:
    """The figures of all agents, and the differences between them. Scores are from 0 to 1."""
    return {
        "agents": [_agent(agent) for agent in agents],
        "differences": [_pairing_json(each) for each in pairings(agents)],
    }


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


def _without_state(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != "rnd_state"}


def _mean(found: Mean) -> dict[str, Any]:
    return asdict(found)


def _pairing_json(pair: Pairing) -> dict[str, Any]:
    return asdict(pair)
