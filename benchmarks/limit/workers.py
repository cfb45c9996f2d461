"""What a second worker process brings, with the simulated model in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.batches import batch_settings
from benchmarks.limit.comparing import DISTRIBUTION, Measured, in_turns, middle, options, whole
from benchmarks.prompts import write_prompts
from benchmarks.rows import Row
from benchmarks.startup import program


def workers(quick: bool) -> Iterator[Row]:
    """Throughput of two against one, start included."""
    items, rounds = (1_000, 2) if quick else (10_000, 5)
    runs = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_prompts(folder / "prompts.jsonl", items)

        def batch(count: int) -> Measured:
            nonlocal runs
            runs += 1
            others = {"executor": "processes", "num_workers": count, "distribution": DISTRIBUTION}
            settings = batch_settings(folder, f"run-{runs}", 100 // count, **others)
            return whole([*program(), "batch", *options(settings), "--quiet"])

        one, two = in_turns(rounds, lambda: batch(1), lambda: batch(2))
    rates = [items / middle(each, "wall") for each in (one, two)]
    note = f"{rates[1]:,.0f} items/s against {rates[0]:,.0f}, 100 in flight in all; CPU {middle(two, 'cpu') / middle(one, 'cpu'):.2f} ×"
    yield Row("limit: two worker processes", rates[1] / rates[0], "× one", at_least=1.4, note=note)
