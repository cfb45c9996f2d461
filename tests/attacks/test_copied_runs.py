"""A copy of a run folder is resumed while the original is being performed: nothing of the original's is touched."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manyhands.processes.strays import MARK, kill_strays, process_mark
from manyhands.runs.steering.control import RUNNER, ask, remove_leftovers
from tests.support.commands import (
    Command,
    SimulatedProcess,
    batch_words,
    ledger,
    marked_processes,
    run,
    trajectories,
    write_prompts,
)

ITEMS = 10


@pytest.mark.parametrize("executor", ["processes", pytest.param("local", marks=pytest.mark.slow)])
def test_a_copy_is_resumed_while_the_original_lives(tmp_path: Path, executor: str) -> None:
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number} [simulate: tools=2]" for number in range(ITEMS)))
    with SimulatedProcess(tmp_path, latency=0.4) as server:
        words = batch_words(tmp_path, base_url=server.base_url, executor=executor, num_workers=2, concurrency=2)
        with Command(*words) as first:
            assert first.wait_until(lambda: server.count() >= 6)
            before = first.workers()
            shutil.copytree(tmp_path / "r", tmp_path / "copy")
            copy = run("resume", str(tmp_path / "copy"), "--quiet")
            assert copy.code == 0, copy
            assert "processes of a session that crashed" not in copy.err
            assert first.workers() in (before, []), "the copy killed the original's workers"
            ended = first.wait()
    assert (ended.code, ended.err) == (0, "")
    for folder in (tmp_path / "r", tmp_path / "copy"):
        assert ledger(folder)["completed"] == trajectories(folder) == ITEMS
        assert not (folder / "failures.jsonl").exists() or not (folder / "failures.jsonl").read_text()


def test_strays_of_a_dead_owner_are_killed_after_the_run_was_moved(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number} [simulate: tools=2]" for number in range(4)))
    with SimulatedProcess(tmp_path, latency=0.2) as server:
        words = batch_words(tmp_path, base_url=server.base_url, num_workers=1, concurrency=2)
        with Command(*words) as first:
            assert first.wait_until(lambda: server.count() >= 3)
            first.kill()
        run_id = json.loads(run("status", str(tmp_path / "r"), "--json").out)["run_id"]
        stray = stray_of(run_id)
        (tmp_path / "elsewhere").mkdir()
        moved = (tmp_path / "r").rename(tmp_path / "elsewhere" / "moved")
        ended = run("resume", str(moved), "--quiet")
    assert ended.code == 0
    assert stray.wait(10) == -signal.SIGKILL
    assert trajectories(moved) == 4
    assert not marked_processes(run_id)


def stray_of(run_id: str) -> subprocess.Popen[bytes]:
    """A process that was started on behalf of a run by a process that is gone."""
    code = "import sys; from manyhands.processes.strays import process_mark; print(process_mark(sys.argv[1]))"
    mark = subprocess.run([sys.executable, "-c", code, run_id], check=True, capture_output=True, text=True).stdout
    return subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: mark.strip()})


@pytest.mark.parametrize(
    ("changed", "killed"),
    [
        ((), False),
        (("started", "1"), True),
        (("boot", "11111111-2222-3333-4444-555555555555"), True),
        (("numbering", "1"), False),
        (("mark", "{run_id}"), False),
        (("mark", "{run_id}.{pid}"), False),
        (("mark", "{run_id}.4194399"), True),
        (("mark", "{run_id}.nonsense.1"), False),
        (("mark", "{run_id}.²"), False),
        (("mark", "{run_id}.².2.3.4"), False),
        (("mark", "{run_id}." + "9" * 5000), False),
        (("mark", "{run_id}0.4194399"), False),
    ],
)
def test_only_what_provably_has_no_owner_is_a_stray(changed: tuple[str, ...], killed: bool) -> None:
    run_id = secrets.token_hex(8)
    names = ("run", "started", "numbering", "boot", "process")
    fields = dict(zip(names, process_mark(run_id).split("."), strict=True))
    if changed[:1] == ("mark",):
        mark = changed[1].format(run_id=run_id, pid=os.getpid())
    else:
        mark = ".".join({**fields, **({changed[0]: changed[1]} if changed else {})}.values())
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: mark})
    mark_of(process.pid)
    try:
        assert kill_strays(run_id) == killed
        assert (process.poll() is not None) == killed
    finally:
        process.kill()
        process.wait()


def mark_of(pid: int) -> str:
    """A process's mark, once the kernel shows it: a program that has only just been started has no environment for an instant."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(MARK.encode() + b"="):
                return entry.decode().partition("=")[2]
        time.sleep(0.005)
    raise AssertionError("it has no mark")


def test_strays_of_strays_are_killed_with_them() -> None:
    run_id = secrets.token_hex(8)
    code = """
import os, subprocess, sys
from manyhands.processes.strays import MARK, process_mark
subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: process_mark(sys.argv[1])})
print("ready", flush=True)
sys.stdin.read()
"""
    gone = stray_of(run_id)
    mark = mark_of(gone.pid)
    worker = subprocess.Popen(
        [sys.executable, "-c", code, run_id],
        env={**os.environ, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    assert kill_strays(run_id) == 3
    assert not marked_processes(run_id)
    gone.wait()
    worker.communicate()


def test_a_copied_job_folder_does_not_speak_for_the_original(tmp_path: Path) -> None:
    """Its ``runner.json`` names the original's socket, which must neither be asked nor removed."""
    place = tmp_path / "manyhands-place"
    original, copy = tmp_path / "original", tmp_path / "copy"
    for folder in (place, original, copy):
        folder.mkdir()
    address = place / "control"
    status = original.stat()
    said = {"process": os.getpid(), "socket": str(address), "folder": [status.st_dev, status.st_ino]}
    for folder in (original, copy):
        (folder / RUNNER).write_text(json.dumps(said))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen()
        server.setblocking(False)
        assert ask(copy, {"op": "cancel"}) is None
        with pytest.raises(BlockingIOError):
            server.accept()
        remove_leftovers(copy)
        assert address.exists()
        assert not (copy / RUNNER).exists()
        remove_leftovers(original)
    assert not place.exists()


@pytest.mark.parametrize("name", ["manyhands-precious/control", "manyhands-precious/other"])
def test_a_forged_runner_file_removes_no_folder(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "manyhands-precious"
    precious.mkdir()
    (precious / "control").write_text("no socket")
    (tmp_path / RUNNER).write_text(json.dumps({"process": 1, "socket": str(tmp_path / name)}))
    remove_leftovers(tmp_path)
    assert (precious / "control").read_text() == "no socket"


def test_a_pipe_in_place_of_the_runner_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RUNNER)
    assert ask(tmp_path, {"op": "status"}) is None
    remove_leftovers(tmp_path)
