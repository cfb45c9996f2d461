"""A full disk, a read-only folder, a second owner: one line, the right exit code, and a run that goes on afterwards."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.commands import (
    PROGRAM,
    Command,
    Ended,
    SimulatedProcess,
    batch_words,
    environment,
    ledger,
    one_line,
    run,
    trajectories,
    write_prompts,
)

ITEMS = 150
SIZE = 24 << 20
"""Bytes of the small disk; ballast takes all but what a test leaves free."""
SCRIPT = """
head -c "$BALLAST" /dev/zero > "$DISK/ballast" || exit 90
"$@"
echo "code $?"
rm "$DISK/ballast"
$RESUME 2> "$SEEN/errors"
code=$?
if [ $code = 2 ]; then "$@" 2> "$SEEN/errors"; code=$?; fi
echo "code $code"
cp -r "$DISK/r" "$SEEN/r"
"""
"""Runs a command on a full disk, and then, with room again, the resume of what it left (or the same command, if it left no run)."""


def on_a_small_disk(folder: Path, words: list[str], free: int) -> tuple[Ended, list[int]]:
    """Perform ``SCRIPT`` with a disk mounted on ``folder/disk``; how it ended, and the exit codes of both commands."""
    disk = folder / "disk"
    disk.mkdir()
    resume = [*PROGRAM, "resume", str(disk / "r"), "--quiet"]
    settings = {"BALLAST": SIZE - free, "DISK": disk, "SEEN": folder, "RESUME": " ".join(resume)}
    variables = [word for name, value in settings.items() for word in ("--setenv", name, str(value))]
    mount = [
        "bwrap",
        "--dev-bind",
        "/",
        "/",
        "--size",
        str(SIZE),
        "--tmpfs",
        str(disk),
        "--die-with-parent",
        *variables,
    ]
    ended = run(*words, program=[*mount, "sh", "-c", SCRIPT, "sh", *PROGRAM])
    return ended, [int(line.split()[1]) for line in ended.out.splitlines() if line.startswith("code ")]


def only_notes(errors: str) -> bool:
    """Whether nothing was said but that output was mended."""
    return all(line.endswith("output lines were written again from the journal") for line in errors.splitlines())


@pytest.mark.parametrize(
    "free",
    [
        *(8_000, 1_400_000),
        *(
            pytest.param(free, marks=pytest.mark.slow)
            for free in (50_000, 100_000, 150_000, 250_000, 400_000, 600_000, 800_000, 1_000_000, 1_200_000)
        ),
    ],
)
def test_a_full_disk(tmp_path: Path, free: int) -> None:
    """At any stage: while the run is made, at the first step, in the middle, when the last files are written."""
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number} [simulate: tools=0]" for number in range(ITEMS)))
    options = {"data_dir": tmp_path / "disk", "executor": "local", "num_workers": 1, "concurrency": 8}
    ended, codes = on_a_small_disk(tmp_path, batch_words(tmp_path, **options), free)
    assert codes == [1, 0], ended
    assert str(tmp_path / "disk" / "r") in one_line(ended)
    assert "full" in one_line(ended) or "No space left" in one_line(ended)
    assert only_notes((tmp_path / "errors").read_text())
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == ITEMS


FEW_INODES = """
mount -t tmpfs -o size=64m,nr_inodes="$INODES" none "$DISK" || exit 90
"$@"
echo "code $?"
mount -o remount,nr_inodes=100000 "$DISK"
$RESUME 2> "$SEEN/errors"
code=$?
if [ $code = 2 ]; then "$@" 2> "$SEEN/errors"; code=$?; fi
echo "code $code"
cp -r "$DISK/r" "$SEEN/r"
"""
IN_FLIGHT = 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk with few inodes")
@pytest.mark.parametrize(
    "inodes", [20, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 5, 8, 12, 16, 30, 40))]
)
def test_a_disk_without_inodes(tmp_path: Path, inodes: int) -> None:
    """Commands in sandboxes make folders and files until there is no room for one more: no item's fault."""
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number} [simulate: tools=2]" for number in range(12)))
    disk = tmp_path / "disk"
    disk.mkdir()
    with SimulatedProcess(tmp_path) as server:
        options = {"data_dir": disk, "executor": "local", "num_workers": 1, "concurrency": IN_FLIGHT}
        words = batch_words(tmp_path, base_url=server.base_url, **options)
        resume = " ".join([*PROGRAM, "resume", str(disk / "r"), "--quiet"])
        settings = {"INODES": inodes, "DISK": disk, "SEEN": tmp_path, "RESUME": resume}
        variables = [f"{name}={value}" for name, value in settings.items()]
        program = ["env", *variables, "unshare", "--mount", "sh", "-c", FEW_INODES, "sh", *PROGRAM]
        ended = run(*words, program=program)
        counts = server.stats()
    codes = [int(line.split()[1]) for line in ended.out.splitlines() if line.startswith("code ")]
    assert codes == [1, 0], ended
    assert "No space left" in one_line(ended) or "can't be" in one_line(ended)
    assert counts["duplicates"] <= IN_FLIGHT
    assert counts["answered_again"] <= IN_FLIGHT
    assert only_notes((tmp_path / "errors").read_text())
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == 12
    assert not [line for line in (tmp_path / "r" / "failures.jsonl").read_text().splitlines() if line]


@pytest.mark.parametrize("executor", [pytest.param("local", marks=pytest.mark.slow), "processes"])
def test_files_that_may_not_grow_any_more(tmp_path: Path, executor: str) -> None:
    """The limit on file sizes, as batch systems set it."""
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number} [simulate: tools=0]" for number in range(ITEMS)))
    limited = ["sh", "-c", 'ulimit -f 600; exec "$@"', "sh", *PROGRAM]
    ended = run(*batch_words(tmp_path, executor=executor, num_workers=2, concurrency=4), program=limited)
    assert ended.code == 1
    assert str(tmp_path / "r") in one_line(ended)
    resumed = run("resume", str(tmp_path / "r"), "--quiet")
    assert resumed.code == 0
    assert only_notes(resumed.err)
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == ITEMS


def read_only(folder: Path) -> list[str]:
    """A program in whose eyes a folder can't be written."""
    return ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(folder), str(folder), "--die-with-parent", *PROGRAM]


def test_a_read_only_data_folder(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", ["one", "two"])
    data = tmp_path / "data"
    data.mkdir()
    words = batch_words(tmp_path, data_dir=data, executor="local")
    ended = run(*words, program=read_only(data))
    assert ended.code == 1
    assert f"{data / 'r'}: the folder can't be made (Read-only file system)" in one_line(ended)
    assert list(data.iterdir()) == []
    assert run(*words).code == 0
    assert trajectories(data / "r") == 2


@pytest.mark.parametrize("finished", [False, True])
def test_a_read_only_run_folder(tmp_path: Path, finished: bool) -> None:
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(6)))
    limit = {} if finished else {"max_total_tokens": 5000}
    assert run(*batch_words(tmp_path, executor="local", num_workers=1, **limit)).code == (0 if finished else 1)
    folder = tmp_path / "r"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    ended = run("resume", str(folder), "--quiet", program=read_only(folder))
    assert ended.code == 1
    assert "can't be written" in one_line(ended)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    resumed = run("resume", str(folder), "--quiet", "--max_total_tokens=")
    assert (resumed.code, resumed.err) == (0, "")
    assert ledger(folder)["completed"] == trajectories(folder) == 6


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_a_second_owner(tmp_path: Path, executor: str) -> None:
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(12)))
    folder = tmp_path / "r"
    with SimulatedProcess(tmp_path, latency=0.1) as server:
        words = batch_words(tmp_path, base_url=server.base_url, executor=executor, num_workers=2)
        with Command(*words) as first:
            assert first.wait_until(lambda: server.count() >= 2)
            with server.held():
                others = [("resume", str(folder), "--quiet"), (*words, "--resume"), tuple(words)]
                with ThreadPoolExecutor(len(others)) as threads:
                    *seconds, third = threads.map(lambda other: run(*other), others)
                assert first.running, "the first ended too early to mean anything"
            ended = first.wait()
        counts = server.stats()
    for second in seconds:
        assert second.code == 2
        assert f"{folder}: this run is being executed by process {first.process.pid} on " in one_line(second)
    assert third.code == 2
    assert "a run of this name exists already" in one_line(third)
    assert (ended.code, ended.err) == (0, "")
    assert counts["duplicates"] == 0
    assert ledger(folder)["completed"] == trajectories(folder) == 12
    assert run("resume", str(folder), "--quiet").code == 0


def test_two_that_are_started_at_once(tmp_path: Path) -> None:
    """One of them performs the run; the other one changes nothing."""
    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(12)))
    words = [*PROGRAM, *batch_words(tmp_path, executor="local", simulated_latency=0.2)]
    both = [
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment())
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=60)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], errors
    assert len("".join(errors).splitlines()) == 1
    assert ledger(tmp_path / "r")["completed"] == trajectories(tmp_path / "r") == 12
