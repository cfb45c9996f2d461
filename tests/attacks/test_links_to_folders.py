"""Attacks on the places at which folders are shown: links that an agent left on the way to them, for the sandbox's next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import ExecResult
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.protocol import SandboxRequest

_PROGRAM = "#!/bin/sh\necho ran with all rights on the sandbox >/workspace/ran\n"


async def _run(request: SandboxRequest, command: str) -> ExecResult:
    sandbox = await BubblewrapBackend().create(request)
    try:
        return await sandbox.run(["/bin/sh", "-c", command], timeout=20)
    finally:
        await sandbox.close()


async def test_the_workspace_can_be_seen_below_tmp(tmp_path: Path) -> None:
    request = SandboxRequest(tmp_path / "sandbox", "run", cwd="/tmp/a/b")
    for _ in range(2):
        result = await _run(request, "pwd; echo x >>/workspace/file; wc -l <file")
        assert result.output.decode().startswith("/tmp/a/b\n")
    assert result.output.decode().split()[-1] == "2"


async def test_the_workspace_is_not_shown_in_place_of_programs(tmp_path: Path) -> None:
    request = SandboxRequest(tmp_path / "sandbox", "run", cwd="/tmp/a/bin")
    workspace = tmp_path / "sandbox" / "workspace"
    await _run(request, "mv /tmp/a /tmp/b && ln -s ../usr /tmp/a")
    for name in ("nsenter", "sh"):
        (workspace / name).write_text(_PROGRAM)
        (workspace / name).chmod(0o755)
    with pytest.raises(ItemError) as refused:
        await _run(request, "true")
    assert refused.value.cause == Cause.SANDBOX_LOST
    assert not (workspace / "ran").exists()


async def test_no_folder_is_made_on_the_host(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    request = SandboxRequest(tmp_path / "sandbox", "run", cwd="/tmp/a/made")
    await _run(request, f"mv /tmp/a /tmp/b && ln -s ../../oldroot{outside} /tmp/a")
    with pytest.raises(ItemError):
        await _run(request, "true")
    assert list(outside.iterdir()) == []


async def test_a_project_may_be_called_as_what_hides_folders(tmp_path: Path) -> None:
    project = tmp_path / "empty"
    (project / "hidden").mkdir(parents=True)
    (project / "hidden" / "secret").touch()
    (project / "seen").touch()
    request = SandboxRequest(tmp_path / "sandbox", "run", project=project, hidden=(project / "hidden",))
    result = await _run(request, "ls /project /project/hidden")
    assert "seen" in result.output.decode()
    assert "secret" not in result.output.decode()
