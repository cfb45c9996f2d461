"""Processes that a crashed run may have left behind: every process of a run carries a mark, by which it can be found and killed.

A mark is ``RUN_ID.STARTED.NUMBERING.BOOT.PROCESS``: the run, and the process on whose behalf it was started (its owner). A copy of a run
folder has the original's run id, and process ids are given again, so a marked process is a stray only if its owner is known to be
dead: the machine was started anew since, or there is no such process any more that was started at that time.

Finding and ending processes by what the kernel says about them (``/proc``, see proc(5)).

Every process that a sandbox starts carries two marks in its environment: the run's, by which the engine finds what a crash
left behind (``manyhands.processes.strays``), and the sandbox's own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
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


SANDBOX_VARIABLE = "MANYHANDS_SANDBOX"
_ROUNDS = 20
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One line of the process table. ``started`` counts clock ticks since the machine started."""

    pid: int
    state: str
    parent: int
    session: int
    started: int


def read_all(path: str) -> bytes:
    """A file of the kernel's, in a third of the time that file objects take. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = found = os.read(descriptor, _CHUNK)
        while found:
            data += (found := os.read(descriptor, _CHUNK))
        return data
    finally:
        os.close(descriptor)


def process_line(pid: int) -> ProcessLine | None:
    """What ``/proc/<pid>/stat`` says; None if there is no such process."""
    try:
        text = read_all(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessLine(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def process_table() -> dict[int, ProcessLine]:
    """Every process that can be seen, by id. Costs about 15 microseconds a process: not for the event loop's thread."""
    lines = (process_line(pid) for pid in _pids())
    return {line.pid: line for line in lines if line is not None}


def ticks_now() -> int:
    """The present as ``ProcessLine.started`` counts it."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def children(pid: int) -> list[int]:
    """The ids of a process's children, whichever of its threads started them."""
    try:
        lists = [read_all(f"/proc/{pid}/task/{thread}/children") for thread in os.listdir(f"/proc/{pid}/task")]
        return [int(word) for found in lists for word in found.split()]
    except OSError:
        return [line.pid for line in process_table().values() if line.parent == pid]


def session_members(session: int, since: int) -> set[int]:
    """The living processes of a session and their descendants, as far as they started at ``since`` (ticks) or later."""
    table = process_table()
    wanted = {pid for pid, line in table.items() if line.session == session}
    for pid in table:
        if _has_ancestor(pid, wanted, table):
            wanted.add(pid)
    return {pid for pid in wanted if table[pid].started >= since and table[pid].state not in "ZX"}


async def end_session(session: int, since: int, *, grace: float = 0.3) -> None:
    """SIGTERM to the members of a session that started at ``since`` or later, then SIGKILL to those that remain after ``grace``
    seconds, until none is left (processes that can't be killed are given up after a second)."""
    members = await asyncio.to_thread(session_members, session, since)
    send(members, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while members and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
        members = {pid for pid in members if _alive(pid)}
    for _ in range(_ROUNDS):
        members = await asyncio.to_thread(session_members, session, since)
        if not members:
            return
        send(members, signal.SIGKILL)
        await asyncio.sleep(0.01)


def kill_marked(variable: str, value: str) -> int:
    """Kill every process on this machine whose environment holds ``variable=value``, but for this one, until none is left.
    Returns how many there were. Reads the whole process table: not for the event loop's thread."""
    return kill_found(lambda: marked_processes(variable, value))


def kill_found(find: Callable[[], set[int]]) -> int:
    """Kill what ``find`` finds, until it finds nothing: a process may have made others meanwhile. Returns how many there were."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = find()
        if not found:
            break
        send(found, signal.SIGKILL)
        killed |= found
        time.sleep(0.01)
    return len(killed)


def marked_processes(variable: str, value: str) -> set[int]:
    """The living processes on this machine whose environment holds ``variable=value``, but for this one. Reads the whole process table."""
    mark = f"{variable}={value}".encode()
    return {pid for pid in _pids() if pid != os.getpid() and mark in _environment(pid) and _alive(pid)}


def _environment(pid: int) -> list[bytes]:
    try:
        return read_all(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return []


def _pids() -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def _ancestors(pid: int, table: dict[int, ProcessLine]) -> Iterator[int]:
    seen = {pid}
    while (line := table.get(pid)) is not None and line.parent not in seen:
        pid = line.parent
        seen.add(pid)
        yield pid


def _has_ancestor(pid: int, wanted: set[int], table: dict[int, ProcessLine]) -> bool:
    return bool(wanted) and any(ancestor in wanted for ancestor in _ancestors(pid, table))


def _alive(pid: int) -> bool:
    line = process_line(pid)
    return line is not None and line.state not in "ZX"


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
