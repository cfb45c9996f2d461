"""Processes that a crashed run may have left behind: every process of a run carries a mark, by which it can be found and killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

MARK = "MANYHANDS_RUN"
"""The environment variable that marks a run's processes."""


def process_mark(run_id: str) -> str:
    """The mark for what this process starts on behalf of a run."""
    return f"{run_id}.{os.getpid()}"


def kill_strays(mark: str) -> int:
    """Kill every process whose mark is this one, or starts with it and a dot; never this process. Returns how many.

    Linux only (it reads ``/proc``); elsewhere it finds nothing.
    """
    wanted = f"{MARK}={mark}".encode()
    killed = 0
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid() and _is_marked(entry, wanted):
            killed += _kill(int(entry.name))
    return killed


def _is_marked(process: Path, wanted: bytes) -> bool:
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(variable == wanted or variable.startswith(wanted + b".") for variable in variables)


def _kill(process: int) -> int:
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        return 0
    return 1
