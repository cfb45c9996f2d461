"""The benchmark of memory sessions, at its smallest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are no part of the installed package

from benchmarks.children import run_child


@pytest.mark.slow
def test_sessions_are_held_and_measured() -> None:
    found = run_child("memory_sessions", span=2000, sessions=2)
    assert found["messages"] > 40
    assert found["tokens"] > 4000
    assert 0 < found["cpu"] < 60
    assert found["memory"] > 1 << 20
