"""Executing a run in the foreground: the bar, Ctrl-C, the ending and what to do next."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from rich.console import Console

from manyhands.cli.console import err, notice, resume_command
from manyhands.cli.progress import ProgressView
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Item, Workload
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import Controls, RunResult, execute_run
from manyhands.runs.making import Opened


def execute(
    opened: Opened[Workload],
    *,
    quiet: bool = False,
    on_outcome: Callable[[Item, Outcome], None] | None = None,
    failed: str = ItemState.FAILED,
    graded: Callable[[], int] | None = None,
) -> RunResult:
    """Execute a run to its end or until somebody stops it. ``failed``: what failed items are called while it goes on; ``graded``: how many
    of those in flight are graded, and wait for the end of something else.

    The first Ctrl-C (or SIGTERM) finishes the calls in flight, the second stops at once.
    """

    async def executed(controls: Controls, view: ProgressView) -> RunResult:
        return await execute_run(
            opened,
            notice=notice,
            controls=controls,
            on_progress=view.show,
            on_outcome=on_outcome,
            on_wait=view.tell,
        )

    view = ProgressView(opened.folder.name, quiet=quiet, failed=failed, graded=graded)
    return run_on_loop(_with_signals(executed, view))


async def _with_signals(
    executed: Callable[[Controls, ProgressView], Awaitable[RunResult]], view: ProgressView
) -> RunResult:
    controls = Controls()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, _stop, controls)
    try:
        with view:
            return await executed(controls, view)
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
