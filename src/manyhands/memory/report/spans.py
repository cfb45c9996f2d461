"""How scores depend on how much came between what was told and what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.core.statistics import Mean
from manyhands.memory.figures import pooled

RATIO = 2
"""How many times its least distance the distances of a group are at most."""
FEWEST = 3
"""Tests of a group at least, however far apart they are."""


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Tests whose distances are near each other. ``least``, ``most``: of these distances, in tokens; ``score``: their mean."""

    least: int
    most: int
    score: Mean


def span_groups(tests: Sequence[tuple[int, float, str]]) -> list[SpanGroup]:
    """Groups of tests. ``tests``: distance in tokens, score from 0 to 1, and dataset, of which tests are taken to depend on each other."""
    groups: list[list[tuple[int, float, str]]] = []
    for test in sorted(tests):
        last = groups[-1] if groups else []
        if not last or (len(last) >= FEWEST and test[0] > RATIO * last[0][0]):
            groups.append([test])
        else:
            last.append(test)
    if len(groups) > 1 and len(groups[-1]) < FEWEST:
        rest = groups.pop()
        groups[-1] += rest
    return [_group(each) for each in groups]


def _group(tests: Sequence[tuple[int, float, str]]) -> SpanGroup:
    return SpanGroup(tests[0][0], tests[-1][0], pooled([test[1] for test in tests], [test[2] for test in tests]))
