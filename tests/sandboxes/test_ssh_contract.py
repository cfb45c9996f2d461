"""Sandboxes on another machine, which is this one, keep the contract: a real sshd on loopback, with an account of its own where root runs
the tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.testing.sandbox_contract import SandboxContract
from manyhands.testing.sandbox_contract_commands import SEEN, command_lines_with
from tests.support.ssh_servers import ssh_server

pytestmark = pytest.mark.slow
PORT, ACCOUNT, CONFIG, FOLDER = (f"CONTRACT_SSH_{name}" for name in ("PORT", "ACCOUNT", "CONFIG", "FOLDER"))


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with ssh_server(ordinary=os.geteuid() == 0) as server:
        os.environ |= {
            PORT: str(server.port),
            ACCOUNT: server.account,
            CONFIG: str(server.config),
            FOLDER: str(server.worlds),
        }
        yield


class TestSsh(SandboxContract):
    make_backend = f"""
import os
from pathlib import Path
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.sandboxes.services.ssh.connections import SshTarget
from manyhands.sandboxes.services.ssh.driver import SshDriver
target = SshTarget("127.0.0.1", os.environ["{ACCOUNT}"], int(os.environ["{PORT}"]), config=Path(os.environ["{CONFIG}"]),
                   folder=os.environ["{FOLDER}"])
backend = RemoteBackend(SshDriver(target))
"""
    isolates = False
    host_workspace = False
    limits_processes = False
    takes_projects = False

    async def running(self, run_id: str, command: str) -> list[str]:
        """As seen from this machine, which is the other one, too."""
        return await asyncio.to_thread(command_lines_with, {f"{SEEN}={run_id}".encode()}, command)


def test_nothing_of_ours_is_left_in_the_folder_for_sockets() -> None:
    left = [each for each in Path("/tmp").glob(f"manyhands-ssh-{os.getpid()}-*") if each.is_dir()]
    assert left == []
