"""Following a job that a runner of its own performs: the bar, Ctrl-C, the ending.

``manyhands jobs wait``: until a job ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from manyhands.cli.arguments import add_job, parser, positive
from manyhands.cli.console import err, notice, program
from manyhands.cli.jobs.status import details, exit_code, print_failed, print_ledger, print_status
from manyhands.cli.plain import counted_rows, one_line, shown_path
from manyhands.cli.progress import LINE_SECONDS, LogTail, ProgressView
from manyhands.core.errors import ManyhandsError
from manyhands.core.text import json_text
from manyhands.processes.event_loop import run_on_loop
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.service.status import FAILED, JobStatus

INTERRUPTED = 130
_STOPS = (signal.SIGINT, signal.SIGTERM)


async def follow(desk: JobService, job: str, *, quiet: bool = False, log: LogTail | None = None) -> int:
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

    def __init__(self, desk: JobService, job: str) -> None:
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


def run(argv: list[str]) -> int:
    """0 when every row was completed; 1 when not, or when the time was up before."""
    options = _parser().parse_args(argv)
    desk = JobService(Path(options.data_dir), environ=os.environ, folders=True)
    seconds = None if options.timeout_ms is None else options.timeout_ms / 1000
    told = Told(lambda line: err().print(line, markup=False, soft_wrap=True))

    async def show(status: JobStatus) -> None:
        told.show(status)

    status, timed_out = run_on_loop(desk.wait(options.job, seconds, show))
    if options.json:
        print(json_text({**status.to_json(), "timed_out": timed_out}, indent=2))
    else:
        print_status(status)
    if timed_out:
        err().print(f"manyhands: timed out: the job has not ended after {seconds:g} s, and goes on", markup=False)
    elif not status.ended:
        err().print(f"manyhands: {status.state}: nobody performs the job", markup=False)
    return 1 if timed_out else exit_code(status)


def _parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs wait",
        "Wait until a job ends, or until nobody performs it any more. Exit code 0: every row was completed; 1: it ended "
        "otherwise, nobody performs it, or the time was up.",
    )
    add_job(result)
    result.add_argument("--timeout_ms", "--timeout-ms", type=positive, metavar="N", help="wait no longer than this")
    result.add_argument("--json", action="store_true", help="print the status as JSON, with timed_out")
    return result
