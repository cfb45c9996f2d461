"""What an item takes as batches grow: time and the most memory, whole processes, with the simulated model in the worker process.

``MANYHANDS_BENCH_LARGEST=1000000`` in the environment adds a million items, which take half an hour.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.batches import WITHOUT_TOOLS, batch_settings
from benchmarks.limit.comparing import Measured, options, whole
from benchmarks.prompts import write_prompts
from benchmarks.rows import Row
from benchmarks.startup import program

IN_FLIGHT = 200
LARGEST = "MANYHANDS_BENCH_LARGEST"
_MEGABYTE = 1 << 20


def growth(quick: bool) -> Iterator[Row]:
    """Two rows a size, each against ten times fewer items."""
    largest = 10_000 if quick else int(os.environ.get(LARGEST, "100000"))
    before, items = None, 100 if quick else 1_000
    while items <= largest:
        measured = _measured(items)
        yield from _rows(items, measured, before)
        before, items = measured, 10 * items


def _rows(items: int, measured: Measured, before: Measured | None) -> Iterator[Row]:
    time, memory = 1e6 * measured["wall"] / items, measured["memory"] / _MEGABYTE
    note = (
        f"{time:,.0f} µs/item, {1e6 * measured['cpu'] / items:,.0f} µs of CPU, {memory:.0f} MB in the largest process"
    )
    if before is None:
        yield Row(f"limit: time, {items:,} items", time, "µs/item", note=note)
        yield Row(f"limit: memory, {items:,} items", memory, "MB")
        return
    longer = measured["wall"] / before["wall"] / 10
    yield Row(f"limit: time, {items:,} items", longer, "× before", at_most=1.1, note=note)
    larger = measured["memory"] / before["memory"]
    yield Row(f"limit: memory, {items:,} items", larger, "× before", at_most=1.2)


def _measured(items: int) -> Measured:
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_prompts(folder / "prompts.jsonl", items)
        # No tools: the lines are then short, and a million of them fit most disks.
        settings = batch_settings(folder, "run", IN_FLIGHT, distribution=WITHOUT_TOOLS, executor="processes")
        return whole([*program(), "batch", *options(settings), "--quiet"])
