"""The end of a run in words: the ledger, the bill, what to do next."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from manyhands.cli.console import resume_command
from manyhands.cli.plain import usage_text
from manyhands.engine.run import RunResult
from manyhands.engine.summary import ORDER

_MEANING = {
    "completed": "ended with a result",
    "discarded": "ended, and left out of the results",
    "failed": "ended without a result",
    "cancelled": "not to be performed any more",
    "pending": "not ended: resume to go on",
}


def print_ledger(console: Console, summary: dict[str, Any]) -> None:
    """The ledger as a table: N in = the sum of the states."""
    ledger = summary["ledger"]
    table = Table(title="Ledger", title_justify="left", box=None, pad_edge=False)
    table.add_column("state")
    table.add_column("items", justify="right")
    table.add_column("")
    for state in ORDER:
        causes = ledger["by_cause"].get(state, {})
        why = ", ".join(f"{name} {count}" for name, count in causes.items()) or _MEANING[state]
        table.add_row(str(state), str(ledger[state]), why)
    table.add_row("in all", str(ledger["items"]), "= the sum of the states")
    console.print(table)


def print_usage(console: Console, summary: dict[str, Any]) -> None:
    """What the whole run has used, all sessions together."""
    text = usage_text(summary["usage"], summary["working_seconds"])
    console.print(text, markup=False, soft_wrap=True)


def print_ending(console: Console, errors: Console, result: RunResult, program: str = "manyhands") -> None:
    """Why a session ended early, or nothing came of the run, and the command that goes on."""
    if result.error is not None:
        errors.print(f"{program}: error: {result.error}", markup=False, soft_wrap=True)
    elif result.stopped is not None and not result.done:
        errors.print(f"{program}: stopped: {result.stopped}", markup=False, soft_wrap=True)
    elif result.nothing_kept is not None:
        errors.print(f"{program}: error: {result.nothing_kept}", markup=False, soft_wrap=True)
    left = result.ledger["pending"]
    failed = result.ledger["failed"]
    if left or failed:
        what = f"{left} items are left" if left else f"{failed} items failed and can be tried again"
        console.print(f"{what}. To go on:  {resume_command(result.folder)}", markup=False, soft_wrap=True)
