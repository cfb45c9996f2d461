"""Executing a run in the foreground: the progress bar, Ctrl-C, how it ended, and the command that continues it.

The progress is a bar on a terminal, and a line now and then elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Self

from manyhands.cli.console import err, notice, out, resume_command
from manyhands.cli.main import PROGRAM
from manyhands.cli.viewing.beside import viewer_beside
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.text import counted, one_line, printable
from manyhands.engine.contract import Item, Workload
from manyhands.processes.event_loop import on_stop_signals, run_on_loop
from manyhands.processes.fork_server import ForkServer
from manyhands.runs.execution import Controls, RunResult, execute_run, forks_for
from manyhands.runs.making import Opened
from manyhands.runs.progress import Progress, image_text

if TYPE_CHECKING:
    from manyhands.cli.styled import Bar


def execute(
    opened: Opened[Workload],
    *,
    quiet: bool = False,
    on_outcome: Callable[[Item, Outcome], None] | None = None,
    failed: str = ItemState.FAILED,
    graded: Callable[[], int] | None = None,
    forks: ForkServer | None = None,
    beside: bool = False,
) -> RunResult:
    """Execute a run until it ends or is stopped. ``failed``: what failed items are called in the progress; ``graded``: the number of items
    in flight that are graded already, and wait for the end of something else; ``forks``: what makes its worker processes, where that was
    begun before the run was opened; ``beside``: it can be looked at in a browser meanwhile.

    The first Ctrl-C (or SIGTERM) finishes the calls in flight, the second stops at once.
    """

    view = ProgressView(opened.folder.name, quiet=quiet, failed=failed, graded=graded)

    async def executed(server: ForkServer | None) -> RunResult:
        controls = Controls()
        async with viewer_beside([opened.folder], wanted=beside):
            with stopped_by_signals([controls]), view:
                return await execute_run(
                    opened,
                    notice=notice,
                    controls=controls,
                    on_progress=view.show,
                    on_outcome=on_outcome,
                    on_wait=view.tell,
                    forks=server,
                )

    with nullcontext(forks) if forks else forks_for(opened.workload) as server:
        return run_on_loop(executed(server))


@contextmanager
def stopped_by_signals(
    controls: Sequence[Controls], first: str = "the calls in flight are finished first"
) -> Iterator[None]:
    """Within it, the first Ctrl-C (or SIGTERM) ends the runs in good order, the second at once. Needs a running event loop. ``first``: what
    is done before the runs stop, for the message."""

    def stop() -> None:
        again = any(each.stopping for each in controls)
        text = "stopping at once" if again else f"stopping: {first} (press Ctrl-C again to stop at once)"
        err().print(text)
        for each in controls:
            each.stop()

    with on_stop_signals(stop):
        yield


def print_reason(result: RunResult) -> None:
    """Print why a session ended early, or why the run has no results, if so."""
    if result.error is not None:
        err().print_line(f"{PROGRAM}: error: {result.error}")
    elif result.stopped is not None and not result.done:
        err().print_line(f"{PROGRAM}: stopped: {result.stopped}")
    elif result.nothing_kept is not None:
        err().print_line(f"{PROGRAM}: error: {result.nothing_kept}")


def print_ending(result: RunResult) -> None:
    """As ``print_reason``, and the command that continues the run, if anything is left."""
    print_reason(result)
    left = result.ledger["pending"]
    failed = result.ledger["failed"]
    if result.commonest_failure is not None:
        message, count = result.commonest_failure
        out().print_line(f"Failed{'' if failed == 1 else f', {count} of {failed}'}: {one_line(message)}")
    if left or failed:
        unfinished = f"{counted(left, 'item')} {'is' if left == 1 else 'are'} left"
        what = unfinished if left else f"{counted(failed, 'item')} failed and can be retried"
        out().print_line(f"{what}. To continue:  {resume_command(result.folder)}")


def tell_end(command: str | None, result: RunResult, exit_code: int) -> int:
    """Run the command of ``--on_end``, if there is one; the exit code, as it was."""
    if command is not None:
        from manyhands.runs.on_end import run_on_end

        run_on_loop(run_on_end(command, result, exit_code, notice))
    return exit_code


LINE_SECONDS = 15.0
"""Seconds between lines where there is no terminal."""


class ProgressView:
    """Shows ``Progress`` values as they come. ``failed`` and ``graded``: as of ``execute``."""

    def __init__(
        self,
        label: str,
        *,
        quiet: bool = False,
        failed: str = ItemState.FAILED,
        graded: Callable[[], int] | None = None,
    ) -> None:
        self._graded = graded
        self._label = printable(label)
        self._failed = failed
        self._quiet = quiet
        self._console = err()
        self._bar: Bar | None = None
        self._printed_at = time.monotonic()
        self._last_finished = -1

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            from manyhands.cli.styled import Bar  # rich is large, and most runs have no terminal

            self._bar = Bar(self._console.rich)
            self._bar.start()
            self._bar.add_task(self._label, total=None, details="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Bring the view up to date."""
        waiting = next((wait.text(time.time()) for wait in progress.waits), "")
        graded = 0 if self._graded is None else self._graded()
        beside = details(progress, self._failed, graded)
        self.show_figures(progress.items, progress.finished, beside, waiting, graded=graded)

    def tell(self, line: str) -> None:
        """Print what the run waits for. On a terminal, the bar shows that."""
        if self._bar is None and not self._quiet:
            self._console.print_line(f"{self._label}: {line}")

    def show_figures(self, items: int, finished: int, beside: str, waiting: str = "", *, graded: int = 0) -> None:
        """Bring the view up to date: ``items`` in all, ``finished`` of them, the text ``beside`` the bar, and what is waited for.
        ``graded``: items that have not ended, and count as if they had."""
        if self._bar is not None:
            self._bar.below = one_line(waiting)
            self._bar.update(self._bar.task_ids[0], total=items, completed=finished + graded, details=beside)
        elif not self._quiet:
            self._line(items, finished, beside)

    def _line(self, items: int, finished: int, beside: str) -> None:
        now = time.monotonic()
        ended = finished == items and finished != self._last_finished
        if ended or now - self._printed_at >= LINE_SECONDS:
            self._printed_at, self._last_finished = now, finished
            text = f"{self._label}: {finished} of {items} ended, {beside}"
            self._console.print_line(text)


def details(progress: Progress, failed: str = ItemState.FAILED, graded: int = 0) -> str:
    """The figures beside the bar: in flight, discarded and failed, speed, tokens, cost. ``graded``: as of ``execute``."""
    parts = [f"{max(0, progress.in_flight - graded)} in flight"]
    if graded:
        parts.insert(0, f"{graded} graded, to end with their command")
    for state, word in ((ItemState.DISCARDED, str(ItemState.DISCARDED)), (ItemState.FAILED, failed)):
        if count := sum(n for (name, _), n in progress.counts.items() if name == state):
            parts.append(f"{count} {word}")
    ended = progress.finished + graded - progress.finished_before
    if ended and progress.seconds > 0:
        parts.append(f"{ended / progress.seconds:.1f}/s")
    usage = progress.usage
    if usage.total_tokens:
        parts.append(f"{usage.total_tokens:,} tokens")
    if usage.cost:
        parts.append(f"${usage.cost:.4f}")
    if usage.simulated_calls:
        parts.append(
            "simulated model" if usage.simulated_calls == usage.calls else f"{usage.simulated_calls:,} calls simulated"
        )
    if progress.images and (progress.images["pulling"] or progress.images["failed"]):
        parts.append(image_text(progress.images))
    return ", ".join(parts)
