"""``python -m benchmarks [--quick] [NAME …]``: what the engine costs, one row a figure, each with its bound where it has one.

Rows are printed as they are found. Exit code 1 if a bound is not kept, 2 for an unknown name.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.browser import browser
from benchmarks.cluster.against_local import cluster
from benchmarks.cluster.scale import cluster_scale
from benchmarks.csv_jobs.jobs import jobs
from benchmarks.evals.evals import evals
from benchmarks.exports import exports
from benchmarks.journal import journal
from benchmarks.limit.growth import growth
from benchmarks.limit.programs import programs
from benchmarks.limit.prompts import prompts
from benchmarks.limit.shell import shell
from benchmarks.limit.start import start
from benchmarks.limit.workers import workers
from benchmarks.memory import memory
from benchmarks.memory_schedule import memory_schedule
from benchmarks.memory_sessions import memory_sessions
from benchmarks.overhead import overhead
from benchmarks.resume import resume
from benchmarks.rows import HEADINGS, Row, cells, failed
from benchmarks.sandbox import sandbox
from benchmarks.startup import startup
from benchmarks.throughput import throughput
from benchmarks.view_index import view_index
from benchmarks.view_pages import view_pages
from benchmarks.view_static import view_static
from benchmarks.web import web

BENCHMARKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "overhead": overhead,
    "throughput": throughput,
    "startup": startup,
    "resume": resume,
    "journal": journal,
    "exports": exports,
    "sandbox": sandbox,
    "browser": browser,
    "web": web,
    "view_index": view_index,
    "view_pages": view_pages,
    "view_static": view_static,
    "jobs": jobs,
    "evals": evals,
    "memory_schedule": memory_schedule,
    "memory_sessions": memory_sessions,
    "memory": memory,
    "cluster": cluster,
    "cluster_scale": cluster_scale,
    "limit_prompts": prompts,
    "limit_start": start,
    "limit_shell": shell,
    "limit_workers": workers,
    "limit_programs": programs,
    "limit_growth": growth,
}
"""By name, in the order of performing; those that take minutes come last."""
GROUPS = {"limit": [name for name in BENCHMARKS if name.startswith("limit_")]}
"""Benchmarks that also have a name together."""
KNOWN = [*BENCHMARKS, *GROUPS]


ADDITIONS = 5_000_000
REFERENCE_SECONDS = 0.135
"""What a plain loop of so many additions takes on a machine of the speed that bounds in seconds were set for."""
BUSY = 0.5
COLUMNS = (32, 18, 16, 5)
"""Characters of all columns but the last."""


def main() -> int:
    given = _arguments()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    print(_machine(), _line(HEADINGS), sep="\n", flush=True)
    rows: list[Row] = []
    for name in given.names:
        for row in BENCHMARKS[name](given.quick):
            print(_line(cells(row)), flush=True)
            rows.append(row)
    return 1 if failed(rows) else 0


def _arguments() -> argparse.Namespace:
    description = (
        "What the engine costs: one row a figure, with its bound where it has one. Exit code 1 if one is not kept."
    )
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ({', '.join(KNOWN)}); without names, all")
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a look, not a measurement")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in KNOWN]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}; choose from {', '.join(KNOWN)}")
    given.names = [each for name in given.names or BENCHMARKS for each in GROUPS.get(name, [name])]
    return given


def _machine() -> str:
    load = os.getloadavg()[0]
    busy = "; it is busy with other things too, which adds to every figure" if load > BUSY else ""
    speed = f"plain Python at {REFERENCE_SECONDS / _loop():.2f} × the speed that bounds in seconds were set for"
    return f"This machine: {os.cpu_count()} cores, Python {sys.version.split()[0]}, {speed}, load {load:.1f}{busy}\n"


def _loop() -> float:
    """Seconds of the reference loop: the best of three."""
    taken = []
    for _ in range(3):
        began, total = time.perf_counter(), 0
        for number in range(ADDITIONS):
            total += number
        taken.append(time.perf_counter() - began)
    return min(taken)


def _line(texts: Sequence[str]) -> str:
    *columns, last = texts
    return "  ".join([*(text.ljust(width) for text, width in zip(columns, COLUMNS, strict=True)), last]).rstrip()


if __name__ == "__main__":
    sys.exit(main())
