"""The browser of tests that need one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def running_browser(folder: Path) -> Iterator[str]:
    """A browser that somebody else started; the address of its DevTools protocol."""
    assert CHROMIUM is not None
    port = folder / "DevToolsActivePort"
    words = [
        CHROMIUM,
        *ARGUMENTS,
        "--headless",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(600):
            with suppress(OSError, IndexError):
                number = port.read_text().split()[0]
                break
            time.sleep(0.05)
        else:
            raise AssertionError("no browser has started")
        yield f"http://127.0.0.1:{number}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
    """With which words a process was started. Chromium writes those of renderers with spaces between."""
    return (process / "cmdline").read_text().replace("\0", " ").split()


def network_process(main: Path) -> int:
    """The process by which a browser reaches the network."""
    (found,) = [int(each.name) for each in _below(main) if any("NetworkService" in word for word in words_of(each))]
    return found


def renderers(main: Path) -> list[Path]:
    """The processes that show a browser's pages."""
    return [each for each in _below(main) if _kind(words_of(each)) == "--type=renderer"]


def _below(process: Path) -> list[Path]:
    """All that a process started, and what that started."""
    children = [Path("/proc") / child for each in process.glob("task/*/children") for child in each.read_text().split()]
    return [*children, *(each for child in children for each in _below(child))]


def _kind(words: list[str]) -> str | None:
    return next((word for word in words if word.startswith("--type=")), None)
