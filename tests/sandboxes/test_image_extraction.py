"""Layers of images are unpacked as they are meant, and hostile ones reach nothing outside."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from manyhands.sandboxes.images.extraction import BadArchive, Bounds, Extraction, Owners
from tests.support.image_files import folder, hard_link, layer, link, member

AS_ROOT = os.geteuid() == 0


def unpacked(root: Path, *layers: bytes, owners: Owners | None = None, bounds: Bounds | None = None) -> Path:
    root.mkdir()
    with Extraction(root, owners, bounds or Bounds(min_free=0)) as extraction:
        for each in layers:
            extraction.add_layer(io.BytesIO(each))
    return root


def listed(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_entries_are_what_the_archive_says(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path / "root",
        layer(
            folder("./", 0o711),
            folder("./dir", 0o1777),
            member("dir/file", b"text", mode=0o640, mtime=978307200),
            hard_link("dir/other", "dir/file"),
            link("to", "dir/file"),
            member("pipe", type=tarfile.FIFOTYPE, mode=0o600),
            folder("closed", 0o000),
            member("closed/inside", b"x"),
            member("made/on/the/way", b"y"),
        ),
    )
    assert listed(root) == [
        *("closed", *(["closed/inside"] if AS_ROOT else []), "dir", "dir/file", "dir/other", "made", "made/on"),
        *("made/on/the", "made/on/the/way", "pipe", "to"),
    ]
    assert stat.S_IMODE(root.stat().st_mode) == 0o711
    assert stat.S_IMODE((root / "dir").stat().st_mode) == 0o1777
    assert stat.S_IMODE((root / "closed").stat().st_mode) == 0
    status = (root / "dir" / "file").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime, status.st_nlink) == (0o640, 978307200, 2)
    assert os.readlink(root / "to") == "dir/file"
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    (root / "closed").chmod(0o700)


def test_set_ids_and_devices_are_left_out(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path / "root",
        layer(
            member("su", b"x", mode=0o4755),
            folder("group", 0o2775),
            member("disk", type=tarfile.BLKTYPE, devmajor=8),
            member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        ),
    )
    assert listed(root) == ["group", "su"]
    assert stat.S_IMODE((root / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "group").stat().st_mode) == 0o775


@pytest.mark.skipif(not AS_ROOT, reason="only root can give files away")
def test_owners_are_shifted(tmp_path: Path) -> None:
    entries = layer(
        member("file", b"x", uid=1000, gid=33),
        member("far", b"x", uid=4_000_000_000, gid=70_000),
        member("way/down", b"x", uid=7),
        link("to", "file"),
    )
    root = unpacked(tmp_path / "many", entries, owners=Owners(100_000, 200_000, 65_536))
    found = {name: (status.st_uid, status.st_gid) for name in listed(root) if (status := (root / name).lstat())}
    assert found == {
        "file": (101_000, 200_033),
        "far": (165_534, 265_534),
        "way": (100_000, 200_000),
        "way/down": (100_007, 200_000),
        "to": (100_000, 200_000),
    }
    one = unpacked(tmp_path / "one", entries, owners=Owners(100_000, 200_000))
    assert {(one / name).lstat().st_uid for name in listed(one)} == {100_000}


def test_layers_take_away_what_lower_ones_have(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path / "root",
        layer(member("a/one", b"1"), member("a/two", b"2"), member("b/deep/three", b"3"), member("c", b"4")),
        layer(
            member("a/.wh.one"),
            member("a/new", b"5"),
            member("b/added", b"6"),
            member("b/.wh..wh..opq"),
            folder("c"),
            member("c/inside", b"7"),
            member(".wh.nothing"),
        ),
        layer(member("a", b"a file now"), member("kept", b"8"), member(".wh.kept")),
    )
    assert listed(root) == ["a", "b", "b/added", "c", "c/inside", "kept"]
    assert (root / "a").read_bytes() == b"a file now"


def test_links_on_the_way_lead_where_they_would_inside(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path / "root",
        layer(
            folder("usr"), folder("usr/lib"), link("lib", "usr/lib"), link("abs", "/usr"), link("usr/up", "../usr/lib")
        ),
        layer(
            member("lib/one", b"1"),
            member("abs/two", b"2"),
            member("usr/up/three", b"3"),
            hard_link("abs/four", "lib/one"),
        ),
    )
    assert listed(root) == [
        *("abs", "lib", "usr", "usr/four", "usr/lib", "usr/lib/one", "usr/lib/three", "usr/two", "usr/up"),
    ]


OUT = "../" * 20


@pytest.mark.parametrize(
    "entries",
    [
        [member("../escaped", b"x")],
        [member("a/../../escaped", b"x")],
        [link("out", OUT + "tmp"), member("out/../escaped", b"x")],
        [hard_link("own", "../secret")],
        [member("dir/x", b"x"), hard_link("own", "dir")],
        [hard_link("own", "nothing")],
        [link("a", "b"), link("b", "a"), member("a/escaped", b"x")],
        [member("file", b"x"), member("file/below", b"x")],
        [member("/".join(["d"] * 300) + "/x", b"x")],
        [member("long" * 100, b"x")],
        [member("a/.wh...", b"")],
    ],
)
def test_hostile_entries_are_refused(tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(BadArchive):
        unpacked(tmp_path / "root", layer(*entries))
    assert (tmp_path / "secret").read_text() == "secret"
    assert sorted(os.listdir(tmp_path)) == ["root", "secret"]


def test_hostile_links_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    root = unpacked(
        tmp_path / "root",
        layer(
            link("out", str(outside)),
            link("up", OUT.rstrip("/")),
            link("file", str(outside / "secret")),
            link("own", str(outside / "secret")),
        ),
        layer(
            member("out/new", b"x"),
            member("up/new", b"x"),
            member("file", b"replaced"),
            member("out/.wh.secret"),
            member("out/.wh..wh..opq"),
            hard_link("named", "own"),
            folder("own", 0o777),
        ),
    )
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert (outside / "secret").stat().st_nlink == 1
    assert (root / "new").read_bytes() == b"x"
    assert (root / "file").read_bytes() == b"replaced"
    assert (root / "own").is_dir()


def test_bounds(tmp_path: Path) -> None:
    many = layer(*(member(f"f{number}") for number in range(20)))
    with pytest.raises(BadArchive, match="too many"):
        unpacked(tmp_path / "many", many, bounds=Bounds(entries=10))
    with pytest.raises(BadArchive, match="too many"):
        unpacked(tmp_path / "large", layer(member("f", b"x" * 5000)), bounds=Bounds(size=4000))
    with pytest.raises(BadArchive, match="disk"):
        unpacked(tmp_path / "full", layer(member("f", b"x" * (2 << 20))), bounds=Bounds(min_free=1 << 60))
    header = layer(member("x" * 2_000_000, b""))  # its name is kept in a header of its own
    with pytest.raises(BadArchive, match="too long"):
        unpacked(tmp_path / "header", header)
    for number, broken in enumerate((b"no archive at all" * 100, layer(member("f", b"x" * 5000))[:3000])):
        with pytest.raises(BadArchive, match="damaged"):
            unpacked(tmp_path / f"broken{number}", broken)
