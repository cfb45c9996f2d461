"""A sandbox made of a driver keeps the contract, over a service on this machine."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest

from manyhands.testing.fake_worlds.driver import fake_service
from manyhands.testing.sandbox_contract import SandboxContract


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[str]:
    with fake_service() as address:
        yield address


class TestFakeDriver(SandboxContract):
    make_backend = """
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.testing.fake_worlds.driver import FakeDriver
backend = RemoteBackend(FakeDriver())
"""
    root_is_own = True
    host_workspace = False
    home_is_workspace = False
    user = 0
    capabilities = 0x4FB
    finds_hidden = True
    ends_trees = True
    other_user = ("user", 1000)
    image_files: ClassVar[Mapping[str, str]] = {"/root//.bashrc": "in_bashrc=yes\n"}
    image_path = "/opt/tools/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    image_variables: ClassVar[Mapping[str, str]] = {"FROM_IMAGE": "yes", "HOME": "/root"}
