"""How soon a batch makes its first call, how soon its help is there, and what is imported that no run uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.limit.comparing import Comparison, in_turns, middle, whole
from benchmarks.limit.unused_imports import packages, unused_imports
from benchmarks.rows import Row
from benchmarks.startup import program

PROMPTS = 10


def start(quick: bool) -> Iterator[Row]:
    """Seconds from the start of a process, and modules."""
    rounds = 3 if quick else 11
    with TemporaryDirectory() as name:
        compared = Comparison(Path(name), PROMPTS, PROMPTS)
        bare, batch, local = in_turns(rounds, compared.bare, compared.batch, lambda: compared.batch(executor="local"))
    for each in (*bare, *batch, *local):
        each["seconds"] = each["first"] - each["started"]
    note = f"one worker process, at the server; without one {middle(local, 'seconds'):.2f} s, the bare loop {middle(bare, 'seconds'):.2f} s"
    yield Row("limit: first call", middle(batch, "seconds"), "s", at_most=0.5, note=note)
    note = f"{PROMPTS} prompts; {middle(local, 'cpu'):.2f} s without a worker process, the bare loop {middle(bare, 'cpu'):.2f} s"
    yield Row("limit: CPU, a small batch", middle(batch, "cpu"), "s", note=note)
    [helped] = in_turns(rounds, lambda: whole([*program(), "batch", "--help"]))
    note = f"median of {rounds} runs"
    yield Row("limit: manyhands batch --help", middle(helped, "wall"), "s", at_most=0.15, note=note)
    yield from _imports()


def _imports() -> Iterator[Row]:
    found = unused_imports()
    dearest = ", ".join(f"{name} {seconds * 1000:.1f}" for name, seconds in packages(found)[:8])
    note = f"{len(found)} modules; ms by package: {dearest}; all: python -m benchmarks.limit.unused_imports"
    yield Row("limit: imported in vain", 1000 * sum(found.values()), "ms", note=note)
