"""What one owner carries: tens of thousands of items in flight, executed by simulated workers over real connections.

The scheduler, the journal, the executor, the limits, the handshake and the wire are those of any run. The workers are two processes
with two hundred connections, whose items call no model and have no sandbox: as soon as a step is acknowledged, the next one is sent. So the
owner has as much to do as it can do, and the time until an acknowledgement is that of a queue with all items in it. The workers take their
share of the same machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.children import run_child
from benchmarks.rows import Row

WORKERS = 200
_MEGABYTE = 1 << 20


def cluster_scale(quick: bool) -> Iterator[Row]:
    """Steps a second, and what a step costs the owner. The best of some rounds, as other processes can only slow one down."""
    in_flight, rounds = (2_000, 1) if quick else (20_000, 3)
    measured = max((_measured(in_flight) for _ in range(rounds)), key=lambda each: each["steps"] / each["seconds"])
    steps, seconds = measured["steps"], measured["seconds"]
    name = f"scale: {in_flight:,} in flight"
    note = f"{steps:,} steps in {seconds:.1f} s, half of them calls; {WORKERS} connections; the best of {rounds} rounds"
    yield Row(name, steps / seconds, "steps/s", at_least=5_000, note=note)
    cpu = measured["cpu"] / steps
    note = f"of all its threads, {100 * measured['cpu'] / seconds:.0f} % of a core; would allow {1 / cpu:,.0f} steps/s"
    yield Row("scale: owner's CPU", 1e6 * cpu, "µs/step", note=note)
    memory = measured["memory"]
    note = f"{(memory - measured['memory_before']) / in_flight / 1024:.1f} KB for each item in flight"
    yield Row("scale: owner's memory", memory / _MEGABYTE, "MB", at_most=1_000, note=note)
    note = f"in; {measured['sent'] / measured['all_steps']:.0f} out, items included"
    yield Row("scale: wire", measured["received"] / measured["all_steps"], "bytes/step", note=note)
    note = f"{measured['all_steps']:,} steps of {measured['completed']:,} items"
    yield Row("scale: journal", measured["journal"] / measured["all_steps"], "bytes/step", note=note)
    note = "all items wait for the owner all the time"
    yield Row("scale: acknowledgement", measured["median"], "s (median)", note=note)


def _measured(in_flight: int) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        given = {"items": 2 * in_flight, "in_flight": in_flight, "workers": WORKERS, "processes": 2}
        given |= {"local": False, "sampled": 16}
        measured = run_child("cluster.owner", folder=str(Path(folder) / "run"), **given)
    if measured["completed"] != given["items"]:
        raise RuntimeError(f"{measured['completed']} of {given['items']} items were completed")
    return measured
