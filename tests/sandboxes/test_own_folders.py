"""Further folders of a bubblewrap sandbox: empty, its own, and brought back like the workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")


async def made(folder: Path, *folders: str) -> Sandbox:
    return await BubblewrapBackend().create(SandboxRequest(folder, "run", folders=folders))


async def test_commands_and_files_reach_them(tmp_path: Path) -> None:
    sandbox = await made(tmp_path / "s", "/logs", "/tests")
    try:
        result = await sandbox.run(["sh", "-c", "ls -A /logs /tests; mkdir /logs/a; echo 1 > /logs/a/x"], timeout=10)
        assert (result.exit_code, result.output) == (0, b"/logs:\n\n/tests:\n")
        assert await sandbox.read_file("/logs/a/x") == b"1\n"
        await sandbox.write_file("/tests/deep/t.sh", b"echo ok\n")
        assert (await sandbox.run(["sh", "/tests/deep/t.sh"], timeout=10)).output == b"ok\n"
    finally:
        await sandbox.close()


async def test_a_step_that_was_cut_off_is_undone_in_them_too(tmp_path: Path) -> None:
    sandbox = await made(tmp_path / "s", "/logs")
    await sandbox.begin_step("/0")
    await sandbox.run(["sh", "-c", "echo kept > /logs/x"], timeout=10)
    await sandbox.begin_step("/1")
    await sandbox.run(["sh", "-c", "echo half > /logs/x; touch /logs/y"], timeout=10)
    await sandbox.close()
    again = await made(tmp_path / "s", "/logs")
    try:
        assert again.open_step == "/1"
        assert await again.reattach(False, "/1")
        assert (await again.run(["sh", "-c", "ls /logs; cat /logs/x"], timeout=10)).output == b"x\nkept\n"
    finally:
        await again.close()


@pytest.mark.parametrize("path", ["/usr", "/tmp", "/a/b", "relative", "/", "/.."])
async def test_no_folder_of_the_system_can_be_one(tmp_path: Path, path: str) -> None:
    with pytest.raises(ItemError):
        await made(tmp_path / "s", path)
