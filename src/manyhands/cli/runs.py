"""``manyhands runs``: the runs under a data folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from manyhands.cli.console import out
from manyhands.cli.plain import parser
from manyhands.core.text import json_text
from manyhands.runs.listing import RunRow, list_runs


def run(argv: list[str]) -> int:
    """List runs with their state and cost."""
    options = _parser().parse_args(argv)
    rows = [listed.to_json() for listed in list_runs(Path(options.data_dir))]
    if options.json:
        print(json_text(rows, indent=2))
        return 0
    if not rows:
        out().print(f"there are no runs in {options.data_dir}")
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
        table.add_row(*(_cell(str(column.header), row) for column in table.columns))
    out().print(table)
    return 0


_NUMBERS = frozenset(("items", "completed", "discarded", "failed", "pending", "cost"))


def _parser() -> argparse.ArgumentParser:
    result = parser("runs", "List the runs in a data folder with their state and cost.")
    result.add_argument(
        "--data_dir", "--data-dir", default="data", help="folder that holds the run folders (default: data)"
    )
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def _cell(column: str, row: RunRow) -> str:
    value = row.get(column, "")
    if column == "cost" and value != "":
        return "simulated" if row["simulated"] and not value else f"${value:.4f}"
    return str(value)
