"""Batches that benchmarks measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.children import run_child

WITHOUT_TOOLS = "without_tools"
"""A distribution whose one toolset has no tool in a run that names no models for it."""
TOOLSETS = {"terminal_only": ["terminal", "file"], WITHOUT_TOOLS: ["moa"]}
"""Distributions that always draw the same toolsets, so that all requests of a batch offer the same tools."""


def batch_settings(folder: Path, name: str, in_flight: int, **others: Any) -> dict[str, Any]:
    """Settings of a batch over ``prompts.jsonl`` in a folder, in one process."""
    if others.get("distribution") == WITHOUT_TOOLS:
        others["distributions_file"] = str(without_tools(folder))
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


def without_tools(folder: Path) -> Path:
    """A file with the distribution that has no tools."""
    file = folder / "distributions.yaml"
    file.write_text(f"{WITHOUT_TOOLS}: {{toolsets: {{moa: 100}}}}\n")
    return file


def measured_batch(settings: dict[str, Any], items: int) -> dict[str, Any]:
    """Run a batch in a process of its own. Raises RuntimeError if it does not complete all its items."""
    report = run_child("batch", settings=settings)
    if report["ledger"]["completed"] != items:
        raise RuntimeError(f"not all of {items} items were completed: {report['ledger']}, {report['stopped']}")
    return report
