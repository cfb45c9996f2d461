"""What workers on a cluster cost against as many worker processes of this machine, which both clusters' nodes are.

Both execute the same items with the simulated model in the worker: so nothing is waited for, and all that is done besides shows. Throughput
is that of the second half of a run, without its start, which is measured by itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.batches import WITHOUT_TOOLS, batch_settings
from benchmarks.children import run_child
from benchmarks.limit.comparing import options, whole
from benchmarks.prompts import write_prompts
from benchmarks.rows import Row
from benchmarks.startup import program
from manyhands.engine.journal.reader import JOURNAL
from tests.support.engine_keeper import Unavailable
from tests.support.ray_clusters import two_nodes

WORKERS = 2
MODEL_SECONDS = 0.1
"""That the model takes to answer in the first comparison: little for a model, and a thousand items a second at most."""
IN_FLIGHT = 50
"""In each worker."""


def cluster(quick: bool) -> Iterator[Row]:
    """Throughput, the time until a step is acknowledged, and the start."""
    items, rounds = (2_000, 1) if quick else (15_000, 4)
    yield from _acknowledgement(200 if quick else 500)
    try:
        with two_nodes() as nodes, TemporaryDirectory() as name:
            folder = Path(name)
            write_prompts(folder / "prompts.jsonl", items)
            on_cluster = {"executor": "ray", "ray_address": nodes.address}
            yield from _start(folder, rounds, on_cluster)
            yield _throughput(folder, items // 2, rounds, on_cluster, MODEL_SECONDS)
            yield _throughput(folder, items, rounds, on_cluster, 0.0)
    except Unavailable as error:
        yield Row("cluster", float("nan"), note=str(error))


def _acknowledgement(items: int) -> Iterator[Row]:
    """One item at a time, so that nothing else is done meanwhile: as from a node, and as from a process of this machine."""
    for name, local, at_most in (("loopback TCP", False, 2.0), ("socket pair", True, None)):
        with TemporaryDirectory() as folder:
            given = {"items": items, "in_flight": 1, "workers": 1, "processes": 1, "local": local, "sampled": 1}
            measured = run_child("cluster.owner", folder=str(Path(folder) / "run"), **given)
        note = f"{measured['all_steps']:,} steps, one after the other, each on disk before it is acknowledged"
        yield Row(f"acknowledgement: {name}", 1000 * measured["median"], "ms (median)", at_most=at_most, note=note)


def _start(folder: Path, rounds: int, on_cluster: dict[str, Any]) -> Iterator[Row]:
    """Seconds until the first item begins, by part; of some rounds, the quickest."""
    settings = [_settings(folder, f"start-{number}", on_cluster) for number in range(min(rounds, 3))]
    parts = min(
        (run_child("cluster.starting", settings=each) for each in settings), key=lambda each: sum(each.values())
    )
    for part, seconds in parts.items():
        yield Row(f"cluster start: {part}", seconds, "s")
    yield Row(
        "cluster start: in all", sum(parts.values()), "s", note="until the first item begins; the cluster is there"
    )


def _throughput(folder: Path, items: int, rounds: int, on_cluster: dict[str, Any], seconds: float) -> Row:
    """In turns, a round of each; compared are the best, as other processes can only slow one down. ``seconds``: that the model takes to
    answer. Where it takes none, the machine's processors are all that bounds both, and TCP takes more of them than a socket pair."""
    write_prompts(folder / "prompts.jsonl", items)
    more = {"simulated_latency": seconds}
    local, there = {"executor": "processes", **more}, {**on_cluster, **more}
    rates = [
        [_rate(folder, f"{kind['executor']}-{number}-{seconds:g}", items, kind) for kind in (local, there)]
        for number in range(rounds)
    ]
    here, far = (max(each) for each in zip(*rates, strict=True))
    note = f"{far:,.0f} items/s against {here:,.0f}, {WORKERS} workers with {IN_FLIGHT} items each; the best of {rounds} rounds each"
    name = f"model {seconds:g} s" if seconds else "no model waited for"
    return Row(
        f"cluster: throughput, {name}", 100 * far / here, "% of local", at_least=90.0 if seconds else None, note=note
    )


def _rate(folder: Path, name: str, items: int, kind: dict[str, Any]) -> float:
    """Items a second, of those that ended when all workers were there: on a cluster, the second one is some seconds later."""
    whole([*program(), "batch", *options(_settings(folder, name, kind)), "--quiet"])
    with closing(sqlite3.connect(folder / name / JOURNAL)) as journal:
        ends = [at for (at,) in journal.execute("SELECT finished_at FROM items WHERE state = 'completed' ORDER BY 1")]
    if len(ends) != items:
        raise RuntimeError(f"{len(ends)} of {items} items were completed")
    first, last = items // 2, items * 95 // 100
    return (last - first) / float(ends[last] - ends[first])


def _settings(folder: Path, name: str, kind: dict[str, Any]) -> dict[str, Any]:
    return batch_settings(folder, name, IN_FLIGHT, num_workers=WORKERS, distribution=WITHOUT_TOOLS, **kind)
