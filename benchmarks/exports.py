"""How fast conversations are exported, and how much memory that takes.

A small batch is run on the simulated model; its items are then multiplied in the journal, so that the conversations are real and there are
as many as wanted. Each format is exported in a process of its own.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from manyhands.cli.main import main
from manyhands.core.text import counted
from manyhands.engine.journal.reader import JOURNAL

FORMATS = ("jsonl", "openai", "messages", "sharegpt", "atif", "parquet")
_BASE = 50


def run(items: int = 20_000, formats: tuple[str, ...] = FORMATS) -> None:
    """Print conversations a second, and the peak memory, for each format."""
    with tempfile.TemporaryDirectory() as folder:
        run_folder = _made(Path(folder), items)
        print(f"{counted(items, 'conversation')}, {(run_folder / JOURNAL).stat().st_size / 1e6:,.0f} MB of journal")
        print(f"{'format':<12}{'conversations/s':>16}{'CPU µs each':>14}{'peak MB':>10}{'MB written':>12}")
        for name in formats:
            figures = _measured(run_folder, name, Path(folder) / name)
            print(
                f"{name:<12}{items / figures['seconds']:>16,.0f}{1e6 * figures['cpu'] / items:>14,.0f}"
                f"{figures['memory'] / 1e6:>10,.0f}{figures['written'] / 1e6:>12,.0f}"
            )


def _made(folder: Path, items: int) -> Path:
    dataset = folder / "prompts.jsonl"
    dataset.write_text("".join(json.dumps({"prompt": f"Say number {number}."}) + "\n" for number in range(_BASE)))
    words = ["batch", f"--dataset_file={dataset}", "--batch_size=50", "--run_name=r", f"--data_dir={folder}"]
    more = ["--model=simulated", "--distribution=terminal_only", "--sandbox=local", "--executor=local", "--quiet"]
    if main([*words, *more, "--concurrency=8"]):
        raise SystemExit("the batch failed")
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
                f"INSERT INTO steps (item, {columns}) SELECT item + ?1, {columns} FROM steps WHERE item <= ?2", (offset, _BASE)
            )
        database.execute("UPDATE totals SET items = ? WHERE state = 'completed'", (items,))
        database.commit()


def _measured(run_folder: Path, name: str, output: Path) -> dict[str, float]:
    words = [sys.executable, "-m", "manyhands", "export", str(run_folder), f"--to={name}", f"--output={output}"]
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the export to {name} failed")
    return {
        "seconds": time.perf_counter() - began,
        "cpu": used.ru_utime + used.ru_stime,
        "memory": used.ru_maxrss * 1024,
        "written": _size(output),
    }


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*")) if path.is_dir() else path.stat().st_size
