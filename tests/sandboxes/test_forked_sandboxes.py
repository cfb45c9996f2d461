"""Sandboxes of a process that was forked from one that has had sandboxes itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.processes.strays import process_mark
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.protocol import SandboxRequest
from tests.support.forked import path_of_tests

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bubblewrap is for Linux")

OWNER = """
import asyncio, sys
from manyhands.processes.fork_server import fork_server
from tests.sandboxes.test_forked_sandboxes import read_project
read_project(0)
async def main(forks):
    process = await forks.start("tests.sandboxes.test_forked_sandboxes:read_project", "reading", 0, 1, {})
    return await process.wait()
with fork_server() as forks:
    sys.exit(asyncio.run(main(forks)))
"""


def read_project(given: int) -> None:
    """Print what a sandbox sees of a folder that only its owner may enter."""
    here = Path(os.environ["HERE"])

    async def read() -> str:
        request = SandboxRequest(here / str(os.getpid()), process_mark("forked"), project=here / "private")
        sandbox = await BubblewrapBackend().create(request)
        try:
            result = await sandbox.run(["cat", "/project/file"], timeout=20)
            return result.output.decode()
        finally:
            await sandbox.close()

    print(asyncio.run(read()), flush=True)


def test_a_fork_shows_a_private_project_as_its_owner_does(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "file").write_text("seen")
    (private / "file").chmod(0o600)
    ended = subprocess.run(
        [sys.executable, "-c", OWNER],
        env={**os.environ, "HERE": str(tmp_path), "PYTHONPATH": path_of_tests()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["seen", "seen"]
