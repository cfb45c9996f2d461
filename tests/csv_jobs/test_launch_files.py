"""The folder of a launch: what is in it, and when it is used again for another row."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.workloads.csv_jobs.workers.launch_files import LaunchFiles, LaunchFolders
from tests.support.job_rows import SCORE_SCHEMA, assignment

WORK = assignment(SCORE_SCHEMA, printing=True)


def contents(files: LaunchFiles) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(files.folder).iterdir()}


def made(folders: LaunchFolders, folder: Path, prompt: str) -> tuple[LaunchFiles, int]:
    """The files, and the number of one on the disk."""
    files = folders.written(str(folder), prompt, WORK)
    assert contents(files).keys() == {"prompt.txt", "row.json", "schema.json"}
    assert contents(files)["prompt.txt"] == prompt
    assert contents(files)["schema.json"] == WORK.schema.text
    return files, os.stat(files.prompt).st_ino


def test_a_folder_is_used_again_and_holds_the_next_row_alone(tmp_path: Path) -> None:
    folders = LaunchFolders()
    first, file = made(folders, tmp_path / "1-1", "a long prompt")
    Path(first.schema).write_text("spoiled")
    folders.give_back(first)
    assert not (tmp_path / "1-1").exists()
    assert made(folders, tmp_path / "2-1", "short")[1] == file
    assert [path.name for path in tmp_path.iterdir()] == ["2-1"]


def _link(files: LaunchFiles) -> None:
    os.link(files.row, Path(files.folder).parent / "kept")


def _replace(files: LaunchFiles) -> None:
    os.unlink(files.row)
    os.symlink("elsewhere", files.row)


def _link_the_folder(files: LaunchFiles) -> None:
    elsewhere = Path(files.folder).parent / "elsewhere"
    os.rename(files.folder, elsewhere)
    os.symlink(elsewhere, files.folder)


@pytest.mark.parametrize(
    "change",
    [
        _link_the_folder,
        lambda files: os.chmod(files.folder, 0o555),
        lambda files: os.chmod(files.row, 0o4777),
        lambda files: Path(files.folder, "notes").touch(),
        lambda files: os.unlink(files.row),
        _replace,
        lambda files: os.chmod(files.row, 0o444),
        _link,
    ],
)
def test_one_that_the_command_changed_is_left_as_it_is(tmp_path: Path, change: Callable[[LaunchFiles], object]) -> None:
    folders = LaunchFolders()
    files, _ = made(folders, tmp_path / "1-1", "first")
    change(files)
    folders.give_back(files)
    assert (tmp_path / "1-1").exists()
    made(folders, tmp_path / "2-1", "second")
    assert (tmp_path / "1-1").exists()


def test_none_is_used_again_where_all_are_kept(tmp_path: Path) -> None:
    folders = LaunchFolders(reused=False)
    folders.give_back(made(folders, tmp_path / "1-1", "first")[0])
    made(folders, tmp_path / "2-1", "second")
    assert (tmp_path / "1-1" / "prompt.txt").read_text() == "first"


def test_a_further_launch_of_an_attempt_finds_what_the_one_before_left(tmp_path: Path) -> None:
    folders = LaunchFolders()
    folders.give_back(made(folders, tmp_path / "1-1", "first")[0])
    (tmp_path / "2-1").mkdir()
    (tmp_path / "2-1" / "notes").write_text("mine")
    files = folders.written(str(tmp_path / "2-1"), "again", WORK)
    assert contents(files)["notes"] == "mine"
    assert contents(files)["prompt.txt"] == "again"
