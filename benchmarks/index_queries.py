"""A child: random queries of the index of a run of ``index_run``.

Arguments: ``folder`` of the run, ``index_dir``, ``queries``. Reports the seconds of each, by kind.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from benchmarks.children import arguments, peak_memory, report
from benchmarks.index_run import CAUSES, REASONS, TOOLS, WORDS
from manyhands.engine.journal.reader import run_id_of
from manyhands.view.index.filters import RANGES, SORTS, Cursor, Filters
from manyhands.view.index.queries import RunIndex, TookTooLong

_GREATEST = {"score": 1.0, "cost": 0.002, "tokens": 14_000, "turns": 2, "tools": 1, "seconds": 60.0}
_LATE = 1_760_000_000.0
_JUMPS = {**_GREATEST, "retries": 1, "finished": 50_000.0}


def measured(given: dict[str, Any]) -> dict[str, Any]:
    folder = Path(given["folder"])
    index = RunIndex.open(folder, run_id_of(folder), Path(given["index_dir"]))
    assert index is not None
    items, chosen = index.count(Filters()).items, random.Random(1)
    taken: dict[str, list[float]] = {"one": [], "two": [], "count": [], "facets": []}
    slowest: list[tuple[float, str]] = []
    late = 0
    for number in range(given["queries"]):
        kind = "two" if number % 4 == 3 else "one"
        filters = _filters(chosen, 2 if kind == "two" else chosen.choice((0, 1, 1, 1)))
        cursor = None
        for _ in range(chosen.randrange(1, 3)):
            if chosen.random() < 0.3:
                cursor = _jump(chosen, filters, items)
            began = time.perf_counter()
            try:
                page = index.page(filters, cursor)
                cursor = page.next
            except TookTooLong:
                late += 1
                cursor = None
            seconds = time.perf_counter() - began
            taken[kind].append(seconds)
            slowest.append((seconds, f"{filters.query()} {cursor}"))
        if number % 10 == 0:
            for name, query in (("count", index.count), ("facets", index.facets)):
                began = time.perf_counter()
                query(filters)
                taken[name].append(time.perf_counter() - began)
    slowest.sort(reverse=True)
    return {"taken": taken, "slowest": slowest[:20], "late": late, "memory": peak_memory()}


def _filters(chosen: random.Random, count: int) -> Filters:
    kinds = ("state", "why", "range", "tool", "tool_failed", "label", "retried", "text")
    query: list[tuple[str, str]] = []
    for kind in chosen.sample(kinds, count):
        query += _filter(chosen, kind)
    sort = chosen.choice(SORTS)
    return Filters.parse([*query, ("sort", sort if chosen.random() < 0.5 else f"-{sort}")])


def _filter(chosen: random.Random, kind: str) -> list[tuple[str, str]]:
    match kind:
        case "state":
            return [(kind, chosen.choice(("completed", "failed", "discarded", "cancelled", "pending")))]
        case "why":
            return [(kind, chosen.choice((*CAUSES, *REASONS)))]
        case "tool" | "tool_failed":
            return [(kind, chosen.choice(TOOLS))]
        case "label":
            return [(kind, f"verdict={chosen.choice(('pass', 'fail'))}")]
        case "retried":
            return [(kind, "1")]
        case "text":
            words = [WORDS[int(chosen.paretovariate(0.3)) % len(WORDS)] for _ in range(chosen.choice((1, 1, 2)))]
            return [(kind, " ".join(words))]
    name = chosen.choice(RANGES)
    return [(f"{name}_{chosen.choice(('min', 'max'))}", str(chosen.random() * _GREATEST[name]))]


def _jump(chosen: random.Random, filters: Filters, items: int) -> Cursor:
    if filters.sort == "position":
        return Cursor("at", chosen.randrange(items))
    value = chosen.random() * _JUMPS[filters.sort]
    return Cursor("at", _LATE + value if filters.sort == "finished" else value)


if __name__ == "__main__":
    report(**measured(arguments()))
