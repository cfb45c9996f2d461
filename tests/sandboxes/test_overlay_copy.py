"""Copies of upper folders of overlays."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from manyhands.sandboxes.files.overlay_copy import TooLarge, copy_upper, fill_upper
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import NotPlain, TooMuch

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can read what engines keep")
_CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
"""``cap_net_bind_service+ep``, as ``security.capability`` holds it (capabilities(7))."""


def listing(tree: Path) -> dict[bytes, tuple[object, ...]]:
    """All that there is to know of a tree."""
    found: dict[bytes, tuple[object, ...]] = {}
    top = os.fsencode(tree)
    numbers: dict[int, bytes] = {}
    for folder, folders, files in os.walk(top):
        for path in sorted([folder, *(os.path.join(folder, name) for name in (*folders, *files))]):
            status = os.lstat(path)
            name = os.path.relpath(path, top)
            plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            attributes = (
                {each: os.getxattr(path, each) for each in sorted(os.listxattr(path, follow_symlinks=False))}
                if plain
                else None
            )
            content: bytes | None = None
            if stat.S_ISREG(status.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            several = not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1
            first = numbers.setdefault(status.st_ino, name) if several else None
            when = None if stat.S_ISLNK(status.st_mode) else status.st_mtime_ns
            found[name] = (
                status.st_mode, status.st_uid, status.st_gid, status.st_rdev, when, attributes, content, first,
            )  # fmt: skip
    return found


def upper_folder(path: Path) -> Path:
    """One with everything that an overlay and its users leave."""
    path.mkdir()
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "er" / "file").write_bytes(b"x" * 100_000)
    os.link(path / "deep" / "er" / "file", path / "linked")
    (path / "program").write_bytes(b"#!/bin/sh\n")
    os.chown(path / "program", 7, 8)
    os.setxattr(path / "program", "security.capability", _CAPABILITY)
    (path / "rights").write_bytes(b"")
    os.chown(path / "rights", 9, 0)
    (path / "rights").chmod(0o6755)
    (path / "link").symlink_to("/etc/shadow")
    os.lchown(path / "link", 5, 6)
    (path / "loop").symlink_to(".")
    os.mkfifo(path / "pipe", 0o640)
    os.mknod(path / "removed", stat.S_IFCHR, 0)
    (path / "replaced").mkdir(mode=0o1777)
    os.setxattr(path / "replaced", "trusted.overlay.opaque", b"y")
    (path / "closed").mkdir()
    (path / "closed" / "in").write_text("in")
    (path / "closed").chmod(0)
    Path(os.fsdecode(os.fsencode(path) + b"/\xff\n odd")).write_bytes(b"\0")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path / "socket"))
    (path / "link-in-dir").mkdir()
    os.utime(path / "link-in-dir", (1, 2))
    os.setxattr(path, "trusted.overlay.origin", b"layers of another container")
    os.chown(path, 3, 4)
    path.chmod(0o751)
    os.utime(path, (3, 4))
    return path


def test_a_copy_and_what_is_made_of_it_are_equal_in_everything(tmp_path: Path) -> None:
    source, copy, other = upper_folder(tmp_path / "source"), tmp_path / "copy", tmp_path / "other"
    wanted = listing(source)
    copy_upper(source, copy, max_bytes=1 << 30)
    assert listing(source) == wanted
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700  # what may be set-user-id is nobody else's
    other.mkdir()
    (other / "workspace").mkdir()
    (other / "removed").mkdir()  # as an engine makes the folder where commands start
    fill_upper(copy, other)
    (other / "workspace").rmdir()
    os.utime(other, (3, 4))
    mode, *rest = wanted[b"."]
    attributes = {name: value for name, value in rest[4].items() if name != "trusted.overlay.origin"}  # type: ignore[attr-defined]
    assert listing(other) == {**wanted, b".": (mode, *rest[:4], attributes, *rest[5:])}


def test_a_copy_over_another_one_has_nothing_of_it_left(tmp_path: Path) -> None:
    source, copy = upper_folder(tmp_path / "source"), tmp_path / "copy"
    copy_upper(source, copy, max_bytes=1 << 30)
    (source / "linked").unlink()  # whose other name has but one now
    (source / "program").write_bytes(b"x")
    (source / "program").chmod(0o644)
    (source / "rights").write_bytes(b"longer than before")
    (source / "link").unlink()
    (source / "link").mkdir()
    (source / "replaced").rmdir()
    (source / "replaced").write_text("a file")
    (source / "pipe").unlink()
    os.link(source / "program", source / "pipe")
    remove_tree(source / "closed")
    os.removexattr(source, "trusted.overlay.origin")
    (source / "deep" / "er" / "file").write_bytes(b"short")
    (source / "removed").unlink()
    os.utime(source, (3, 4))
    copy_upper(source, copy, max_bytes=1 << 30)
    assert listing(copy / "upper") == listing(source)
    copy_upper(source, copy, max_bytes=1 << 30)
    assert listing(copy / "upper") == listing(source)


def test_what_an_engine_put_there_is_not_overwritten(tmp_path: Path) -> None:
    source, copy, other = upper_folder(tmp_path / "source"), tmp_path / "copy", tmp_path / "other"
    copy_upper(source, copy, max_bytes=1 << 30)
    other.mkdir()
    (other / "removed").mkdir()
    (other / "removed" / "file").write_text("kept")
    with pytest.raises(OSError, match="not empty"):
        fill_upper(copy, other)
    assert (other / "removed" / "file").read_text() == "kept"


def test_devices_and_too_much_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(NotPlain, match="device"):
        copy_upper(source, tmp_path / "copy", max_bytes=1 << 30)
    (source / "null").unlink()
    (source / "/".join("d" * 80)).mkdir(parents=True)
    with pytest.raises(TooMuch, match="within each other"):
        copy_upper(source, tmp_path / "deep", max_bytes=1 << 30)
    remove_tree(source)
    source.mkdir()
    (source / "first").write_text("x")
    for number in range(20_000):
        os.link(source / "first", source / str(number))
    with pytest.raises(TooMuch, match="entries"):
        copy_upper(source, tmp_path / "many", max_bytes=1 << 30)


def test_holes_count_as_bytes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        with (source / f"{number}").open("wb") as file:
            file.truncate(400)
    with pytest.raises(TooLarge):
        copy_upper(source, tmp_path / "copy", max_bytes=1000)
    copy_upper(source, tmp_path / "other", max_bytes=1200)


def test_a_source_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "source").symlink_to("secret")
    with pytest.raises(OSError, match="directory"):
        copy_upper(tmp_path / "source", tmp_path / "copy", max_bytes=1 << 30)
