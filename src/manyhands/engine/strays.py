"""Processes that a crashed run may have left behind: every process of a run carries a mark, by which it can be found and killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

MARK = "MANYHANDS_RUN"
"""The environment variable that marks a run's processes."""
ROUNDS = 20


def process_mark(run_id: str) -> str:
    """The mark for what this process starts on behalf of a run."""
    return f"{run_id}.{os.getpid()}"


def kill_strays(mark: str) -> int:
    """Kill every process whose mark is this one, or starts with it and a dot; never this process. Returns how many.

    It looks again until it finds none, because a process may fork while it is looked for. Linux only (it reads ``/proc``); elsewhere it
    finds nothing.
    """
    wanted = f"{MARK}={mark}".encode()
    killed: set[int] = set()
    for _ in range(ROUNDS):
        found = {process for process in _processes() if _is_marked(process, wanted)} - killed
        if not found:
            break
        for process in found:
            _kill(process)
        killed |= found
    return len(killed)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if int(entry.name) != os.getpid()]


def _is_marked(process: int, wanted: bytes) -> bool:
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(variable == wanted or variable.startswith(wanted + b".") for variable in variables)


def _kill(process: int) -> None:
    with suppress(OSError):
        os.kill(process, signal.SIGKILL)
