"""Processes that a crashed run may have left behind: every process of a run carries a mark, by which it can be found and killed.

A mark is ``RUN_ID.STARTED.NUMBERING.BOOT.PROCESS``: the run, and the process on whose behalf it was started (its owner). A copy of a run
folder has the original's run id, and process ids are given again, so a marked process is a stray only if its owner is known to be
dead: the machine was started anew since, or there is no such process any more that was started at that time.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

MARK = "MANYHANDS_RUN"
"""The environment variable that marks a run's processes."""
ROUNDS = 20
_MOST_DIGITS = 20
_PAUSE = 0.01
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def process_mark(run_id: str) -> str:
    """The mark for what this process starts on behalf of a run."""
    return f"{run_id}.{_owner(os.getpid())}"


def kill_strays(run_id: str, owner: int | None = None) -> int:
    """Kill every process that is marked as one of this run (and this owner, by its id), and whose owner is dead; never this process.
    Returns how many.

    It looks again until it finds none, because a process may fork while it is looked for, and be the owner of further ones. Linux only
    (it reads ``/proc``); elsewhere it finds nothing.
    """
    wanted = f"{MARK}={run_id}".encode()
    killed: set[int] = set()
    for _ in range(ROUNDS):
        marks = {process: _mark_of(process, wanted) for process in _processes() - killed}
        found = {process for process, found in marks.items() if found and _is_dead(found, killed, owner)}
        if not found:
            break
        for process in found:
            _kill(process)
        killed |= found
        time.sleep(_PAUSE)
    return len(killed)


@cache
def _owner(process: int) -> str:
    return f"{_started(process) or 0}.{_numbering()}.{_boot()}.{process}"


@cache
def _boot() -> str:
    """Which start of the machine this is."""
    with suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return "unknown"


def _numbering() -> int:
    """Which numbering of processes this process is in: the machine's, or some container's."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def _is_dead(mark: str, killed: set[int], wanted: int | None) -> bool:
    """Whether the owner that a mark names is the one that is wanted, and known to be dead. Marks of earlier versions name only a
    process."""
    *fields, process = mark.split(".")[1:] or [""]
    if not _is_number(process) or wanted not in (None, int(process)):
        return False
    started = _started(int(process))
    if not fields:
        return started is None or int(process) in killed
    if len(fields) != 3 or not _is_number(fields[0]):
        return False
    if fields[2] != _boot():
        return True
    return fields[1] == str(_numbering()) and (started != int(fields[0]) or int(process) in killed)


def _is_number(text: str) -> bool:
    """Whether ``int`` reads it: a mark may be forged."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _started(process: int) -> int | None:
    """When a process began, in ticks since the machine started; None if it has ended (see proc(5) for ``stat``)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _processes() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*")} - {os.getpid()}


def _mark_of(process: int, wanted: bytes) -> str | None:
    """A process's mark, if it is of those that are wanted."""
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for variable in variables:
        if variable == wanted or variable.startswith(wanted + b"."):
            return variable.decode(errors="replace").partition("=")[2]
    return None


def _kill(process: int) -> None:
    with suppress(OSError):
        os.kill(process, signal.SIGKILL)
