"""Agents side by side: what two that ran the same tests differ by, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from manyhands.core.statistics import Paired, paired
from manyhands.memory.report.gathering import Reported, test_name


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
