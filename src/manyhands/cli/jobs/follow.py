"""Following a job that its runner executes: the progress bar, Ctrl-C, how it ended. ``manyhands jobs wait`` and ``cancel``."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from manyhands.cli.console import err, notice, program
from manyhands.cli.execution import LINE_SECONDS, ProgressView
from manyhands.cli.jobs.status import details, exit_code, print_failed, print_ledger, print_stages, print_status
from manyhands.cli.plain import add_job, parser, positive, shown_path
from manyhands.cli.viewing.beside import viewer_beside
from manyhands.core.errors import ManyhandsError
from manyhands.core.text import are, counted, have, json_text, one_line
from manyhands.engine.scheduler import CANCEL_SECONDS
from manyhands.processes.event_loop import on_stop_signals, run_on_loop
from manyhands.runs.exit_codes import ExitCode
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.service.status import FAILED, JobStatus


def job_service(data_dir: str) -> JobService:
    """The jobs of a data folder, and those that are named by their folders."""
    return JobService(Path(data_dir), environ=os.environ, folders=True)


async def follow(
    service: JobService, job: str, *, quiet: bool = False, log: LogTail | None = None, view: bool = False
) -> int:
    """Show a job until it ends or no process executes it any more, then how it ended; the exit code. ``log``: the runner's log, which is
    shown, too. ``view``: it can be looked at in a browser meanwhile.

    The first Ctrl-C (or SIGTERM) has the runner finish the rows in progress, the second has it stop at once. If this process ends, the
    runner continues.
    """
    stopping = _Stopping(service, job)
    begun = service.status(job)
    async with viewer_beside([begun.folder], wanted=view):
        with ProgressView(begun.name, quiet=quiet) as progress, on_stop_signals(stopping.request):
            notes = RunnerNotes(progress.tell)

            async def show(status: JobStatus) -> None:
                items = status.total_items - status.beyond_limit_items
                progress.show_figures(items, items - status.left, details(status), status.waiting or "")
                notes.show(status)
                if log is not None:
                    log.show()

            status, _ = await service.wait(job, None, show)
            await show(status)
    _print_end(status)
    return ExitCode.INTERRUPTED if stopping.requested and not status.ended else exit_code(status)


class LogTail:
    """Shows what is appended to a log file, line by line, on standard error."""

    def __init__(self, path: Path, start: int = 0) -> None:
        """``start``: the byte to begin at."""
        self._path = path
        self._position = start
        self._incomplete = b""

    @classmethod
    def from_now(cls, path: Path) -> Self:
        """Only what comes from now on."""
        return cls(path, path.stat().st_size if path.exists() else 0)

    def show(self) -> None:
        """Print the lines that have come since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._position)
            new = log.read()
        self._position += len(new)
        *lines, self._incomplete = (self._incomplete + new).split(b"\n")
        for line in lines:
            err().print_line(line.decode("utf-8", "replace"))


class RunnerNotes:
    """Prints what a runner reports besides figures: its notes, each once, and with ``tell`` what it waits for."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._notes: set[str] = set()
        self._until = ""
        self._at = float("-inf")

    def show(self, status: JobStatus) -> None:
        """Print what is new."""
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
    """Passes on signals, such as Ctrl-C, to the job's runner."""

    def __init__(self, service: JobService, job: str) -> None:
        self._service = service
        self._job = job
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def requested(self) -> bool:
        return bool(self._tasks)

    def request(self) -> None:
        """Stop the runner; a second time at once."""
        firm = self.requested
        text = (
            "stopping at once"
            if firm
            else "stopping: the rows in progress are finished first (press Ctrl-C again to stop at once)"
        )
        err().print(text)
        self._tasks.append(asyncio.create_task(self._stop(firm)))

    async def _stop(self, firm: bool) -> None:
        try:
            await self._service.stop(self._job, firm=firm)
        except ManyhandsError as error:  # the runner may have ended by itself; the wait continues in any case
            err().print(f"note: {error}")


def _print_end(status: JobStatus) -> None:
    print_ledger(status)
    print_stages(status)
    print_failed(status)
    if Path(status.output_csv_path).exists():
        print(f"Output: {shown_path(Path(status.output_csv_path))}")
    if status.last_error:
        err().print_line(f"manyhands: {status.state}: {status.last_error}")
    for line in _next_steps(status):
        print(line)


def _next_steps(status: JobStatus) -> Iterator[str]:
    if left := status.left:
        yield f"{counted(left, 'row')} {are(left)} left. To continue:  {job_command('run', status)}"
    elif status.unwritable:
        table = shlex.quote(shown_path(_csv_beside(Path(status.output_csv_path))))
        yield f"The results are not written yet. To write them as CSV:  {job_command('export', status)} --output_csv_path={table}"
    elif not status.ended or status.state == FAILED:
        yield f"The results are not written yet. To continue:  {job_command('run', status)}"
    if said := beyond_limit(status):
        yield f"{said}:  {job_command('run', status)} --limit=none"
    if failed := status.failed_items:
        yield f"{counted(failed, 'row')} failed. To retry {'it' if failed == 1 else 'them'}:  {job_command('retry', status)} --failed"


def _csv_beside(output: Path) -> Path:
    """A file for results that another format can't hold, where there is none yet."""
    names = (f"{output.stem}{number}.csv" for number in ("", *(f"-{count}" for count in range(2, 1000))))
    return next((path for name in names if not (path := output.with_name(name)).exists()), output.with_suffix(".csv"))


def beyond_limit(status: JobStatus) -> str | None:
    """What to say of rows beyond the limit, once those up to it have ended; None if there are none."""
    beyond = status.beyond_limit_items
    if not beyond or status.left:
        return None
    ended = status.total_items - beyond
    behind = f"{beyond:,} {are(beyond)} beyond --limit={status.limit}"
    return (
        f"{ended:,} of {status.total_items:,} rows {have(ended)} ended, {behind}. "
        f"To continue with {'it' if beyond == 1 else 'them'}"
    )


def job_command(command: str, status: JobStatus) -> str:
    """The command line for something about a job, as it is typed at this terminal."""
    return f"{program()} jobs {command} {shlex.quote(shown_path(status.folder))}"


def wait(argv: list[str]) -> int:
    """Wait; 0 if every row was completed, 1 if not, or if the time limit was reached."""
    options = _wait_parser().parse_args(argv)
    service = job_service(options.data_dir)
    seconds = None if options.timeout_ms is None else options.timeout_ms / 1000
    notes = RunnerNotes(lambda line: err().print_line(line))

    async def show(status: JobStatus) -> None:
        notes.show(status)

    status, timed_out = run_on_loop(service.wait(options.job, seconds, show))
    if options.json:
        print(json_text({**status.to_json(), "timed_out": timed_out}, indent=2))
    else:
        print_status(status)
    if timed_out:
        err().print(f"manyhands: timed out: the job has not ended after {seconds:g} s, and continues")
    elif not status.ended:
        err().print(f"manyhands: {status.state}: no process executes the job")
    return ExitCode.FAILED if timed_out else exit_code(status)


def _wait_parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs wait",
        "Wait until a job ends, or until no process executes it any more. Exit code: 0 if every row was completed; 1 if not, or "
        "if the time limit was reached.",
    )
    add_job(result)
    result.add_argument("--timeout_ms", "--timeout-ms", type=positive, metavar="N", help="maximum wait in milliseconds")
    result.add_argument("--json", action="store_true", help="print the status as JSON, with timed_out")
    return result


def cancel(argv: list[str]) -> int:
    """Cancel, and print the job's status."""
    options = _cancel_parser().parse_args(argv)
    service = job_service(options.data_dir)
    status = run_on_loop(service.cancel(options.job, firm=options.firm))
    if options.json:
        print(json_text(status.to_json(), indent=2))
    else:
        print_status(status)
    if status.runner_active and not options.firm:
        text = f"note: no more rows are started; those in progress have {CANCEL_SECONDS:g} seconds to end"
        err().print(text)
    return 0


def _cancel_parser() -> argparse.ArgumentParser:
    result = parser(
        "jobs cancel",
        "End a job: no more rows are started, rows in progress are finished. Rows that have not started stay pending; "
        "'manyhands jobs run' continues with them.",
    )
    add_job(result)
    result.add_argument("--firm", action="store_true", help="also stop the rows in progress; they stay pending")
    result.add_argument("--json", action="store_true", help="print the status as JSON")
    return result
