"""Whether calls that take their time are kept in flight: throughput against in flight ÷ latency, over the whole of a run.

Everything counts: the session's opening, the last calls, the exports. There are enough items for these to weigh what they weigh in
real runs, which are longer. No tools are offered, so that the server, which has to share this machine, has little to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.batches import WITHOUT_TOOLS, batch_settings, measured_batch
from benchmarks.prompts import write_prompts
from benchmarks.rows import Row
from benchmarks.simulated import simulated_server

LATENCY = 0.5


def throughput(quick: bool) -> Iterator[Row]:
    """The share of the ideal."""
    in_flight, items = (200, 8_000) if quick else (1_000, 200_000)
    with TemporaryDirectory() as name, simulated_server(latency=LATENCY) as server:
        folder = Path(name)
        write_prompts(folder / "prompts.jsonl", items)
        settings = batch_settings(folder, "run", in_flight, base_url=server.base_url, distribution=WITHOUT_TOOLS)
        batch = measured_batch(settings, items)
    wall, ideal = batch["perform"]["wall"], items * LATENCY / in_flight
    note = f"{items:,} items in {wall:.1f} s, ideally {ideal:.1f} s; {in_flight:,} in flight, {LATENCY * 1000:.0f} ms latency"
    yield Row("throughput", 100 * ideal / wall, "% of ideal", at_least=90.0, note=note)
    cpu = batch["perform"]["cpu"]
    yield Row(
        "throughput: CPU used", 100 * cpu / wall, "% of a core", note=f"{1000 * cpu / items:.3g} ms an item in all"
    )
