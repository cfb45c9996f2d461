"""Published sessions of the GoodAI LTM Benchmark: one that is kept here, or all of the folder that ``MANYHANDS_GOODAI_DATA`` names."""

from __future__ import annotations

import csv
import os
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

VARIABLE = "MANYHANDS_GOODAI_DATA"
_EXCERPT = Path(__file__).parents[1] / "data" / "memory" / "goodai" / "claude-3-opus-1k.tar.gz"
_NAMED = os.environ.get(VARIABLE)

needs_all_sessions = pytest.mark.skipif(_NAMED is None, reason=f"{VARIABLE} names no folder of published sessions")


@cache
def _unpacked() -> TemporaryDirectory[str]:
    folder = TemporaryDirectory(prefix="manyhands-goodai-")
    with tarfile.open(_EXCERPT) as archive:
        archive.extractall(folder.name, filter="data")
    return folder


def published() -> Path:
    """The folder with ``tests`` and ``verification``. Raises FileNotFoundError if the one that is named is none."""
    folder = Path(_unpacked().name if _NAMED is None else _NAMED)
    if not (folder / "verification").is_dir():
        raise FileNotFoundError(f"{VARIABLE}: {folder} holds no published sessions")
    return folder


def expected(name: str) -> list[dict[str, str]]:
    """What must come out of the sessions that are there: the rows of ``verification/NAME.csv``."""
    with (published() / "verification" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
