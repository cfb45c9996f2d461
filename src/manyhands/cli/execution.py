"""Performing a run in the foreground: the bar, Ctrl-C, the ending.

The end of a run in words: the ledger, the bill, what to do next.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from manyhands.cli.console import err, notice, resume_command
from manyhands.cli.plain import usage_text
from manyhands.cli.progress import ProgressView
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Item, Workload
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import Controls, RunResult, perform_run
from manyhands.runs.ledger import ORDER


def perform(
    folder: Path,
    workload: Workload,
    *,
    quiet: bool = False,
    spec_changed: bool = False,
    rewrite_outputs: bool = False,
    retry_failed: bool = True,
    judge_again: Sequence[str] = (),
    on_outcome: Callable[[Item, Outcome], None] | None = None,
    failed: str = ItemState.FAILED,
    graded: Callable[[], int] | None = None,
) -> RunResult:
    """Perform a run to its end or until somebody stops it. ``failed``: what failed items are called while it goes on; ``graded``: how many
    of those in flight are graded, and wait for the end of something else.

    The first Ctrl-C (or SIGTERM) finishes the calls in flight, the second stops at once.
    """

    async def performed(controls: Controls, view: ProgressView) -> RunResult:
        return await perform_run(
            folder,
            workload,
            spec_changed=spec_changed,
            rewrite_outputs=rewrite_outputs,
            retry_failed=retry_failed,
            judge_again=judge_again,
            notice=notice,
            controls=controls,
            on_progress=view.show,
            on_outcome=on_outcome,
            on_wait=view.tell,
        )

    return run_on_loop(_with_signals(performed, ProgressView(folder.name, quiet=quiet, failed=failed, graded=graded)))


async def _with_signals(
    performed: Callable[[Controls, ProgressView], Awaitable[RunResult]], view: ProgressView
) -> RunResult:
    controls = Controls()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, _stop, controls)
    try:
        with view:
            return await performed(controls, view)
    finally:
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(name)


def _stop(controls: Controls) -> None:
    if controls.stopping:
        err().print("stopping at once", markup=False)
    else:
        err().print(
            "stopping: the calls in flight are finished first (press Ctrl-C again to stop at once)", markup=False
        )
    controls.stop()


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
