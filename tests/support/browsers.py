"""The browser of tests that need one."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The program; None where there is none."""
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""With which it is started: it asks for nothing that no page asks for."""
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def main_process(folder: Path) -> Path:
    """Where ``/proc`` has the browser whose home is in a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = b"\0" + (process / "environ").read_bytes()
            words = words_of(process)
            if f"\0HOME={folder}/".encode() in variables and "--headless" in words and _kind(words) is None:
                return process
    raise AssertionError("no browser runs there")


def words_of(process: Path) -> list[str]:
    """With which words a process was started."""
    return (process / "cmdline").read_bytes().decode().split("\0")


def network_process(main: Path) -> int:
    """The process by which a browser reaches the network."""
    for thread in main.glob("task/*/children"):
        for child in thread.read_text().split():
            if any("NetworkService" in word for word in words_of(Path("/proc") / child)):
                return int(child)
    raise AssertionError("it has none")


def _kind(words: list[str]) -> str | None:
    return next((word for word in words if word.startswith("--type=")), None)
