"""What changed between two folders: the diff says all of it, git's and the one without git alike."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.processes.commands import CommandRunner
from manyhands.processes.strays import process_mark
from manyhands.workloads.evals.workspaces import changes as module
from manyhands.workloads.evals.workspaces.changes import changed, cut, file_changes, plain_diff

LINES = st.lists(st.sampled_from(["", "a", "b", "ü", "--- x", "@@ -1 +1 @@"]), max_size=8)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, LINES, st.sampled_from(["", "\n"]))
TREES = st.dictionaries(st.sampled_from(["one", "two words", "in/three", 'in/"quoted"']), TEXTS, max_size=4)


async def diff(before: Path, after: Path, environ: dict[str, str] | None = None) -> str:
    mark = process_mark(secrets.token_hex(8))
    async with CommandRunner.opened(mark, environ or {"PATH": os.environ["PATH"]}) as runner:
        return await file_changes(before, after, before.parent / "scratch", runner)


def plain(before: Path, after: Path) -> str:
    return "".join(map(plain_diff, changed(before, after)))


def fill(folder: Path, files: dict[str, str]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@given(old=TREES, new=TREES)
def test_the_diff_without_git_turns_one_folder_into_the_other(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], new: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("trees")
    before, after = fill(folder / "before", old), fill(folder / "after", new)
    text = plain(before, after)
    assert (text == "") == (old == new)
    if text:
        environ = {**os.environ, "GIT_DIR": str(folder / "none")}
        subprocess.run(["git", "apply", "--unidiff-zero"], input=text.encode(), cwd=before, env=environ, check=True)
        assert content(before) == content(after)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    return (
        fill(tmp_path / "before", {"kept": "same\n", "text": "1\n2\n", "gone": "x\n"}),
        fill(tmp_path / "after", {"kept": "same\n", "text": "1\nzwei\n", "new": ""}),
    )


async def test_git_and_the_diff_without_it_say_the_same(folders: tuple[Path, Path]) -> None:
    before, after = folders
    (after / "binary").write_bytes(b"\0\1")
    (after / "link").symlink_to("/nowhere")
    (after / "kept").chmod(0o755)
    (after / ".git").mkdir()
    (after / ".git" / "config").write_text("not for anybody")
    found = await diff(before, after)
    index = [line for line in found.splitlines() if line.startswith("index ")]
    assert index  # it is git's
    assert [line for line in found.splitlines() if line not in index] == plain(before, after).splitlines()
    assert "-2\n+zwei\n" in found
    assert "Binary files /dev/null and b/binary differ\n" in found
    assert "old mode 100644\nnew mode 100755\n" in found
    assert "config" not in found
    without = await diff(before, after, {"PATH": "/nonexistent"})
    assert without == plain(before, after)
    assert not (before.parent / "scratch").exists()


async def test_settings_of_git_and_a_repository_around_change_nothing(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    before, after = folders
    expected = await diff(before, after)
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitattributes").write_text("* binary\n")
    (tmp_path / "settings").write_text("[diff]\n\tnoprefix = true\n\texternal = false\n[color]\n\tui = always\n")
    environ = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": str(tmp_path / "settings"),
        "GIT_EXTERNAL_DIFF": "false",
    }
    assert await diff(before, after, environ) == expected


async def test_nothing_changed(folders: tuple[Path, Path]) -> None:
    before, _ = folders
    assert await diff(before, before) == ""


@pytest.mark.parametrize("environ", [None, {"PATH": "/nonexistent"}], ids=["git", "plain"])
async def test_a_long_diff_is_cut_and_says_so(tmp_path: Path, environ: dict[str, str] | None) -> None:
    lines = [f"line {number} of many\n" for number in range(20_000)]
    before = fill(tmp_path / "before", {"long": "".join(lines)})
    after = fill(tmp_path / "after", {"long": "".join(lines[::-1])})
    found = await diff(before, after, environ)
    assert len(found) < module.MAX_CHARACTERS + 100
    assert found.splitlines()[-1].startswith("[cut after ")
    assert found.startswith("diff --git a/long b/long\n")


async def test_few_lines_in_a_long_file_are_a_short_diff(tmp_path: Path) -> None:
    lines = [f"{number}\n" for number in range(50_000)]
    before = fill(tmp_path / "before", {"long": "".join(lines)})
    after = fill(tmp_path / "after", {"long": "".join([*lines[:30_000], "new\n", *lines[30_000:]])})
    assert len(plain(before, after)) < 1000
    assert len(await diff(before, after)) < 1000


async def test_a_huge_file_is_only_named(tmp_path: Path) -> None:
    before = fill(tmp_path / "before", {"huge": "x"})
    after = fill(tmp_path / "after", {"huge": "y" * (module.MAX_FILE_BYTES + 1), "small": "z\n"})
    found = await diff(before, after)
    assert "diff --git a/huge b/huge\n[too many files, or too large a file" in found
    assert "+z\n" in found
    assert len(found) < 1000


def test_a_cut_is_behind_a_line() -> None:
    assert cut("short\n") == "short\n"
    long = "0123456789\n" * 20_000
    kept, *rest = cut(long).rpartition("[cut")
    assert long.startswith(kept)
    assert kept.endswith("\n")
    assert rest[0] == "[cut"


async def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    before, after = fill(tmp_path / "before", {}), fill(tmp_path / "after", {})
    os.mkfifo(after / "pipe")
    (after / "empty folder").mkdir()
    assert await asyncio.wait_for(diff(before, after), 20) == ""


@pytest.mark.parametrize("name", ["tab\there", "line\nbreak", 'a"b'])
async def test_odd_names_are_quoted_as_git_does(tmp_path: Path, name: str, same: Callable[..., None]) -> None:
    before, after = fill(tmp_path / "before", {}), fill(tmp_path / "after", {name: "x\n"})
    same(await diff(before, after), plain(before, after))


@pytest.fixture
def same() -> Callable[[str, str], None]:
    def check(found: str, expected: str) -> None:
        lines = [line.rstrip("\t") for line in found.splitlines() if not line.startswith("index ")]
        assert lines == [line.rstrip("\t") for line in expected.splitlines()]

    return check
