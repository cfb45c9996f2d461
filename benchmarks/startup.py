"""How long a person waits for the program to say anything."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.rows import Row


def program() -> list[str]:
    """The installed command, or the module where it is not installed."""
    script = Path(sys.executable).with_name("manyhands")
    return [str(script)] if script.exists() else [sys.executable, "-m", "manyhands"]


def startup(quick: bool) -> Iterator[Row]:
    """The median of some runs of ``manyhands --help``, after one that does not count."""
    seconds = [_seconds([*program(), "--help"]) for _ in range(6 if quick else 16)][1:]
    yield Row("startup: manyhands --help", median(seconds), "s", at_most=0.25, note=f"median of {len(seconds)} runs")


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
