"""``manyhands worlds list``: the worlds that engines keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyhands.cli.plain import parser, shown_path, table
from manyhands.cli.worlds.engines import add_kinds, asked_engines
from manyhands.core.text import json_text
from manyhands.processes.event_loop import run_on_loop
from manyhands.sandboxes.lifecycle.keeping import Kept, shown_size, size_of
from manyhands.sandboxes.remote.driver import Driver

_HEADINGS = ("run", "item", "attempt", "kind", "state", "size", "run folder")


def run(argv: list[str]) -> int:
    """List worlds."""
    result = parser("worlds list", "List the worlds that container engines keep: of unfinished items, or to be kept.")
    add_kinds(result)
    result.add_argument("--json", action="store_true", help="print JSON")
    options = result.parse_args(argv)
    rows = run_on_loop(_rows(options.sandbox))
    if options.json:
        print(json_text(rows, indent=2))
    elif not rows:
        print("there are no worlds")
    else:
        print(table(_HEADINGS, [_cells(row) for row in rows], right=("item", "attempt", "size")))
    return 0


async def _rows(kinds: Sequence[str] | None) -> list[dict[str, Any]]:
    async with asked_engines(kinds) as found:
        rows = [await _row(driver, each) for driver, worlds in found for each in worlds if not each.listed.snapshot]
    return sorted(rows, key=lambda row: (row["run"] or "", row["item"] or 0, row["attempt"] or 0, row["id"]))


async def _row(driver: Driver, kept: Kept) -> dict[str, Any]:
    folder, name = kept.attempt or (None, "")
    item, _, attempt = name.partition("-")
    return {
        "run": None if folder is None else folder.name,
        "item": int(item) if item.isdecimal() else None,
        "attempt": int(attempt) if attempt.isdecimal() else None,
        "kind": driver.kind,
        "state": "running" if kept.listed.running else "stopped",
        "size": await size_of(driver, kept.listed),
        "folder": None if folder is None else str(folder),
        "gone": folder is None or not folder.is_dir(),
        "run_id": kept.run_id,
        "id": kept.listed.id,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    folder = "" if row["folder"] is None else shown_path(Path(row["folder"]))
    return [
        row["run"] or row["run_id"],
        *("" if row[name] is None else str(row[name]) for name in ("item", "attempt", "kind", "state")),
        "" if row["size"] is None else shown_size(row["size"]),
        f"{folder} (gone)" if row["gone"] else folder,
    ]
