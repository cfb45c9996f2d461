"""The undoing of open steps, killed at random instants."""

import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.sandboxes.files.checkpoint import Checkpoint
from manyhands.sandboxes.files.removing import remove_tree

# Steps change the world in a way that depends on the step and the world alone. Links stay within the world, as steps write
# through them. A step counts as recorded once its number is in the journal.
_WORKER = """
import os, random, shutil, sys
from pathlib import Path
from manyhands.sandboxes.files.checkpoint import Checkpoint

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
    checkpoint = Checkpoint(tmp_path, ("world",), max_entries=50, max_bytes=1000)
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


def test_sockets_are_left_out_and_odd_names_and_pipes_kept(tmp_path: Path) -> None:
    checkpoint, world = _box(tmp_path)
    os.mkfifo(world / "pipe", 0o640)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(world / "socket"))
    odd = b"\xff odd\n".decode(errors="surrogateescape")
    (world / odd).mkdir(mode=0o300)
    (world / ".partial").write_text("user's own")
    complete = checkpoint.begin("1")
    assert complete or os.geteuid() != 0
    if complete:
        assert checkpoint.reattach(False, "1")
        assert sorted(os.listdir(world)) == sorted([odd, ".partial", "pipe"])
        assert stat.S_ISFIFO((world / "pipe").stat().st_mode)
        assert stat.S_IMODE((world / odd).stat().st_mode) == 0o300


def test_a_marker_that_cannot_be_read_means_a_lost_world(tmp_path: Path) -> None:
    checkpoint, _ = _box(tmp_path)
    checkpoint.begin("1")
    assert not checkpoint.reattach(True, "another place")
    (tmp_path / "open_step").write_text("{torn")
    assert checkpoint.open_step is None
    assert not checkpoint.reattach(True, "1")


NAMES = st.sampled_from(
    ["a", "b", "c", "d", "a/a", "a/b", "b/c", "a/d/e", "new\nline", b"\xff".decode(errors="surrogateescape")]
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            ["file", "file", "same", "link", "pipe", "folder", "hard link", "hard link", "remove", "rename", "mode"]
        ),
        st.sampled_from(["world", "other"]),
        NAMES,
        NAMES,
        st.sampled_from([0o600, 0o644, 0o755, 0o400, 0o4755, 0o2750]),
    ),
    max_size=14,
)


def _change(folder: Path, kind: str, tree: str, name: str, other: str, mode: int) -> None:
    path, further = folder / tree / name, folder / "world" / other
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        if path.is_fifo():
            remove_tree(path)  # to write to it would wait for a reader
        if kind in ("file", "same"):
            path.write_text(f"{mode}" if kind == "file" else "same")
            os.utime(path, ns=(10**18, 10**18))
            path.chmod(mode)
        elif kind == "link":
            path.symlink_to(other)
        elif kind == "pipe":
            os.mkfifo(path)
            path.chmod(mode)
        elif kind == "folder":
            path.mkdir()
            path.chmod(mode | 0o500)
        elif kind == "hard link":
            os.link(further, path, follow_symlinks=False)
        elif kind == "remove":
            remove_tree(path)
        elif kind == "rename":
            further.rename(path)
        elif not path.is_symlink():
            path.chmod(mode | 0o500)


def _whole(folder: Path) -> dict[str, tuple[int, object, int | None]]:
    """Everything about two trees: also which entries are linked with each other, by their first name; set-id bits apart."""
    found: dict[str, tuple[int, object, int | None]] = {}
    groups: dict[int, int] = {}
    for tree in ("world", "other"):
        for name in sorted(_paths(folder / tree)):
            path = folder / tree / name
            status = path.lstat()
            kind = stat.S_IFMT(status.st_mode)
            content: object = None
            if stat.S_ISLNK(kind):
                content = os.readlink(path)
            elif stat.S_ISREG(kind):
                content = (path.read_bytes(), status.st_mtime_ns)
            group = None if stat.S_ISDIR(kind) else groups.setdefault(status.st_ino, len(groups))
            mode = 0 if stat.S_ISLNK(kind) else status.st_mode & 0o1777
            found[f"{tree}/{name}"] = (kind | mode, content, group)
    return found


def _paths(folder: Path) -> list[str]:
    return [os.path.relpath(os.path.join(at, name), folder) for at, d, f in os.walk(folder) for name in (*d, *f)]


@given(st.lists(CHANGES, min_size=2, max_size=4))
def test_any_damage_is_undone(tmp_path_factory: pytest.TempPathFactory, steps: list[list[tuple[Any, ...]]]) -> None:
    """Files, links, pipes, modes, and what is linked with what, also across trees."""
    folder = tmp_path_factory.mktemp("box")
    for tree in ("world", "other"):
        (folder / tree).mkdir()
    checkpoint = Checkpoint(folder, ("world", "other"))
    *before, damage = steps
    for number, changes in enumerate(before):
        for change in changes:
            _change(folder, *change)
        assert checkpoint.begin(f"{number}")
    wanted = _whole(folder)
    for change in damage:
        _change(folder, *change)
    assert Checkpoint(folder, ("world", "other")).reattach(False, f"{len(before) - 1}")
    assert _whole(folder) == wanted
    for path in (folder / "checkpoint").rglob("*"):
        assert not path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)
    remove_tree(folder)


def test_names_of_one_file_are_one_copy_that_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    checkpoint = Checkpoint(tmp_path, ("world",), max_bytes=1500)
    (tmp_path / "world" / "a").write_bytes(bytes(1000))
    os.link(tmp_path / "world" / "a", tmp_path / "world" / "b")
    assert checkpoint.begin("1")
    copies = [(tmp_path / "checkpoint" / "world" / name).stat().st_ino for name in "ab"]
    assert copies[0] == copies[1]
    (tmp_path / "world" / "c").write_bytes(b"more")
    assert checkpoint.begin("2")
    assert copies == [(tmp_path / "checkpoint" / "world" / name).stat().st_ino for name in "ab"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_restores_belongs_to_the_owner_of_the_tree(tmp_path: Path) -> None:
    checkpoint, world = _box(tmp_path)
    (world / "in").mkdir()
    (world / "in" / "file").write_text("x")
    (world / "link").symlink_to("in")
    os.mkfifo(world / "pipe")
    os.link(world / "pipe", world / "in" / "pipe")
    for path in (world, *world.rglob("*")):
        os.chown(path, 12345, 12346, follow_symlinks=False)
    (world / "in" / "file").chmod(0o4755)
    assert checkpoint.begin("1")
    remove_tree(world / "in")
    assert checkpoint.reattach(False, "1")
    for path in (world, *world.rglob("*")):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (12345, 12346), path
    assert stat.S_IMODE((world / "in" / "file").stat().st_mode) == 0o755
    assert (tmp_path / "checkpoint" / "world" / "in" / "file").stat().st_uid == 0


def test_a_marker_that_was_cut_off_is_none(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    checkpoint = Checkpoint(tmp_path, ("world",))
    assert checkpoint.begin("1/100")
    long = (tmp_path / "open_step").read_bytes()
    assert checkpoint.begin("2/7")
    short = (tmp_path / "open_step").read_bytes()
    assert checkpoint.open_step == "2/7"
    assert len(short) == len(long)
    (tmp_path / "open_step").write_bytes(short[:20] + long[20:])
    assert checkpoint.open_step is None
    assert not checkpoint.reattach(True, "2/7")


def test_an_empty_world_has_no_mirror_and_can_be_restored(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    checkpoint = Checkpoint(tmp_path, ("world",))
    assert checkpoint.begin("1")
    assert not (tmp_path / "checkpoint").exists()
    (tmp_path / "world" / "file").write_text("new")
    assert Checkpoint(tmp_path, ("world",)).reattach(False, "1")
    assert list((tmp_path / "world").iterdir()) == []
