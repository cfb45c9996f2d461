"""SIGKILL at random instants, as a person's machine would do it: the bounded form of ``make crash-test``."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.crash.rounds import Round, Site, Victim, Work, slow_server

WORK = Work(24)
SAMPLED = Work(12, samples=2)

pytestmark = pytest.mark.xdist_group("crash")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("crash")
    with slow_server(folder) as server:
        yield Site(folder, server)


@pytest.mark.parametrize(
    ("victim", "executor", "work", "kills"),
    [
        ("owner", "processes", WORK, 3),
        ("owner", "local", SAMPLED, 3),
        ("worker", "processes", SAMPLED, 2),
        ("start", "local", WORK, 2),
        ("export", "local", WORK, 2),
    ],
)
def test_a_killed_run_comes_out_as_an_undisturbed_one(
    site: Site, victim: Victim, executor: str, work: Work, kills: int
) -> None:
    report = Round(site, work, victim, executor, random.Random(f"{victim}/{executor}")).perform(kills)
    assert report.violations == []
    assert report.kills >= 1
