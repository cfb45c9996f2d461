"""SIGKILL at random instants for runs whose items work in containers, or in unpacked images: the bounded form of ``make crash-test``."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.crash.container_rounds import Blow, ContainerRound, OutsideRound, UnpackedRound
from tests.crash.container_site import ContainerSite, WorldSite, unpacked_site
from tests.crash.rounds import Victim, Work, slow_server
from tests.support.commands import SimulatedProcess
from tests.support.engines import Engine

DOCKER = Work(8, sandbox="docker", images=2)
PODMAN = Work(8, sandbox="podman", images=2)
UNPACKED = Work(12)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedProcess]:
    with slow_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory, server: SimulatedProcess, docker_engine: Engine) -> ContainerSite:
    return ContainerSite(tmp_path_factory.mktemp("docker"), server, docker_engine, DOCKER.images)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory, server: SimulatedProcess, podman_engine: Engine) -> ContainerSite:
    return ContainerSite(tmp_path_factory.mktemp("podman"), server, podman_engine, PODMAN.images)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory, server: SimulatedProcess) -> WorldSite:
    return unpacked_site(tmp_path_factory.mktemp("unpacked"), server)


@pytest.mark.parametrize(
    ("victim", "kills"),
    [
        ("owner", 2),
        pytest.param("worker", 2, marks=pytest.mark.slow),
        pytest.param("tree", 2, marks=pytest.mark.slow),
        pytest.param("any", 4, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_in_its_containers(docker: ContainerSite, victim: Victim, kills: int) -> None:
    instants = random.Random(f"containers/{victim}")
    report = ContainerRound(docker, DOCKER, victim, "processes", instants, spread=6).perform(kills)
    assert report.violations == []
    assert report.kills >= 1


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["owner", "worker", "tree"])
def test_the_same_with_podman(podman: ContainerSite, victim: Victim) -> None:
    instants = random.Random(f"podman/{victim}")
    report = ContainerRound(podman, PODMAN, victim, "processes", instants, spread=6).perform(2)
    assert report.violations == []
    assert report.kills >= 1


@pytest.mark.parametrize(
    "blow", ["remove", pytest.param("stop", marks=pytest.mark.slow), pytest.param("kill", marks=pytest.mark.slow)]
)
def test_containers_that_somebody_ends_cost_at_most_their_items(docker: ContainerSite, blow: Blow) -> None:
    report = OutsideRound(docker, DOCKER, blow, "local", random.Random(blow)).perform(2)
    assert report.violations == []
    assert report.kills >= 1


@pytest.mark.parametrize(
    ("victim", "executor"),
    [
        ("tree", "processes"),
        pytest.param("owner", "local", marks=pytest.mark.slow),
        pytest.param("worker", "processes", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_in_its_unpacked_images(unpacked: WorldSite, victim: Victim, executor: str) -> None:
    report = UnpackedRound(unpacked, UNPACKED, victim, executor, random.Random(victim)).perform(2)
    assert report.violations == []
    assert report.kills >= 1
