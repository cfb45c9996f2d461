"""The undoing of open steps, killed at random instants."""

import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manyhands.sandboxes.checkpoint import Checkpoint

# Steps change the world in a way that depends on the step and the world alone. Links stay within the world, as steps write
# through them. A step counts as recorded once its number is in the journal.
_WORKER = """
import os, random, shutil, sys
from pathlib import Path
from manyhands.sandboxes.checkpoint import Checkpoint

folder, journal = Path(sys.argv[1]), Path(sys.argv[2])
world = folder / "world"

def change(step):
    chance = random.Random(step)
    for number in range(12):
        path = world / "/".join(chance.choice("abc") for _ in range(chance.randint(1, 3)))
        kind = chance.choice(("file", "file", "append", "link", "folder", "remove", "same size"))
        try:
            if kind == "same size" and path.is_file() and not path.is_symlink():
                size = path.stat().st_size
                path.write_bytes(chance.randbytes(size))
                continue
            if kind == "append":
                with path.open("ab") as file:
                    file.write(chance.randbytes(chance.randint(1, 5000)))
                continue
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
            if kind == "file":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(chance.randbytes(chance.randint(0, 20000)))
                path.chmod(chance.choice((0o600, 0o444, 0o755)))
            elif kind == "link":
                path.symlink_to(chance.choice(("a", "b", "c", "a/b", "c/c")))
            elif kind == "folder":
                path.mkdir(parents=True)
                path.chmod(chance.choice((0o700, 0o750, 0o500)))
        except OSError:
            pass

def recorded():
    return int(journal.read_text()) if journal.exists() else 0

if len(sys.argv) > 3:
    for step in range(1, int(sys.argv[3]) + 1):
        change(step)
    sys.exit()
checkpoint = Checkpoint(folder, ("world",))
place = checkpoint.open_step
if place is not None and not checkpoint.reattach(int(place) <= recorded(), place):
    sys.exit(3)
print("attached", flush=True)
sys.stdin.readline()
step = recorded()
while True:
    step += 1
    if not checkpoint.begin(str(step)):
        sys.exit(4)
    change(step)
    aside = journal.with_suffix(".tmp")
    aside.write_text(str(step))
    aside.replace(journal)
"""


def _snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent) / name
            mode = path.lstat().st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.readlink(path).encode()
            elif stat.S_ISREG(mode):
                content = path.read_bytes()
            found[str(path.relative_to(folder))] = (mode, content)
    return found


def _worker(*words: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", _WORKER, *map(str, words)]
    return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_instants(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder, journal, expected = tmp_path / "box", tmp_path / "journal", tmp_path / "expected"
    (folder / "world").mkdir(parents=True)
    for number in range(10):
        worker = _worker(folder, journal)
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "attached\n", f"start {number}: {worker.wait()}"
        done = int(journal.read_text()) if journal.exists() else 0
        (expected / f"{number}" / "world").mkdir(parents=True)
        assert _worker(expected / f"{number}", tmp_path / "none", done).wait() == 0
        assert _snapshot(folder / "world") == _snapshot(expected / f"{number}" / "world")
        worker.stdin.write("go\n")
        worker.stdin.flush()
        time.sleep(chance.uniform(0.01, 0.1))
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
    assert int(journal.read_text()) > 5


def _box(folder: Path) -> tuple[Checkpoint, Path]:
    world = folder / "world"
    world.mkdir(exist_ok=True)
    return Checkpoint(folder, ("world",)), world


def test_change_of_same_size_and_time_is_seen(tmp_path: Path) -> None:
    checkpoint, world = _box(tmp_path)
    file = world / "file"
    file.write_bytes(b"old")
    checkpoint.begin("1")
    times = file.stat()
    file.write_bytes(b"new")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    checkpoint.begin("2")
    file.write_bytes(b"bad")
    assert Checkpoint(tmp_path, ("world",)).reattach(False, "2")
    assert file.read_bytes() == b"new"
    assert file.stat().st_mtime_ns == times.st_mtime_ns


def test_folder_replaced_by_a_link_reaches_nothing_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    box = tmp_path / "box"
    box.mkdir()
    checkpoint, world = _box(box)
    (world / "d").mkdir()
    (world / "d" / "file").write_text("mine")
    checkpoint.begin("1")
    (world / "d" / "file").unlink()
    (world / "d").rmdir()
    (world / "d").symlink_to(outside)
    checkpoint.begin("2")
    (world / "d").unlink()
    assert Checkpoint(box, ("world",)).reattach(False, "2")
    assert os.readlink(world / "d") == str(outside)
    assert (outside / "file").read_text() == "kept"


def test_only_what_changed_is_copied(tmp_path: Path) -> None:
    checkpoint, world = _box(tmp_path)
    for number in range(50):
        (world / f"{number}").write_text(f"{number}")
    checkpoint.begin("1")
    mirror = tmp_path / "checkpoint" / "world"
    before = {path.name: path.stat().st_ino for path in mirror.iterdir()}
    (world / "7").write_text("seven")
    (world / "8").unlink()
    checkpoint.begin("2")
    after = {path.name: path.stat().st_ino for path in mirror.iterdir()}
    assert {name for name in before if before[name] != after.get(name)} == {"7", "8"}


def test_too_large_and_small_again(tmp_path: Path) -> None:
    _, world = _box(tmp_path)
    checkpoint = Checkpoint(tmp_path, ("world",), most_entries=50, most_bytes=1000)
    (world / "many").mkdir()
    for number in range(50):
        (world / "many" / f"{number}").touch()
    assert not checkpoint.begin("1")
    assert checkpoint.open_step == "1"
    assert not checkpoint.reattach(False, "1")
    assert checkpoint.reattach(True, "1")
    (world / "many" / "0").unlink()
    assert checkpoint.begin("2")
    assert checkpoint.reattach(False, "2")
    assert len(os.listdir(world / "many")) == 49
    (world / "many" / "1").write_bytes(bytes(1001))
    assert not checkpoint.begin("3")


def test_special_files_are_left_out_and_odd_names_kept(tmp_path: Path) -> None:
    checkpoint, world = _box(tmp_path)
    os.mkfifo(world / "pipe")
    odd = b"\xff odd\n".decode(errors="surrogateescape")
    (world / odd).mkdir(mode=0o300)
    (world / ".partial").write_text("user's own")
    complete = checkpoint.begin("1")
    assert complete or os.geteuid() != 0
    if complete:
        assert checkpoint.reattach(False, "1")
        assert sorted(os.listdir(world)) == sorted([odd, ".partial"])
        assert stat.S_IMODE((world / odd).stat().st_mode) == 0o300


def test_a_marker_that_cannot_be_read_means_a_lost_world(tmp_path: Path) -> None:
    checkpoint, _ = _box(tmp_path)
    checkpoint.begin("1")
    assert not checkpoint.reattach(True, "another place")
    (tmp_path / "open_step").write_text("{torn")
    assert checkpoint.open_step is None
    assert not checkpoint.reattach(True, "1")
