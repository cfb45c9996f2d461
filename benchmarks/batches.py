"""Batches that benchmarks measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.children import run_child

TOOLSETS = {"terminal_only": ["terminal", "file"], "minimal": ["web"]}
"""Distributions that always draw the same toolsets, so that all requests of a batch offer the same tools."""


def batch_settings(folder: Path, name: str, in_flight: int, **others: Any) -> dict[str, Any]:
    """Settings of a batch over ``prompts.jsonl`` in a folder, in one process."""
    return {
        "dataset_file": str(folder / "prompts.jsonl"),
        "batch_size": 1000,
        "run_name": name,
        "distribution": "terminal_only",
        "model": "simulated",
        "executor": "local",
        "num_workers": 1,
        "concurrency": in_flight,
        "sandbox": "local",
        "data_dir": str(folder),
        **others,
    }


def measured_batch(settings: dict[str, Any], items: int) -> dict[str, Any]:
    """Run a batch in a process of its own. Raises RuntimeError if it does not complete all its items."""
    report = run_child("batch", settings=settings)
    if report["ledger"]["completed"] != items:
        raise RuntimeError(f"not all of {items} items were completed: {report['ledger']}, {report['stopped']}")
    return report
