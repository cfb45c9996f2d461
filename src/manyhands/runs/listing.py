"""The runs of a data folder, each as a list of runs shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Required, TypedDict

from manyhands.core.errors import ManyhandsError
from manyhands.runs.folders import find_runs, open_reader
from manyhands.runs.summaries import RunSummary, run_summary


class RunRow(TypedDict, total=False):
    """A run in a list, as ``manyhands runs --json`` prints it. One without a summary has ``run`` and ``state`` alone."""

    run: Required[str]
    """The name of its folder."""
    workload: str
    state: Required[str]
    items: int
    completed: int
    discarded: int
    failed: int
    pending: int
    cost: float
    """US dollars."""
    simulated: bool
    created: str | None


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run, or what may be one, in a list."""

    folder: Path
    state: str
    """That of its summary; if it has none, why not."""
    summary: RunSummary | None
    """Without the workload's own figures. None if the run can't be read, or if making it was cut short."""

    def to_json(self) -> RunRow:
        """The run in a row."""
        summary = self.summary
        if summary is None:
            return {"run": self.folder.name, "state": self.state}
        ledger = summary["ledger"]
        return {
            "run": summary["run"],
            "workload": summary["workload"],
            "state": self.state,
            "items": ledger["items"],
            "completed": ledger["completed"],
            "discarded": ledger["discarded"],
            "failed": ledger["failed"],
            "pending": ledger["pending"],
            "cost": summary["usage"]["cost"],
            "simulated": summary["simulated"],
            "created": summary["created_at"],
        }


def list_runs(data_dir: Path, *, sub_runs: bool = False) -> Iterator[ListedRun]:
    """The runs under a data folder, as ``find_runs`` finds them, one opened after the other. Raises StorageError as it does."""
    return map(_listed, find_runs(data_dir, sub_runs=sub_runs))


def _listed(folder: Path) -> ListedRun:
    try:
        with closing(open_reader(folder)) as reader:
            summary = run_summary(reader, with_figures=False)
    except ManyhandsError as error:
        return ListedRun(folder, f"unreadable: {error}", None)
    if summary["run_id"] is None:
        return ListedRun(folder, "unfinished: making it was cut short; make it again", None)
    return ListedRun(folder, summary["state"], summary)
