"""Batches of the command and bare loops over the same prompts, each a process of its own with a server of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

from benchmarks.bare import offered
from benchmarks.batches import TOOLSETS, batch_settings
from benchmarks.children import LONGEST_SECONDS, run_child
from benchmarks.prompts import write_prompts
from benchmarks.startup import program
from manyhands.agents.task import BASE_PROMPT, TOOLS_PROMPT

DISTRIBUTION = "terminal_only"
MODEL = "fake"
KEY = "key-of-the-benchmark-0123456789abcdef"
"""Long enough to be a secret: everything that is recorded and written is looked through for it, as with any real key."""
COUNTED = ("unshare", "--pid", "--fork", "--mount-proc")
"""Before a command whose processes are to be counted: these are then the only ones of its PID namespace."""
Measured = dict[str, Any]
"""What the child ``whole`` and the server reported of one process."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What the model server is to do; see there."""

    latency: float = 0.0
    turns: int = 0
    full: int = 0


@contextmanager
def model_server(serving: Serving) -> Iterator[str]:
    """The base URL of a server that serves until the block ends."""
    given = {"latency": serving.latency, "turns": serving.turns, "full": serving.full}
    words = [sys.executable, "-m", "benchmarks.limit.model_server", json.dumps(given)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def stats(base_url: str) -> Measured:
    with urlopen(base_url.removesuffix("/v1") + "/stats", timeout=30) as response:
        seen: Measured = json.load(response)
    return seen


def whole(words: list[str], *, counted: bool = False) -> Measured:
    """Run a command; what it took. Raises RuntimeError if it fails."""
    if not counted:
        return run_child("limit.whole", words=words)
    command = [*COUNTED, sys.executable, "-m", "benchmarks.limit.whole", json.dumps({"words": words})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{words} failed:\n{done.stderr}")
    report: Measured = json.loads(done.stdout.splitlines()[-1])
    return report


def options(settings: Mapping[str, Any]) -> list[str]:
    """Settings as options of the command."""
    return [f"--{name}={value}" for name, value in settings.items()]


class Comparison:
    """A dataset in a folder, and runs over it. ``executor``, ``sandbox`` and other settings of a batch may be given with each."""

    def __init__(self, folder: Path, prompts: int, in_flight: int, serving: Serving | None = None) -> None:
        self.folder, self.in_flight = folder, in_flight
        self.serving = serving or Serving()
        self._runs = 0
        write_prompts(folder / "prompts.jsonl", prompts)

    def bare(self, *, counted: bool = False, plain: bool = False) -> Measured:
        """The bare loop's run. ``plain``: with the event loop and the JSON of the standard library."""
        frame = {"model": MODEL, "system": f"{BASE_PROMPT}\n\n{TOOLS_PROMPT}", "tools": offered(TOOLSETS[DISTRIBUTION])}
        given = {
            "dataset": str(self.folder / "prompts.jsonl"),
            "results": str(self.folder / "answers.jsonl"),
            "in_flight": self.in_flight,
            "frame": frame,
            # uvloop forks where asyncio's own loop spawns, which costs a multiple.
            "uvloop": self.serving.turns == 0 and not plain,
            "orjson": not plain,
        }
        script = str(Path(__file__).with_name("bare.py"))
        return self._served(
            lambda url: [sys.executable, script, json.dumps({**given, "url": f"{url}/chat/completions"})], counted
        )

    def batch(self, *, counted: bool = False, **others: Any) -> Measured:
        """A batch's run: one worker process, unless settings say otherwise."""
        self._runs += 1
        settings = batch_settings(self.folder, f"run-{self._runs}", self.in_flight, distribution=DISTRIBUTION)
        settings |= {"executor": "processes", "model": MODEL, "api_key": KEY, **others}
        words = [*program(), "batch", *options(settings), "--quiet"]
        return self._served(lambda url: [*words, f"--base_url={url}"], counted)

    def _served(self, words: Callable[[str], list[str]], counted: bool) -> Measured:
        with model_server(self.serving) as base_url:
            used = whole(words(base_url), counted=counted)
            return used | stats(base_url)


def in_turns(rounds: int, *runs: Callable[[], Measured]) -> list[list[Measured]]:
    """What each reported, in all rounds, in which they take turns."""
    measured = [[run() for run in runs] for _ in range(rounds)]
    return [list(each) for each in zip(*measured, strict=True)]


def middle(measured: list[Measured], name: str) -> float:
    """The median of one figure."""
    return median(float(each[name]) for each in measured)
