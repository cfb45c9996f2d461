"""The list of runs."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from time import time
from typing import Any

from manyhands.view.pages.page import Page, Query, Site, whole_number
from manyhands.view.source import ShownRun

ROWS = 100
"""Of a page."""
COLUMNS = (
    ("run", "Run", False),
    ("workload", "Workload", False),
    ("state", "State", False),
    ("ended", "Ended", False),
    ("failed", "Failed", True),
    ("model", "Model", False),
    ("tokens", "Tokens", True),
    ("cost", "Cost", True),
    ("work", "Work", True),
    ("created", "Created (UTC)", False),
)
"""Of the table: name, heading, whether it has numbers."""
_SORTED: dict[str, Callable[[ShownRun], Any]] = {
    "run": lambda run: run.folder.name.lower(),
    "workload": lambda run: "" if run.summary is None else run.summary["workload"],
    "state": lambda run: run.state,
    "ended": lambda run: 0 if run.summary is None else _share(run),
    "failed": lambda run: 0 if run.summary is None else run.summary["ledger"]["failed"],
    "model": lambda run: ", ".join(run.models),
    "tokens": lambda run: 0 if run.summary is None else run.summary["usage"]["total_tokens"],
    "cost": lambda run: 0 if run.summary is None else run.summary["usage"]["cost"],
    "work": lambda run: 0 if run.summary is None else run.summary["working_seconds"],
    "created": lambda run: "" if run.summary is None else run.summary["created_at"] or "",
}


async def runs_page(site: Site, query: Query) -> Page:
    """The runs, by filters ``state``, ``workload``, ``model``, ``text``, in the order of ``sort``. ``page``: from 1."""
    every = await site.runs.in_thread(site.runs.listed)
    wanted = {name: query.get(name, "") for name in ("state", "workload", "model", "text", "sort")}
    found = [run for run in every if _fits(run, wanted)]
    name = wanted["sort"].lstrip("-")
    if name in _SORTED:
        found.sort(key=_SORTED[name], reverse=wanted["sort"].startswith("-"))
    last = max(1, ceil(len(found) / ROWS))
    page = min(max(1, whole_number(query.get("page")) or 1), last)
    begin = (page - 1) * ROWS
    values = {
        "runs": found[begin : begin + ROWS],
        "total": len(every),
        "found": len(found),
        "begin": begin,
        "previous": str(page - 1) if page > 1 else None,
        "next": str(page + 1) if page < last else None,
        "live": sum(run.is_live for run in every),
        "states": sorted({run.state for run in every}),
        "workloads": sorted({run.summary["workload"] for run in every if run.summary is not None}),
        "models": sorted({model for run in every for model in run.models})[:200],
        "query": wanted,
        "columns": COLUMNS,
        "folders": [str(folder) for folder in site.folders],
        "now": time(),
    }
    return Page("Runs", "runs.html", values, {"runs": [run_json(run) for run in found], "total": len(every)})


def run_json(run: ShownRun) -> dict[str, Any]:
    """A run in the list, for programs."""
    if run.summary is None:
        return {"run": run.folder.name, "state": run.state, "problem": run.problem}
    return {**run.summary, "run_id": run.id, "models": list(run.models), "max_cost": run.max_cost}


def _fits(run: ShownRun, query: Query) -> bool:
    workload = "" if run.summary is None else run.summary["workload"]
    return (
        query["state"] in ("", run.state)
        and query["workload"] in ("", workload)
        and (not query["model"] or query["model"] in run.models)
        and query["text"].lower() in run.folder.name.lower()
    )


def _share(run: ShownRun) -> float:
    assert run.summary is not None
    ledger = run.summary["ledger"]
    return 1 - ledger["pending"] / max(1, ledger["items"])
