"""``manyhands runs``: the runs under a data folder."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from manyhands.cli.arguments import parser
from manyhands.cli.console import out
from manyhands.core.errors import ManyhandsError
from manyhands.core.text import json_text
from manyhands.engine.journal.lock import is_owned
from manyhands.runs.folders import find_runs, open_reader
from manyhands.runs.ledger import summarise


def run(argv: list[str]) -> int:
    """List runs with where they stand and what they cost."""
    options = _parser().parse_args(argv)
    rows = [_describe(folder) for folder in find_runs(Path(options.data_dir))]
    if options.json:
        print(json_text(rows, indent=2))
        return 0
    if not rows:
        out().print(f"there are no runs in {options.data_dir}", markup=False)
        return 0
    table = Table(box=None, pad_edge=False)
    for column in (
        "run",
        "workload",
        "state",
        "items",
        "completed",
        "discarded",
        "failed",
        "pending",
        "cost",
        "created",
    ):
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=column == "run")
    for row in rows:
        table.add_row(*(_cell(column.header, row) for column in table.columns))
    out().print(table)
    return 0


_NUMBERS = frozenset(("items", "completed", "discarded", "failed", "pending", "cost"))


def _parser() -> argparse.ArgumentParser:
    result = parser("runs", "List the runs under a data folder, with where they stand and what they cost.")
    result.add_argument("--data_dir", "--data-dir", default="data", help="where run folders are (default: data)")
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def _describe(folder: Path) -> dict[str, Any]:
    try:
        reader = open_reader(folder)
        summary = summarise(reader)
        reader.close()
    except ManyhandsError as error:
        return {"run": folder.name, "state": f"unreadable: {error}"}
    if summary["run_id"] is None:
        return {"run": folder.name, "state": "unfinished: making it was cut short; make it again"}
    ledger = summary["ledger"]
    return {
        "run": folder.name,
        "workload": summary["workload"],
        "state": run_state(folder, summary),
        **{name: ledger[name] for name in ("items", "completed", "discarded", "failed", "pending")},
        "cost": summary["usage"]["cost"],
        "simulated": summary["simulated"],
        "created": summary["created_at"],
    }


def run_state(folder: Path, summary: Mapping[str, Any]) -> str:
    """One word or two: running, finished, finished with failures, interrupted, not started."""
    if is_owned(folder):
        return "running"
    if summary["ledger"]["pending"] == 0:
        return "finished, with failures" if summary["ledger"]["failed"] else "finished"
    return "interrupted" if summary["last_session"] else "not started"


def _cell(column: Any, row: dict[str, Any]) -> str:
    value = row.get(str(column), "")
    if column == "cost" and value != "":
        return "simulated" if row["simulated"] and not value else f"${value:.4f}"
    return str(value)
