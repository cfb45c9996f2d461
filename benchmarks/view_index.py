"""What the index of a large run costs, and how fast it finds.

The run is made, not executed: a batch with prompts, answers, scores, failures and tool calls, as ``index_run`` writes it. The index is
built by the process that the viewer starts; then another process asks it at random.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.children import run_child
from benchmarks.rows import Row
from manyhands.engine.journal.reader import run_id_of
from manyhands.processes.interpreters import python_command
from manyhands.view.index.database import size_of, stem_of

_ITEMS = 1_000_000
_MEGABYTE = 1_000_000
_MOST_CPU, _MOST_MEMORY, _MOST_SHARE = 30.0, 100.0, 0.9


def view_index(quick: bool) -> Iterator[Row]:
    """Processor time, memory and size of an index, and how long 19 of 20 random queries take at most."""
    items, queries = (50_000, 200) if quick else (_ITEMS, 1_000)
    with TemporaryDirectory() as name:
        folder, index_dir = Path(name) / "run", Path(name) / "indexes"
        size = run_child("index_run", folder=str(folder), items=items)["bytes"]
        used = _built(folder, index_dir)
        per_million, note = _ITEMS / items, f"{items:,} items, run.db of {size / _MEGABYTE:,.0f} MB"
        yield Row("index: building, a million items", used.cpu * per_million, "s of CPU", at_most=_MOST_CPU, note=note)
        yield Row("index: building, memory", used.memory / _MEGABYTE, "MB", at_most=_MOST_MEMORY)
        share = size_of(stem_of(folder, run_id_of(folder), index_dir)) / size
        yield Row("index: size", share, "of run.db", at_most=_MOST_SHARE)
        found = run_child("index_queries", folder=str(folder), index_dir=str(index_dir), queries=queries)
    yield _row("index: pages, up to one filter", found["taken"]["one"], 200.0)
    yield _row("index: pages, two filters", found["taken"]["two"], 400.0)
    yield _row("index: counts", found["taken"]["count"], 250.0)
    yield _row("index: facets", found["taken"]["facets"], 250.0)
    yield Row("index: queries that took too long", found["late"], at_most=0.0)
    yield Row("index: queries, memory", found["memory"] / _MEGABYTE, "MB")


def _row(name: str, seconds: Sequence[float], at_most: float) -> Row:
    inorder = sorted(1000 * each for each in seconds)
    note = f"{len(inorder):,} random ones: half of them {inorder[len(inorder) // 2]:.1f} ms, the slowest {inorder[-1]:.0f} ms"
    return Row(name, inorder[int(0.95 * len(inorder))], "ms (95 %)", at_most=at_most, note=note)


class _Used(NamedTuple):
    cpu: float
    """Seconds of processor time, start included."""
    memory: int
    """Bytes at the peak."""


def _built(folder: Path, index_dir: Path) -> _Used:
    process = subprocess.Popen(
        python_command("manyhands.view.index", str(folder), f"--index_dir={index_dir}"), stdin=subprocess.PIPE
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError("the index was not made")
    return _Used(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
