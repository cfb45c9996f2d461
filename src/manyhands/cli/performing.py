"""Performing a run in the foreground: the bar, Ctrl-C, the ending."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from manyhands.cli.console import err, notice
from manyhands.cli.progress import ProgressView
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.context import Item
from manyhands.engine.loop import run_on_loop
from manyhands.engine.run import Controls, RunResult, perform_run
from manyhands.engine.workload import Workload


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
