"""What the engine costs beyond a bare asyncio loop with the same HTTP library, making the same calls.

Both talk to one simulated server without latency. The server takes a share of the same machine; it is the same for both. Other
processes can only add to a measurement, so each figure is the least of a few rounds, in which the two take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.batches import TOOLSETS, batch_settings, measured_batch
from benchmarks.children import run_child
from benchmarks.prompts import write_prompts
from benchmarks.rows import Row
from benchmarks.simulated import Server, simulated_server

IN_FLIGHT = 500
DISTRIBUTION = "terminal_only"


def overhead(quick: bool) -> Iterator[Row]:
    """Engine CPU an item, and wall time against the bare loop's."""
    items, rounds = (2_000, 2) if quick else (5_000, 5)
    with TemporaryDirectory() as name, simulated_server() as server:
        folder = Path(name)
        write_prompts(folder / "prompts.jsonl", items)
        measured = [_round(server, folder, number, items) for number in range(rounds)]
        if (different := server.stats()["distinct"]) != items:
            raise RuntimeError(f"the two do not make the same calls: {different} different bodies for {items} items")
    bare, engine, planning = (min(pair[0][key] for pair in measured) for key in ("bare", "engine", "planning"))
    bare_wall, wall = (min(pair[1][key] for pair in measured) for key in ("bare", "engine"))
    per_item = 1000 / items
    note = f"{items:,} single-turn items, {IN_FLIGHT} in flight"
    cost = (engine - bare) * per_item
    yield Row("overhead: engine CPU", cost, "ms/item", at_most=0.4, note=note)
    yield Row(
        "overhead: wall time", wall / bare_wall, "× bare", at_most=3.0, note=f"{wall:.2f} s against {bare_wall:.2f} s"
    )
    yield Row("overhead: bare loop CPU", bare * per_item, "ms/item", note="what the engine's CPU is counted beyond")
    yield Row("overhead: planning CPU", planning * per_item, "ms/item", note="reading the dataset, making the run")


def _round(server: Server, folder: Path, number: int, items: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of (CPU, wall) by phase."""
    bare = run_child(
        "bare",
        base_url=server.base_url,
        model="simulated",
        items=items,
        in_flight=IN_FLIGHT,
        toolsets=TOOLSETS[DISTRIBUTION],
    )
    settings = batch_settings(folder, f"run-{number}", IN_FLIGHT, distribution=DISTRIBUTION, base_url=server.base_url)
    batch = measured_batch(settings, items)
    cpu = {"bare": bare["cpu"], "engine": batch["perform"]["cpu"], "planning": batch["plan"]["cpu"]}
    return cpu, {"bare": bare["wall"], "engine": batch["perform"]["wall"]}
