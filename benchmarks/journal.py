"""What durability costs by itself: steps recorded, each awaited until an fsync has put it on disk.

For information, because it depends on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.children import run_child
from benchmarks.rows import Row


def journal(quick: bool) -> Iterator[Row]:
    """Steps a second, and CPU a step, by how many are on their way at once."""
    steps = 5_000 if quick else 50_000
    for in_flight in (100, 1_000):
        with TemporaryDirectory() as name:
            report = run_child("recording", folder=str(Path(name) / "run"), steps=steps, in_flight=in_flight)
        rate, cpu = steps / report["wall"], 1e6 * report["cpu"] / steps
        note = f"{cpu:.0f} µs of CPU a step; {steps / report['commits']:.0f} steps share a commit"
        yield Row(f"journal: {in_flight:,} in flight", rate, "steps/s", note=note)
