"""Images in files are found and unpacked: layouts of the OCI, what docker save writes, archives of file systems."""

from __future__ import annotations

import bz2
import gzip
import json
import tarfile
from pathlib import Path

import pytest

from manyhands.sandboxes.images.archives import find_image, unpack_image
from manyhands.sandboxes.images.extraction import BadArchive, Bounds, Extraction
from tests.support.image_files import layer, layout, member, saved, sha256

LAYERS = [layer(member("one", b"1"), member("two", b"2")), layer(member(".wh.one"), member("three", b"3"))]
CONFIG = {"Env": ["PATH=/own"], "WorkingDir": "/work", "User": "someone"}


def contents(file: Path, root: Path, tag: str | None = None) -> list[str]:
    root.mkdir()
    with Extraction(root, None, Bounds(min_free=0)) as extraction:
        unpack_image(file, find_image(file, tag), extraction)
    return sorted(path.name for path in root.iterdir())


def test_layout_as_a_folder_and_as_an_archive(tmp_path: Path) -> None:
    where = tmp_path / "layout"
    digest = layout(where, LAYERS, CONFIG)
    found = find_image(where, None)
    assert (found.digest, found.config) == (digest, CONFIG)
    assert found.size > 0
    assert contents(where, tmp_path / "a") == ["three", "two"]
    with tarfile.open(tmp_path / "layout.tar.gz", "w:gz") as archive:
        archive.add(where, ".")
    assert find_image(tmp_path / "layout.tar.gz", None).digest == digest
    assert contents(tmp_path / "layout.tar.gz", tmp_path / "b") == ["three", "two"]


def test_several_images_in_one_layout(tmp_path: Path) -> None:
    first, second = layout(tmp_path, LAYERS[:1], tag="one"), layout(tmp_path, LAYERS, tag="two")
    assert find_image(tmp_path, "one").digest == first
    assert find_image(tmp_path, second).digest == second
    with pytest.raises(BadArchive, match="2 images; name one of them behind a #: one, two"):
        find_image(tmp_path, None)
    with pytest.raises(BadArchive, match="no image three"):
        find_image(tmp_path, "three")


def test_index_of_several_machines(tmp_path: Path) -> None:
    layout(tmp_path, LAYERS)
    index = json.loads((tmp_path / "index.json").read_text())
    (ours,) = index["manifests"]
    inner = {
        "manifests": [
            {**ours, "platform": {"os": "linux", "architecture": "other"}, "digest": "sha256:" + "0" * 64},
            {**ours, "platform": {"os": "linux", "architecture": "amd64"}},
        ]
    }
    content = json.dumps(inner).encode()
    (tmp_path / "blobs" / "sha256" / sha256(content)[7:]).write_bytes(content)
    outer = {"digest": sha256(content), "mediaType": "application/vnd.oci.image.index.v1+json", "size": len(content)}
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [outer]}))
    assert find_image(tmp_path, None, machine="amd64").digest == ours["digest"]
    with pytest.raises(BadArchive, match="no image linux/riscv64"):
        find_image(tmp_path, None, machine="riscv64")


def test_what_docker_save_writes(tmp_path: Path) -> None:
    file = tmp_path / "saved.tar"
    digest = saved(file, LAYERS, CONFIG)
    found = find_image(file, "made:1")
    assert (found.digest, found.config) == (digest, CONFIG)
    assert contents(file, tmp_path / "root") == ["three", "two"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
def test_archive_of_a_file_system(tmp_path: Path, compress: type[bytes]) -> None:
    file = tmp_path / "rootfs.tar"
    file.write_bytes(compress(layer(member("one", b"1"), member(".wh.name", b"as it is"))))
    before = find_image(file, None)
    assert contents(file, tmp_path / "root") == [".wh.name", "one"]
    (tmp_path / "rootfs.tar.json").write_text(json.dumps(CONFIG))
    after = find_image(file, None)
    assert after.config == CONFIG
    assert after.digest != before.digest


def test_damaged_blobs_are_noticed(tmp_path: Path) -> None:
    layout(tmp_path / "a", LAYERS)
    for number, blob in enumerate(sorted((tmp_path / "a" / "blobs" / "sha256").iterdir())):
        content = blob.read_bytes()
        blob.write_bytes(content[:-9] + b"x" + content[-8:])
        with pytest.raises(BadArchive):
            contents(tmp_path / "a", tmp_path / f"root{number}")
        blob.write_bytes(content)
    file = tmp_path / "saved.tar"
    saved(file, LAYERS)
    content = file.read_bytes().replace(b"two", b"owt", 1)
    file.write_bytes(content)
    with pytest.raises(BadArchive, match="damaged"):
        contents(file, tmp_path / "root")


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "{}",
        "no JSON",
        '{"manifests": [1]}',
        '{"manifests": [{"digest": "../../../etc/passwd"}]}',
        '{"manifests": [{"digest": "sha256:../../../../../../../../etc/passwd"}]}',
        '{"manifests": []}',
        "[" * 100_000,
    ],
)
def test_hostile_indexes(tmp_path: Path, index: str) -> None:
    (tmp_path / "index.json").write_text(index)
    (tmp_path / "oci-layout").touch()
    with pytest.raises(BadArchive):
        find_image(tmp_path, None)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadArchive, match="no layout"):
        find_image(tmp_path / "empty", None)
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(BadArchive, match="no archive"):
        find_image(tmp_path / "text", None)
    (tmp_path / "zst").write_bytes(b"\x28\xb5\x2f\xfd rest of it")
    with pytest.raises(BadArchive, match="zstd"):
        find_image(tmp_path / "zst", None)
