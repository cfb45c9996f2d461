"""A child: a whole job by the command, from ``manyhands jobs spawn`` to the end of its runner, with whatever processes it takes.

Arguments: ``settings`` of ``JobSpec`` but for the table, ``csv_path``. Reports the seconds until the command came back, which is when
the results are written, the processor time of all processes together, and the most memory that any one of them had resident, in bytes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from resource import struct_rusage
from typing import Any

from benchmarks.children import arguments, report
from benchmarks.startup import program

_SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of prctl(2)."""


def adopt_orphans() -> None:
    """Have processes whose parents end become this one's children: the runner is nobody's child, so that what it used is told to nobody
    else."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1) != 0:
        raise OSError(ctypes.get_errno(), "this process can't adopt others")


def ended() -> Iterator[tuple[int, int, struct_rusage]]:
    """Each child that ends, until there is none: its id, its wait status, what it and those it waited for have used."""
    while True:
        try:
            yield os.wait4(-1, 0)
        except ChildProcessError:
            return


def spawn(settings: dict[str, Any]) -> int:
    """Start the command; its process. What it prints goes to standard error."""
    table = settings["csv_path"]
    options = [f"--{name}={value}" for name, value in settings.items() if name != "csv_path"]
    words = [*program(), "jobs", "spawn", table, *options]
    return os.posix_spawn(words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])


def main() -> int:
    adopt_orphans()
    began = time.perf_counter()
    command, code, wall, cpu, memory = spawn(arguments()["settings"]), 1, 0.0, 0.0, 0
    for process, status, usage in ended():
        if process == command:
            wall, code = time.perf_counter() - began, os.waitstatus_to_exitcode(status)
        cpu += usage.ru_utime + usage.ru_stime
        memory = max(memory, usage.ru_maxrss * 1024)
    report(wall=wall, cpu=cpu, memory=memory)
    return code


if __name__ == "__main__":
    sys.exit(main())
