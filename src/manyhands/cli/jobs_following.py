"""Following a job that a runner of its own performs: the bar, Ctrl-C, the ending."""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.cli.console import err, notice, program
from manyhands.cli.jobs_report import details, exit_code, print_failed, print_ledger
from manyhands.cli.plain import counted_rows, one_line, shown_path
from manyhands.cli.progress import LINE_SECONDS, ProgressView
from manyhands.cli.verbose import LogTail
from manyhands.core.errors import ManyhandsError
from manyhands.csv_jobs.desk import JobDesk
from manyhands.csv_jobs.status import FAILED, JobStatus

INTERRUPTED = 130
_STOPS = (signal.SIGINT, signal.SIGTERM)


async def follow(desk: JobDesk, job: str, *, quiet: bool = False, log: LogTail | None = None) -> int:
    """Show a job until it ends or nobody performs it any more, then how it ended; the exit code. ``log``: what the runner says is
    shown, too.

    The first Ctrl-C (or SIGTERM) has the runner finish the rows in work, the second has it stop at once. If this process goes
    away, the runner goes on.
    """
    stopping = _Stopping(desk, job)
    with ProgressView(desk.status(job).name, quiet=quiet) as view, stopping.on_signals():
        told = Told(view.tell)

        async def show(status: JobStatus) -> None:
            left = status.pending_items + status.running_items
            ended = status.total_items - left
            view.show_figures(status.total_items, ended, details(status), status.waiting or "")
            told.show(status)
            if log is not None:
                log.show()

        status, _ = await desk.wait(job, None, show)
        await show(status)
    _print_end(status)
    return INTERRUPTED if stopping.asked and not status.ended else exit_code(status)


class Told:
    """Tells what a runner says besides figures: its notes, each once, and to ``tell`` what it waits for."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._notes: set[str] = set()
        self._until = ""
        self._at = float("-inf")

    def show(self, status: JobStatus) -> None:
        """Tell what is new."""
        for note in status.notes:
            if note not in self._notes:
                self._notes.add(note)
                notice(note)
        until = (status.waiting or "").partition(": ")[0]
        now = time.monotonic()
        if status.waiting and until != self._until and now - self._at >= LINE_SECONDS:
            self._until, self._at = until, now
            self._tell(one_line(status.waiting))


class _Stopping:
    """Passes on what a person at the terminal wants."""

    def __init__(self, desk: JobDesk, job: str) -> None:
        self._desk = desk
        self._job = job
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def asked(self) -> bool:
        return bool(self._tasks)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for name in _STOPS:
            loop.add_signal_handler(name, self._ask)
        try:
            yield
        finally:
            for name in _STOPS:
                loop.remove_signal_handler(name)

    def _ask(self) -> None:
        firm = self.asked
        text = (
            "stopping at once"
            if firm
            else "stopping: the rows in work are finished first (press Ctrl-C again to stop at once)"
        )
        err().print(text, markup=False)
        self._tasks.append(asyncio.create_task(self._stop(firm)))

    async def _stop(self, firm: bool) -> None:
        try:
            await self._desk.stop(self._job, firm=firm)
        except ManyhandsError as error:  # the runner may have ended by itself; whatever it is, the wait goes on
            err().print(f"note: {error}", markup=False)


def _print_end(status: JobStatus) -> None:
    print_ledger(status)
    print_failed(status)
    if Path(status.output_csv_path).exists():
        print(f"Output: {shown_path(Path(status.output_csv_path))}")
    if status.last_error:
        err().print(f"manyhands: {status.state}: {status.last_error}", markup=False, soft_wrap=True)
    for line in _to_go_on(status):
        print(line)


def _to_go_on(status: JobStatus) -> Iterator[str]:
    left = status.pending_items + status.running_items
    if left:
        yield f"{counted_rows(left)} {'is' if left == 1 else 'are'} left. To go on:  {job_command('run', status)}"
    elif not status.ended or status.state == FAILED:
        yield f"The results are not written yet. To go on:  {job_command('run', status)}"
    if failed := status.failed_items:
        yield f"{counted_rows(failed)} failed. To try {'it' if failed == 1 else 'them'} again:  {job_command('retry', status)} --failed"


def job_command(command: str, status: JobStatus) -> str:
    """What to type for something about a job."""
    return f"{program()} jobs {command} {shlex.quote(shown_path(status.folder))}"
