"""Which process performs which tests, and in which order, where several do (``pytest -n``)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[2]
WAITING = ("tests/attacks/", "tests/crash/", "tests/faults/")
"""The tests that wait most of their time, for processes, kills and limits of time. With all of them at once, the machine would idle."""
SPREAD = 0.9
"""Part of the other tests among which those that wait are spread. Towards the end only short ones are left, which end together."""


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Tests that share what their module makes are performed by one process, so that it is made once; any other one by whichever is
    free. The order is that of ``in_order``."""

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        return file if shares(file) else nodeid

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Called for every test that has ended. It is forgotten then: at each end, all that a process was given so far is gone
        through."""
        given = self.assigned_work[node]
        scope = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(given[scope].values()):
            del given[scope]


@cache
def shares(file: str) -> bool:
    """Whether a file of tests has fixtures of the module's."""
    return 'scope="module"' in (ROOT / file).read_text(encoding="utf-8")


def in_order(tests: Iterable[pytest.Item]) -> list[pytest.Item]:
    """What one process performs as a whole first, and those that wait spread among those that compute, between two files of these."""
    files = [(file, list(group)) for file, group in groupby(tests, lambda test: _file(test.nodeid))]
    files.sort(key=lambda each: not shares(each[0]))
    others = [group for file, group in files if not file.startswith(WAITING)]
    waiting = [
        part
        for file, group in files
        if file.startswith(WAITING)
        for part in ([group] if shares(file) else [[test] for test in group])
    ]
    rate = sum(map(len, waiting)) / (SPREAD * sum(map(len, others)) or 1)
    found: list[pytest.Item] = []
    due = 0.0
    for group in others:
        found += group
        due += rate * len(group)
        while waiting and due > 0:
            due -= len(waiting[0])
            found += waiting.pop(0)
    return found + [test for part in waiting for test in part]


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
