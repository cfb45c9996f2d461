"""Where commands report that are launched by a worker process on another machine than the job's runner.

A command finds the process that takes its reports by the data folder in its environment. On another machine that is a folder which the
worker process makes for its own commands: it holds the job's folder with what says which job this is, and with the address of this process.
Reports are all that can be asked there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.engine.journal.reader import JOURNAL
from manyhands.io.files import make_private
from manyhands.processes.strays import remove_tree
from manyhands.runs.steering.control import ControlServer, remove_leftovers
from manyhands.workloads.csv_jobs.workers.reports import ReportInbox

REPORTS = "reports"
"""The folder in the run's folder for those of worker processes, by their process ids."""


@asynccontextmanager
async def report_folder(run_folder: Path, inbox: ReportInbox) -> AsyncIterator[Path]:
    """A data folder for commands of this process, whose reports come to ``inbox``. ``run_folder``: what stands in for the job's folder
    here. Raises UserError if it can't be made, StorageError if no socket can be."""
    top, own = run_folder / REPORTS, str(os.getpid())
    try:
        make_private(top)
        for left in top.iterdir():
            if left.name == own or not _is_alive(left.name):
                remove_leftovers(left / run_folder.name)
                remove_tree(left)
        data_dir = top / own
        folder = data_dir / run_folder.name
        folder.mkdir(parents=True)
        shutil.copyfile(run_folder / JOURNAL, folder / JOURNAL)
    except OSError as error:
        raise UserError(
            f"{error.filename or top}: can't be made for the reports of commands ({error.strerror})"
        ) from error
    server = ControlServer(folder, inbox.answer)
    try:
        await server.open()
        yield data_dir
    finally:
        server.withdraw()
        await server.close(ended=True)
        remove_tree(data_dir)


def _is_alive(process: str) -> bool:
    return process.isdecimal() and Path("/proc", process).is_dir()
