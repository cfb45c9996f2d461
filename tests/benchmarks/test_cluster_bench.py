"""The benchmark of what an owner carries, at its smallest: that all steps of all items are acknowledged and counted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are no part of the installed package

from benchmarks.children import run_child  # noqa: E402
from benchmarks.cluster.simulated_workers import steps_of  # noqa: E402

ITEMS = 14


@pytest.mark.parametrize(
    "local", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["connections", "socket pairs"]
)
def test_simulated_workers_take_all_steps_of_all_items(
    local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # children are found from there
    given = {"items": ITEMS, "in_flight": 5, "workers": 2, "processes": 1, "local": local, "sampled": 1}
    found = run_child("cluster.owner", folder=str(tmp_path / "run"), **given)
    assert found["completed"] == ITEMS
    assert found["all_steps"] == sum(map(steps_of, range(1, ITEMS + 1)))
    assert found["received"] > 1500 * found["all_steps"]
    assert found["memory"] >= found["memory_before"] > 1 << 20
