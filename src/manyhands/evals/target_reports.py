"""How the commands of a run went that answer all tests at once: kept beside their files, for whoever writes what a run came to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import dumps, loads
from manyhands.engine.files import bytes_written_aside
from manyhands.evals.batch_command import BatchReport

TARGETS = "targets"
"""The folder in the run folder where commands' files are kept."""
REPORT = "report.json"


def write_report(folder: Path, report: BatchReport, *, dataset: str, target: str, trial: int) -> None:
    """``folder``: the command's own, in the run folder. Raises StorageError."""
    told = {"dataset": dataset, "target": target, "trial": trial, **report.to_json()}
    with bytes_written_aside(folder / REPORT) as file:
        file.write(dumps(told) + b"\n")


def target_reports(run_folder: Path) -> list[dict[str, Any]]:
    """What ``write_report`` wrote, in order of the eval files and targets. ``notices`` (lines for the person) and ``failure`` (what went
    wrong with the command as a whole, or null) are those of ``BatchReport``. A damaged file counts as none."""
    return list(_read(sorted((run_folder / TARGETS).glob(f"*/{REPORT}"))))


def said(report: dict[str, Any]) -> Iterator[str]:
    """What a person should know of a report, a line each."""
    name = report["target"] + (f", trial {report['trial'] + 1}" if report["trial"] else "")
    for text in (*([report["failure"]] if report["failure"] else []), *report["notices"]):
        yield f"target {name}: {text}"


def _read(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            value = loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            yield value
