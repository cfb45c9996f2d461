"""What a report about a large evaluation costs: its size, how long it takes to write, and how long a browser takes to open it.

5,000 tests × 3 targets, whose answers are made up. The browser is Chromium, and its rows are left out where that is not installed.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Request, sync_playwright

from benchmarks.rows import Row
from manyhands.processes.interpreters import python_command

_WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]
_TARGETS = 3
_MEGABYTE = 1_000_000
_MAX_MB, _MOST_SECONDS = 25.0, 3.0
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
_FOLDS = "details.fold[data-filter-state]"


def view_static(quick: bool) -> Iterator[Row]:
    """Size, seconds to write, seconds to open with and without scripts, and requests to anything else."""
    tests = 500 if quick else 5_000
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write_suite(folder / "suite.yaml", tests)
        _manyhands(folder, "eval", "suite.yaml", "--run_name=r", "--quiet", "--fail_on=never")
        taken = _manyhands(folder, "report", "r", "-o", "one.html")
        _manyhands(folder, "report", "r", "-o", "two.html")
        page, again = folder / "one.html", folder / "two.html"
        note = f"{tests:,} tests × {_TARGETS} targets"
        yield Row("report: size", page.stat().st_size / _MEGABYTE, "MB", at_most=_MAX_MB, note=note)
        yield Row("report: writing", taken, "s")
        differing = page.read_bytes() != again.read_bytes()
        yield Row("report: bytes that differ when it is written again", differing, at_most=0)
        if (chromium := shutil.which("chromium")) is not None:
            yield from _opened(page, chromium)


def _opened(page: Path, chromium: str) -> Iterator[Row]:
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=_OPTIONS)
        for has_scripts in (True, False):
            context = browser.new_context(java_script_enabled=has_scripts)
            tab = context.new_page()
            asked: list[Request] = []
            tab.on("request", partial(asked.append))  # Playwright marks what it is given
            begin = time.perf_counter()
            tab.goto(page.as_uri())
            tab.locator("h1").first.wait_for()
            seconds = time.perf_counter() - begin
            count = tab.locator(_FOLDS).count()
            name = "report: opening" + ("" if has_scripts else ", scripts off")
            yield Row(name, seconds, "s", at_most=_MOST_SECONDS, note=f"{count:,} conversations in it")
            yield Row(f"{name}, requests", len(asked) - 1, at_most=0)
            context.close()
        browser.close()


def _write_suite(path: Path, tests: int) -> None:
    chance = random.Random(1)
    suite: dict[str, Any] = {
        "targets": {
            f"target{number}": {"provider": "mock", "response": " ".join(chance.choices(_WORDS, k=7 + 4 * number))}
            for number in range(_TARGETS)
        },
        "tests": [
            {
                "id": f"t{number:05}",
                "input": " ".join(chance.choices(_WORDS, k=40)),
                "criteria": "says so",
                "metadata": {"category": _WORDS[number % 5]},
                "tags": [_WORDS[number % 7]],
                "assert": [{"type": "contains", "value": chance.choice(_WORDS)}, {"type": "regex", "value": "a.*b"}],
            }
            for number in range(tests)
        ],
    }
    path.write_text(json.dumps({**suite, "execution": {"targets": list(suite["targets"])}}))


def _manyhands(folder: Path, *words: str) -> float:
    """Perform a command in a process of its own; its seconds."""
    begin = time.perf_counter()
    subprocess.run(python_command("manyhands", *words), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin
