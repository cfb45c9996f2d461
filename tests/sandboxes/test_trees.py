"""Folders that a model wrote."""

import os
from pathlib import Path

import pytest

from manyhands.sandboxes.files.removing import clear_folder, remove_tree
from manyhands.sandboxes.files.trees import NotPlain, open_folder, open_regular, replace_file


def test_remove_tree_takes_any_tree_and_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    outside.chmod(0o500)
    tree = tmp_path / "tree"
    (tree / "locked" / "deep").mkdir(parents=True)
    (tree / "locked" / "deep" / "file").write_text("x")
    (tree / "link").symlink_to(outside)
    (tree / "locked" / "link").symlink_to(outside / "kept")
    (tree / "dangling").symlink_to("nowhere")
    for name in ("-rf", " spaced ", "new\nline", b"\xff\xfe".decode(errors="surrogateescape"), "*"):
        (tree / name).mkdir()
        (tree / name / name).write_text("x")
    os.mkfifo(tree / "pipe")
    (tree / "locked" / "deep").chmod(0)
    (tree / "locked").chmod(0o500)
    tree.chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").read_text() == "kept"
    assert outside.stat().st_mode & 0o777 == 0o500
    outside.chmod(0o700)


def test_remove_tree_takes_any_depth(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    folder = os.open(tree, os.O_RDONLY)
    for _ in range(3000):  # far beyond what a path can name
        os.mkdir("d", dir_fd=folder)
        deeper = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = deeper
    os.close(folder)
    remove_tree(tree)
    assert not tree.exists()


def test_remove_tree_takes_files_links_and_nothing(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "file").write_text("x")
    for name in ("link", "file", "missing"):
        remove_tree(tmp_path / name)
    assert os.listdir(tmp_path) == ["target"]


def test_clear_folder_keeps_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    before = tmp_path.stat().st_ino
    clear_folder(tmp_path)
    assert os.listdir(tmp_path) == []
    assert tmp_path.stat().st_ino == before


def test_links_are_refused_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "alias").symlink_to("file")
    os.mkfifo(tmp_path / "real" / "pipe")
    with pytest.raises(NotPlain), open_folder(tmp_path, ["link"]):
        pass
    with open_folder(tmp_path, ["real"]) as folder:
        for name in ("alias", "pipe"):
            with pytest.raises(NotPlain):
                open_regular(folder, name)
            with pytest.raises(NotPlain):
                replace_file(folder, name, b"y")
        replace_file(folder, "file", b"y")
    assert (tmp_path / "real" / "file").read_bytes() == b"y"
    assert sorted(os.listdir(tmp_path / "real")) == ["alias", "file", "pipe"]
