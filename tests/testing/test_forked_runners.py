"""Runners of jobs that are forked, and those that are not because there is no server; other programs that are forked."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import alive
from tests.support.forked import forked_program, forked_runners
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


PROGRAM = """
import os, sys, time
print(os.getpid(), os.getcwd(), os.environ["WORD"], *sys.argv[1:], flush=True)
if not sys.stdin.read():
    time.sleep(600)
sys.exit(3)
"""


def begin(folder: Path) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM)
    command, pipe = forked_program(folder / "program.py", "a", "b c"), subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env={"WORD": "w"}, stdin=pipe, stdout=pipe, text=True)


def test_a_program_is_forked(tmp_path: Path) -> None:
    program = begin(tmp_path)
    printed, _ = program.communicate("go on", timeout=60)
    assert printed.split()[1:] == [str(tmp_path), "w", "a", "b", "c"]
    assert program.returncode == 3


def test_a_forked_program_and_what_stands_in_for_it_end_together(tmp_path: Path) -> None:
    for first in ("program", "what stands in for it"):
        with begin(tmp_path) as stand_in:
            assert stand_in.stdin is not None
            assert stand_in.stdout is not None
            pid = int(stand_in.stdout.readline().split()[0])
            assert "tests.support.forked" in Path(f"/proc/{pid}/cmdline").read_text()
            stand_in.stdin.close()
            os.kill(pid if first == "program" else stand_in.pid, 9)
            assert stand_in.wait(20) == -9
            end = time.monotonic() + 20
            while alive(pid):
                assert time.monotonic() < end, first
                time.sleep(0.02)
