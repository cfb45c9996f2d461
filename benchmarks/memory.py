"""Whether memory stays flat as runs grow: the most that the owner ever had resident, for a small and for a large run.

Planning, performing and exporting count. The two runs are alike but for their number of items.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.batches import WITHOUT_TOOLS, batch_settings, measured_batch
from benchmarks.prompts import write_prompts
from benchmarks.rows import Row

IN_FLIGHT = 200
_MEGABYTE = 1 << 20


def memory(quick: bool) -> Iterator[Row]:
    """Peak memory of the large run against the small one's."""
    small, large = 10_000, 100_000 if quick else 1_000_000
    first, second = _measured(small), _measured(large)
    growth = 100 * (second["memory"] / first["memory"] - 1)
    sizes = (
        f"{first['memory'] / _MEGABYTE:.0f} MB for {small:,} items, {second['memory'] / _MEGABYTE:.0f} MB for {large:,}"
    )
    yield Row("memory: growth", growth, "%", at_most=20.0, note=sizes)
    cost = 1e6 * (second["plan"]["cpu"] + second["perform"]["cpu"]) / large
    seconds = second["plan"]["wall"] + second["perform"]["wall"]
    note = f"{large:,} items in {seconds:.0f} s, planning and files included"
    yield Row("memory: CPU of the large run", cost, "µs/item", note=note)


def _measured(items: int) -> dict[str, Any]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_prompts(folder / "prompts.jsonl", items)
        # No tools: the lines are then short, and a million of them fit most disks.
        settings = batch_settings(folder, "run", IN_FLIGHT, distribution=WITHOUT_TOOLS)
        return measured_batch(settings, items)
