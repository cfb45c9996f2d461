"""Packing into tar archives: what was packed is what is unpacked, and nothing else."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.agents.worlds.archives import unpack
from manyhands.sandboxes.files.packing import Packer, TooLarge, found_at, walked

NAMES = st.binary(min_size=1, max_size=120).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")
)
FILES = st.tuples(st.binary(max_size=2000), st.integers(0, 0o7777))
LINKS = st.binary(min_size=1, max_size=150).filter(lambda target: 0 not in target)
TREES = st.recursive(
    st.dictionaries(NAMES, st.one_of(FILES, LINKS), max_size=4),
    lambda inner: st.dictionaries(NAMES, st.one_of(FILES, LINKS, inner), max_size=4),
    max_leaves=12,
)


def make(folder: bytes, tree: dict[bytes, Any]) -> None:
    os.makedirs(folder, exist_ok=True)
    for name, entry in tree.items():
        path = folder + b"/" + name
        if isinstance(entry, dict):
            make(path, entry)
        elif isinstance(entry, bytes):
            os.symlink(entry, path)
        else:
            with open(path, "wb") as file:
                file.write(entry[0])
            os.chmod(path, entry[1] | 0o400)


def packed(folder: Path, *, below: str = "", **more: Any) -> io.BytesIO:
    archive = io.BytesIO()
    with Packer(archive, **{"max_bytes": 1 << 20, **more}) as packer:
        for found in walked(folder, below):
            packer.add(found)
    archive.seek(0)
    return archive


def seen(folder: Path) -> dict[str, Any]:
    """What is in a folder: permissions and content of files, targets of links."""
    return {
        each.path: each.target
        or (
            each.kind,
            each.mode if each.kind == stat.S_IFREG else 0,
            each.place.read_bytes() if each.kind == stat.S_IFREG else b"",
        )
        for each in walked(folder)
    }


@settings(max_examples=settings().max_examples, deadline=None)
@given(tree=TREES)
def test_what_was_packed_is_what_is_unpacked(tree: dict[bytes, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        one, other = Path(name, "one"), Path(name, "other")
        make(os.fsencode(one), tree)
        other.mkdir()
        assert unpack(packed(one, below="workspace"), other) == 0
        assert seen(other) == seen(one)
        with tarfile.open(fileobj=packed(one)) as archive:
            members = archive.getmembers()
        assert [member.name for member in members] == [found.path for found in walked(one)]
        assert all((member.uid, member.gid, member.mode & ~0o777) == (0, 0, 0) for member in members)


def test_without_times_the_same_files_are_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    first = packed(tmp_path, times=False).getvalue()
    os.utime(tmp_path / "file", (1, 1))
    assert packed(tmp_path, times=False).getvalue() == first
    assert packed(tmp_path).getvalue() != first


def test_a_further_name_of_a_file_is_a_file_and_no_socket_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    os.link(tmp_path / "file", tmp_path / "name")
    os.mkfifo(tmp_path / "pipe")
    assert [each.packable for each in walked(tmp_path)] == [True, True, False]
    archive = io.BytesIO()
    with Packer(archive, max_bytes=100) as packer:
        contents = [packer.add(found_at(tmp_path / name, name)) for name in ("file", "name")]
        packer.add_data("third", b"text")
    assert contents[0] == contents[1]
    with tarfile.open(fileobj=io.BytesIO(archive.getvalue())) as found:
        assert [(each.isreg(), each.size) for each in found] == [(True, 4)] * 3


def test_limits_hold_for_bytes_and_for_entries(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("text")
    with pytest.raises(TooLarge, match="7 bytes"):
        packed(tmp_path, max_bytes=7)
    with pytest.raises(TooLarge, match="1 files and folders"):
        packed(tmp_path, max_entries=1)
    packed(tmp_path, max_bytes=8, max_entries=2)


def test_what_became_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    found = found_at(tmp_path / "file", "file")
    (tmp_path / "file").unlink()
    (tmp_path / "file").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"), Packer(io.BytesIO(), max_bytes=1 << 20) as packer:
        packer.add(found)
