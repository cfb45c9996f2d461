"""``manyhands jobs status``: where a job stands. Answers at once, however large the job is."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from manyhands.cli.arguments import add_job, parser
from manyhands.cli.jobs_report import print_status, status_line
from manyhands.core.terminal import json_text
from manyhands.csv_jobs.folders import find_job
from manyhands.csv_jobs.status import JobStatus, job_status
from manyhands.engine.streams import raw_stream


def run(argv: list[str]) -> int:
    """Print a job's status once, or until nobody performs it any more."""
    options = _parser().parse_args(argv)
    if options.watch:
        return _watch(options.data_dir, options.job, _Lines(options.json))
    status = job_status(find_job(Path(options.data_dir), options.job, folders=True))
    if options.json:
        print(json_text(status.to_json(), indent=2))
    else:
        print_status(status)
    return 0


def _parser() -> argparse.ArgumentParser:
    result = parser("jobs status", "Say where a job stands. Only reads, so it works while a runner performs the job.")
    add_job(result)
    result.add_argument("--watch", action="store_true", help="go on until nobody performs the job any more")
    result.add_argument("--json", action="store_true", help="print JSON (with --watch: one line at each change)")
    return result


def _watch(data_dir: str, job: str, lines: _Lines) -> int:
    # Only here, because they take as long to import as everything else that a status needs.
    import os

    from manyhands.csv_jobs.desk import JobDesk
    from manyhands.engine.loop import run_on_loop

    async def watch() -> None:
        desk = JobDesk(Path(data_dir), environ=os.environ, folders=True)
        status, _ = await desk.wait(job, None, lines.show)
        await lines.show(status)

    try:
        run_on_loop(watch())
    finally:
        lines.close()
    return 0


class _Lines:
    """Shows a status as it changes: on a terminal in one place, elsewhere line by line."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._in_place = not as_json and sys.stdout.isatty()
        self._last = ""

    async def show(self, status: JobStatus) -> None:
        line = json_text(status.to_json()) if self._json else status_line(status)
        if line == self._last:
            return
        if self._in_place:
            width = shutil.get_terminal_size().columns - 1
            raw_stream(sys.stdout).write("\r")
            print(f"{line[:width]:<{min(width, len(self._last))}}", end="", flush=True)
        else:
            print(line, flush=True)
        self._last = line

    def close(self) -> None:
        if self._in_place and self._last:
            print()
