"""Folders that are their owner's alone."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from manyhands.io.files import make_private


@pytest.mark.parametrize("apart", [False, True])
def test_it_is_made_with_those_above_and_kept_private(tmp_path: Path, apart: bool) -> None:
    folder = tmp_path / "a" / "b"
    make_private(folder, apart=apart)
    folder.chmod(0o755)
    make_private(folder, apart=apart)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_ext4_spreads_what_is_in_a_folder_of_unrelated_ones(tmp_path: Path) -> None:
    if _shown("stat", "--file-system", "--format=%T", str(tmp_path)) != "ext2/ext3":
        pytest.skip("the temporary folder is on another file system")
    for name, apart in (("together", False), ("apart", True)):
        make_private(tmp_path / name, apart=apart)
        assert ("T" in _shown("lsattr", "-d", str(tmp_path / name)).split()[0]) == apart


def _shown(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
