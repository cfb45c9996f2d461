"""The page about the viewer: its keys are those that there are, and its pictures can be made anew."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.view.pages.help import KEYS
from tests.support.browsers import needs_chromium

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs/images"
MOST_BYTES, WIDTH = 200_000, 1280
LONGEST = 300.0


def page() -> str:
    return (ROOT / "docs/viewer.md").read_text(encoding="utf-8")


def shown() -> set[str]:
    """The pictures that the page shows."""
    return set(re.findall(r"\]\(images/([\w-]+\.png)\)", page()))


def width(picture: Path) -> int:
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n"), picture
    return int(struct.unpack(">I", head[16:20])[0])


def assert_good(pictures: list[Path]) -> None:
    assert {picture.name for picture in pictures} == shown()
    assert len(pictures) == 6
    assert {width(picture) for picture in pictures} == {WIDTH}
    assert max(picture.stat().st_size for picture in pictures) <= MOST_BYTES


def test_the_keys_are_those_of_the_pages() -> None:
    table = page().split("\n## Keys")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", table, re.MULTILINE)
    assert rows == [(" ".join(f"`{key}`" for key in keys), does) for keys, does in KEYS]


def test_the_documentation_shows_six_small_pictures() -> None:
    assert_good(sorted(IMAGES.glob("viewer-*.png")))


@pytest.mark.slow
@needs_chromium
def test_they_are_made_of_real_runs_whose_pages_report_nothing_and_ask_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "tools/screenshots.py", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert_good(sorted(tmp_path.glob("*.png")))
