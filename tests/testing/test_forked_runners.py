"""Runners of jobs that are forked, and those that are not because there is no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked import forked_runners
from tests.support.handover.sitecustomize import ADDRESS, RUNNER
from tests.support.job_folders import FUNCTION, JobFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    with JobFolder(tmp_path, ["until go"]) as made, forked_runners():
        yield made


def command_of_a_runner(folder: JobFolder) -> str:
    """The command line of the runner of a job that then comes to its end."""
    assert folder.spawn(FUNCTION, "--executor=local", "--detach").code == 0
    found = Path(f"/proc/{folder.runner()}/cmdline").read_text()
    (folder.path / "go").touch()
    ended = folder.jobs("wait", "j")
    assert (ended.code, folder.results()) == (0, [{"length": 8, "text": "until go"}]), ended
    return found


def test_a_runner_is_forked(folder: JobFolder) -> None:
    assert "tests.support.forked" in command_of_a_runner(folder)


def test_without_a_server_a_runner_starts_by_itself(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, str(folder.path / "nobody"))
    assert RUNNER in command_of_a_runner(folder)
