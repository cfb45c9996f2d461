"""Projects that belong to somebody else than the one whose rights commands have."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.protocol import SandboxRequest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can show what is somebody else's")
COMMAND = [
    "bash",
    "-c",
    "git -C /project log --format=%s && git clone -q /project /workspace/c && cat /workspace/c/file",
]
SETUP = """
set -e
mkdir disk; mount -t tmpfs -o size=16m none disk
mkdir disk/up disk/work disk/low disk/seen; cp -a project disk/low
mount -t overlay overlay -o lowerdir=disk/low,upperdir=disk/up,workdir=disk/work disk/seen
chmod "$1" disk/seen/project
"$2" -P "$3" disk/seen/project
"""


async def _tried(project: Path, folder: Path) -> str:
    sandbox = await BubblewrapBackend().create(SandboxRequest(folder, "others", project=project))
    try:
        return (await sandbox.run(COMMAND, timeout=30)).output.decode()
    finally:
        await sandbox.close()


def _make_project(folder: Path) -> Path:
    project = folder / "project"
    project.mkdir()
    (project / "file").write_text("content")
    author = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "file"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    return project


async def test_git_works_in_a_project_of_another_user(tmp_path: Path) -> None:
    project = _make_project(tmp_path)
    for path in (project, *project.rglob("*")):
        os.chown(path, 4321, 4321)
    assert await _tried(project, tmp_path / "box") == "first\ncontent"


@pytest.mark.parametrize(("mode", "said"), [("755", "first\ncontent"), ("700", "is open to its owner alone")])
def test_roots_project_on_a_file_system_without_mapped_owners(tmp_path: Path, mode: str, said: str) -> None:
    _make_project(tmp_path)
    words = ["unshare", "--mount", "sh", "-c", SETUP, "sh", mode, sys.executable, __file__]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert said in ran.stdout + ran.stderr


if __name__ == "__main__":
    print(asyncio.run(_tried(Path(sys.argv[1]).resolve(), Path("box").resolve())))
