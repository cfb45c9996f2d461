"""Conversations with a terminal command in each turn, against a bare loop that runs the same commands beside the same calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.limit.comparing import Comparison, Measured, Serving, in_turns, middle
from benchmarks.rows import Row

TURNS = 3
IN_FLIGHT = 30
BOUNDS = {"local": 3.0, "bubblewrap": 6.5}
LATENCY = 0.3
"""Seconds of a model call that the start of a sandbox would fit into."""
ALONE = 6
"""Items of which one is in flight at a time."""


def shell(quick: bool) -> Iterator[Row]:
    """CPU a call, processes an item, and whether a sandbox starts while the model answers."""
    items, rounds = (30, 2) if quick else (300, 5)
    with TemporaryDirectory() as name:
        compared = Comparison(Path(name), items, IN_FLIGHT, Serving(turns=TURNS))
        bare, *batches = in_turns(rounds, compared.bare, *(_in(compared, sandbox) for sandbox in BOUNDS))
        counts = [compared.bare(counted=True), *(compared.batch(sandbox=kind, counted=True) for kind in BOUNDS)]
    per_call = 1000 / (items * TURNS)
    bare_cpu = middle(bare, "cpu")
    for (sandbox, at_most), batch in zip(BOUNDS.items(), batches, strict=True):
        cpu = middle(batch, "cpu")
        note = f"{cpu * per_call:.2f} ms against {bare_cpu * per_call:.2f} ms, {items} items × {TURNS} commands, start included"
        yield Row(f"limit: CPU a call, {sandbox}", cpu / bare_cpu, "× bare", at_most=at_most, note=note)
    for label, count in zip(("bare loop", *BOUNDS), counts, strict=True):
        note = "and threads, those of the program itself included"
        yield Row(f"limit: processes, {label}", count["processes"] / items, "an item", note=note)
    yield from _overlap()


def _overlap() -> Iterator[Row]:
    """How long the first command keeps its model call waiting beyond the next."""
    with TemporaryDirectory() as name:
        compared = Comparison(Path(name), ALONE, 1, Serving(latency=LATENCY, turns=TURNS))
        for sandbox in BOUNDS:
            first, later = (1000 * seconds / ALONE for seconds in compared.batch(sandbox=sandbox)["gaps"][1:3])
            note = f"{first:.1f} ms to the next call, later {later:.1f} ms; a start that overlaps the first call adds nothing"
            yield Row(f"limit: {sandbox} start awaited", first - later, "ms", note=note)


def _in(compared: Comparison, sandbox: str) -> Any:
    def batch() -> Measured:
        return compared.batch(sandbox=sandbox)

    return batch
