"""The same attacks, when whoever runs manyhands is an ordinary user."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from tests.attacks.held_sandbox import BACKENDS
from tests.attacks.ordinary_user import OrdinaryUser, ordinary_user

pytestmark = pytest.mark.timeout(600)


LONGER = {
    "inside": 35,
    "hostile_agents": 4,
    "hostile_files": 15,
    "workspace_races": 10,
    "modes": 5,
    "orphans": 10,
    "disk_quota": 20,
}


@pytest.fixture(scope="module")
def user() -> Iterator[OrdinaryUser]:
    with ordinary_user() as user:
        yield user


if os.getuid() == 0:  # an ordinary user has performed all others as one

    @pytest.mark.parametrize(
        ("file", "least"),
        [
            ("attacks/test_commands_inside.py", 15),
            ("attacks/test_owned_programs.py", 1),
            ("network/test_egress_from_the_shell.py::test_a_sandbox_that_was_started_anew_reaches_the_same", 1),
            pytest.param("network/test_egress_from_the_shell.py", 30, marks=pytest.mark.slow),
            *(pytest.param(f"attacks/test_{name}.py", least, marks=pytest.mark.slow) for name, least in LONGER.items()),
            *(pytest.param(f"sandboxes/test_{name}_contract.py", 50, marks=pytest.mark.slow) for name in BACKENDS),
        ],
    )
    def test_it_holds_for_an_ordinary_user(user: OrdinaryUser, file: str, least: int) -> None:
        ended = user.tests(f"tests/{file}")
        assert ended.returncode == 0, ended.stdout[-20_000:]
        passed = re.search(r"(\d+) passed", ended.stdout)
        assert passed is not None
        assert int(passed[1]) >= least

    @pytest.mark.slow
    def test_images_hold_for_an_ordinary_user(user: OrdinaryUser) -> None:
        ended = user.tests("tests/sandboxes/test_image_worlds.py", "tests/sandboxes/test_image_extraction.py")
        assert ended.returncode == 0, ended.stdout[-20_000:]
        passed = re.search(r"(\d+) passed", ended.stdout)
        assert passed is not None
        assert int(passed[1]) >= 25
