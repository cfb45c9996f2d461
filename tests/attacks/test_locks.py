"""Who may hold a run's lock, and what those are told who can't have it."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from manyhands.core.errors import RunError, StorageError
from manyhands.engine.journal.lock import LOCK, RunLock, is_owned
from tests.support.engine_runs import make_steps_run, perform_steps_run

SPEC = {"items": 3, "steps": 1, "execution": {"executor": "local"}}
HOLD = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_{}); print('held', flush=True); sys.stdin.read()"
NOBODY = 65534


def holder(path: Path, kind: str = "SH", user: int | None = None) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", HOLD.format(kind), str(path)]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, user=user
    )


def test_nobody_else_can_open_the_lock_file(tmp_path: Path) -> None:
    make_steps_run(tmp_path / "run", SPEC)
    assert stat.S_IMODE((tmp_path / "run" / LOCK).stat().st_mode) == 0o600


def test_the_lock_file_of_an_older_version_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch(mode=0o644)
    os.chmod(tmp_path / LOCK, 0o644)
    RunLock(tmp_path).release()
    assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_can_not_hold_a_run() -> None:
    with TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)  # pytest's own folders are closed to others
        folder = Path(place) / "run"
        make_steps_run(folder, SPEC)
        folder.chmod(0o755)
        words = ["/bin/sh", "-c", 'echo read; exec 9<"$1" && flock -s 9 && echo held', "sh", str(folder / LOCK)]
        other = subprocess.run(words, user=NOBODY, capture_output=True, text=True, check=False)
        assert other.stdout == "read\n"
        assert "Permission denied" in other.stderr
        assert perform_steps_run(folder, SPEC).ledger["completed"] == 3


@pytest.mark.parametrize("kind", ["SH", "EX"])
def test_a_holder_that_performs_nothing_is_named(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    make_steps_run(folder, SPEC)
    process = holder(folder / LOCK, kind)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"held by process {process.pid}, which does not execute the run") as caught:
            perform_steps_run(folder, SPEC)
        assert "\n" not in str(caught.value)
        (folder / LOCK).unlink()  # one of the two ways on that it names
        assert perform_steps_run(folder, SPEC).ledger["completed"] == 3
    finally:
        process.communicate()


def test_an_owner_is_named_as_before(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    code = "import sys; from pathlib import Path; from manyhands.engine.journal.lock import RunLock; RunLock(Path(sys.argv[1]))"
    second = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"this run is being executed by process {os.getpid()} on " in second.stderr
    assert is_owned(tmp_path)
    lock.release()
    assert not is_owned(tmp_path)


def test_a_link_in_place_of_the_lock_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match=r"run\.lock"):
        RunLock(tmp_path)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not is_owned(tmp_path)


def test_a_pipe_in_place_of_the_lock_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(RunError, match="not a plain file"):
        RunLock(tmp_path)
    is_owned(tmp_path)


def test_commands_do_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    assert fcntl.fcntl(lock.descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    lock.release()
