"""How fast conversations are exported, and how much memory that takes.

A small batch is run on the simulated model; its items are then multiplied in the journal, so that the conversations are real and there are
as many as wanted. Each format is exported in a process of its own.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.batches import WITHOUT_TOOLS, without_tools
from benchmarks.rows import Row
from benchmarks.startup import program
from manyhands.engine.journal.reader import JOURNAL

FORMATS = ("jsonl", "messages", "sharegpt", "atif", "parquet")
_BASE = 50
_LARGEST = int(os.environ.get("MANYHANDS_BENCH_LARGEST", "100000"))
"""Items of the run that is exported."""


def exports(quick: bool) -> Iterator[Row]:
    """Conversations a second and peak memory: of short ones, a question and its answer, and for each format of such with two or three model
    calls and as many tool calls."""
    items = 5_000 if quick else _LARGEST
    with TemporaryDirectory() as name:
        short = _made(Path(name), items, WITHOUT_TOOLS)
        yield from _rows("jsonl, short", _measured(short, "jsonl", Path(name) / "jsonl"), items, at_least=5000.0)
    with TemporaryDirectory() as name:
        run_folder = _made(Path(name), items, "terminal_only")
        for each in FORMATS:
            yield from _rows(each, _measured(run_folder, each, Path(name) / each), items)


def _rows(name: str, used: _Used, items: int, at_least: float | None = None) -> Iterator[Row]:
    note = f"{items:,} conversations, {used.written / 1e6:,.0f} MB, {1e6 * used.cpu / items:,.0f} µs of CPU each"
    yield Row(f"export: {name}", items / used.seconds, "/s", at_least=at_least, note=note)
    yield Row(f"export: {name}, memory", used.memory / 1e6, "MB", at_most=300.0)


@dataclass(frozen=True, slots=True)
class _Used:
    seconds: float
    cpu: float
    """Seconds of processor time."""
    memory: int
    """Bytes at the peak."""
    written: int
    """Bytes."""


def _made(folder: Path, items: int, distribution: str) -> Path:
    dataset = folder / "prompts.jsonl"
    dataset.write_text("".join(json.dumps({"prompt": f"Say number {number}."}) + "\n" for number in range(_BASE)))
    words = ["batch", f"--dataset_file={dataset}", "--batch_size=50", "--run_name=r", f"--data_dir={folder}"]
    more = ["--model=simulated", f"--distribution={distribution}", "--sandbox=local", "--executor=local", "--quiet"]
    more += [f"--distributions_file={without_tools(folder)}"]
    subprocess.run([*program(), *words, *more, "--concurrency=8"], check=True, capture_output=True)
    _multiply(folder / "r" / JOURNAL, items)
    return folder / "r"


def _multiply(journal: Path, items: int) -> None:
    columns = "attempt, scope, seq, kind, digest, request, output, usage, started_at, finished_at"
    with closing(sqlite3.connect(journal)) as database:
        for name in [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]:
            database.execute(f"DROP TRIGGER {name}")
        named = [row[1] for row in database.execute("PRAGMA table_info(items)")]
        kept = ", ".join(name for name in named if name not in ("number", "key", "position"))
        for step in range(1, -(-items // _BASE)):
            offset = step * _BASE
            database.execute(
                f"INSERT INTO items (number, key, position, {kept}) "
                f"SELECT number + ?1, key || '-' || ?1, position + ?1, {kept} FROM items WHERE number <= ?2",
                (offset, _BASE),
            )
            database.execute(
                f"INSERT INTO steps (item, {columns}) SELECT item + ?1, {columns} FROM steps WHERE item <= ?2",
                (offset, _BASE),
            )
        database.execute("UPDATE totals SET items = ? WHERE state = 'completed'", (items,))
        database.commit()


def _measured(run_folder: Path, name: str, output: Path) -> _Used:
    began = time.perf_counter()
    words = [*program(), "export", str(run_folder), f"--to={name}", f"--output={output}"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"the export to {name} failed")
    seconds = time.perf_counter() - began
    return _Used(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, _size(output))


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*")) if path.is_dir() else path.stat().st_size
