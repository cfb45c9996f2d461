"""How soon work starts when a large run is continued: from the start of ``manyhands resume`` to the first call it makes.

The run has 100,000 finished items and some that are left: once because it was interrupted, and once (for information) because
the dataset has grown since, so that all of it is read and compared anew. When the first call began is in the journal.
"""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.batches import batch_settings
from benchmarks.children import run_child
from benchmarks.prompts import write_prompts
from benchmarks.rows import Row
from benchmarks.startup import program

LEFT = 100
IN_FLIGHT = 20
"""Few, because those in flight are finished when the run is interrupted."""
_STEPS_SINCE = "SELECT count(*), min(started_at) FROM steps WHERE started_at >= ?"


def resume(quick: bool) -> Iterator[Row]:
    """Seconds until the first call, for both reasons why items are left."""
    items = 10_000 if quick else 100_000
    with TemporaryDirectory() as name:
        folder = Path(name)
        prompts = folder / "prompts.jsonl"
        write_prompts(prompts, items + LEFT)
        report = run_child("interrupted", settings=batch_settings(folder, "run", IN_FLIGHT), stop_at=items)
        seconds, calls = _first_call(folder / "run")
        note = f"{report['ledger']['completed']:,} items finished, {calls} left"
        yield Row("resume: interrupted run", seconds, "s", at_most=2.0, note=note)
        write_prompts(prompts, items + 2 * LEFT)
        seconds, calls = _first_call(folder / "run")
        note = f"{items + LEFT:,} items finished, {calls} rows added, all rows read and compared anew"
        yield Row("resume: grown dataset", seconds, "s", note=note)


def _first_call(run: Path) -> tuple[float, int]:
    """Continue the run to its end; seconds until its first call, and how many it made."""
    began = time.time()
    subprocess.run([*program(), "resume", str(run), "--quiet"], check=True, capture_output=True)
    with sqlite3.connect(run / "run.db") as journal:
        calls, first = journal.execute(_STEPS_SINCE, (began,)).fetchone()
    if not calls:
        raise RuntimeError("the resumed run had nothing to do")
    return first - began, calls
