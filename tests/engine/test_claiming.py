"""Two copies of a run never use one folder of a node at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from manyhands.core.errors import UserError
from manyhands.engine.executors.claiming import CLAIM, claim, is_alone

HOLDS = """
import sys
from pathlib import Path
from manyhands.engine.executors.claiming import claim

claim(Path(sys.argv[1]), sys.argv[2])
print(flush=True)
input()
"""


def test_a_folder_is_of_one_session_and_of_all_of_its_workers(tmp_path: Path) -> None:
    claims = [claim(tmp_path, "one host:/copy") for _ in range(2)]
    with pytest.raises(UserError, match=r"^another copy of this run is being executed there \(host:/copy\), and both"):
        claim(tmp_path, "other host:/run", 0.3)
    os.close(claims.pop())
    with pytest.raises(UserError):
        claim(tmp_path, "other host:/run", 0.0)
    os.close(claims.pop())
    os.close(claim(tmp_path, "other host:/run", 0.0))
    assert (tmp_path / CLAIM).read_text() == "other host:/run"


def test_workers_of_a_killed_session_are_waited_for(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDS, str(tmp_path), "one host:/run"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        dying = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -KILL {holder.pid}"])
        os.close(claim(tmp_path, "two host:/run", 20.0))
        assert holder.wait() == -signal.SIGKILL
        dying.wait()


def test_a_folder_that_its_last_worker_removes_is_claimed_anew(tmp_path: Path) -> None:
    old = claim(tmp_path, "one")
    (tmp_path / CLAIM).unlink()
    new = claim(tmp_path, "two")
    os.close(old)
    with pytest.raises(UserError):
        claim(tmp_path, "one", 0.0)
    os.close(new)


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with pytest.raises(FileNotFoundError):
        claim(folder, "one", 0.0)
    os.close(claim(folder, "one", 5.0, again=lambda: folder.mkdir(parents=True)))
    assert (folder / CLAIM).exists()


def test_a_folder_may_be_called_anything(tmp_path: Path) -> None:
    name = "one host:/" + os.fsdecode(b"\xff\xfe")
    claims = [claim(tmp_path, name, 0.0) for _ in range(2)]
    with pytest.raises(UserError):
        claim(tmp_path, "other", 0.0)
    assert [is_alone(each) for each in claims] == [False, True]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(claim, tmp_path, "other", 10.0)
        assert not waiting.done()
        for each in claims:
            os.close(each)
        os.close(waiting.result())


def test_of_many_sessions_that_come_at_once_one_gets_it(tmp_path: Path) -> None:
    def claimed(number: int) -> int | None:
        try:
            return claim(tmp_path, str(number // 3), 0.3)
        except UserError:
            return None

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(claimed, range(12)))
    assert [number // 3 for number, each in enumerate(found) if each is not None] in [[each] * 3 for each in range(4)]
    for each in found:
        if each is not None:
            os.close(each)
