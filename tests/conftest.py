"""What holds for all tests."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from manyhands.core.redaction import KNOWN
from manyhands.processes.interpreters import freeze_objects
from tests.support.engines import docker_engine, image_registry, podman_engine, rootless_podman_engine

__all__ = ["docker_engine", "image_registry", "podman_engine", "rootless_podman_engine"]  # fixtures

if TYPE_CHECKING:
    from tests.support.scheduling import Scheduling

# How long an example takes says something about the machine's load only.
settings.register_profile("quick", deadline=None, max_examples=15)
settings.register_profile("thorough", deadline=None, max_examples=250)
settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: it is no garbage, and searching it again and again takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        freeze_objects()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Called where several processes perform tests; see ``Scheduling``."""
    from tests.support.scheduling import Scheduling

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Called in each of these processes; see ``in_order``."""
    if hasattr(config, "workerinput"):
        from tests.support.scheduling import in_order

        items[:] = in_order(items)


@pytest.fixture(autouse=True)
def _own_secrets() -> Iterator[None]:
    """A process knows the secrets of all that it ever opened, and looks for each in whatever it writes: a test has its own only."""
    before = vars(KNOWN).copy()
    yield
    vars(KNOWN).update(before)
