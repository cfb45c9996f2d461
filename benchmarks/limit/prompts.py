"""Prompts of one turn, against a bare loop that makes the same calls: processor time, and how soon many calls are in flight."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.limit.comparing import Comparison, Measured, Serving, in_turns, middle
from benchmarks.rows import Row

ROUNDS = 5
LATENCY = 0.5


def prompts(quick: bool) -> Iterator[Row]:
    """CPU for a few and for many prompts, then wall time where calls take their time."""
    rounds = 2 if quick else ROUNDS
    for count, at_most in ((100, 3.0), (1_000, 2.8)) if quick else ((1_000, 3.0), (10_000, 2.8)):
        yield from _processor(count, at_most, rounds)
    yield from _latency(*((400, 200) if quick else (2_000, 1_000)), rounds)


def _processor(count: int, at_most: float, rounds: int) -> Iterator[Row]:
    bare, batch, plain = _compared(count, 100, Serving(), rounds)
    cpu, bare_cpu, plain_cpu = middle(batch, "cpu"), middle(bare, "cpu"), middle(plain, "cpu")
    note = (
        f"{cpu:.2f} s against {bare_cpu:.2f} s, 100 in flight, medians of {rounds}; wall {middle(batch, 'wall'):.2f} s"
    )
    yield Row(f"limit: CPU, {count:,} prompts", cpu / bare_cpu, "× bare", at_most=at_most, note=note)
    note = f"against {plain_cpu:.2f} s of the same loop with asyncio's own event loop and json"
    yield Row(f"limit: CPU, {count:,}, plain loop", cpu / plain_cpu, "× plain", note=note)


def _latency(count: int, in_flight: int, rounds: int) -> Iterator[Row]:
    bare, batch, _ = _compared(count, in_flight, Serving(latency=LATENCY, full=in_flight), rounds)
    wall, bare_wall = middle(batch, "wall"), middle(bare, "wall")
    note = f"{count:,} prompts, {LATENCY * 1000:.0f} ms each: {wall:.2f} s against {bare_wall:.2f} s"
    yield Row(f"limit: wall, {in_flight:,} in flight", wall / bare_wall, "× bare", at_most=1.7, note=note)
    note = f"at the server since the first call; the bare loop {_filling(bare):.2f} s"
    yield Row(f"limit: until {in_flight:,} in flight", _filling(batch), "s", at_most=0.8, note=note)
    bare_mean = middle(bare, "mean_in_flight")
    note = f"from the first call to the last answer, {middle(batch, 'most'):.0f} at most; the bare loop {bare_mean:.0f}"
    yield Row("limit: mean in flight", middle(batch, "mean_in_flight"), "calls", note=note)


def _filling(measured: list[Measured]) -> float:
    """The median of the seconds until as many calls as there could be were in flight; infinite if they never were."""
    return median(float(each["filled"] or inf) - float(each["first"]) for each in measured)


def _compared(count: int, in_flight: int, serving: Serving, rounds: int) -> list[list[Measured]]:
    with TemporaryDirectory() as name:
        compared = Comparison(Path(name), count, in_flight, serving)
        measured = in_turns(rounds, compared.bare, compared.batch, lambda: compared.bare(plain=True))
    check([each for side in measured for each in side], count)
    return measured


def check(measured: list[Measured], count: int) -> None:
    """Raises RuntimeError if they did not all make the same calls, one a prompt."""
    if len({each["bodies"] for each in measured}) != 1 or {each["requests"] for each in measured} != {count}:
        raise RuntimeError(f"the two do not make the same {count} calls: {measured}")
