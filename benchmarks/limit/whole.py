"""A child: a command as a whole, with whatever processes it starts, also those that outlive it or lose their parents.

Arguments: ``words``; its output goes to standard error. Reports when it was started (``time.time``), the seconds until it came back, the
processor time of all its processes together, and the most memory that one of them had resident, in bytes. As the first
process of a PID namespace it also reports how many processes and threads there were.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from benchmarks.children import arguments, report
from benchmarks.csv_jobs.command import adopt_orphans, ended


def main() -> int:
    words = arguments()["words"]
    adopt_orphans()
    program = shutil.which(words[0]) or words[0]
    started, began, code, wall, cpu, memory = time.time(), time.perf_counter(), 1, 0.0, 0.0, 0
    command = os.posix_spawn(program, words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
    for process, status, usage in ended():
        if process == command:
            wall, code = time.perf_counter() - began, os.waitstatus_to_exitcode(status)
        cpu += usage.ru_utime + usage.ru_stime
        memory = max(memory, usage.ru_maxrss * 1024)
    last = int(Path("/proc/loadavg").read_text().split()[-1])
    report(started=started, wall=wall, cpu=cpu, memory=memory, processes=last - 1 if os.getpid() == 1 else None)
    return code


if __name__ == "__main__":
    sys.exit(main())
