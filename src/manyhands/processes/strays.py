"""Processes that somebody left behind: how they are found, and how they are ended.

**By a run's mark**, in the environment of every process that a run starts. A mark is ``RUN_ID.STARTED.NUMBERING.BOOT.PROCESS``: the
run, and the process on whose behalf it was started (its owner). A copy of a run folder has the original's run id, and process ids are
given again, so a marked process is a stray only if its owner is known to be dead: the machine was started anew since, or there is no such
process any more that was started at that time. What a sandbox starts carries the sandbox's own mark besides.

**By a tag**, whatever a process did to its environment, its session and its parents. A tag is a value of a resource limit that means
nothing to ordinary programs (``RLIMIT_RTTIME``, which bounds real-time scheduled ones; the values are thousands of years). Every process
inherits it from the one that started it, and nobody without special rights can raise it again: only a process that lowers this very limit
on purpose gets rid of it. It takes util-linux.

**By its session**, with all that descends from it.

On another system than Linux no process is found by any of these.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from manyhands.io.files import asides
from manyhands.processes.portable import ProcessLine

try:
    from manyhands.processes import linux as system
except (ImportError, AttributeError):  # another system, or a Python that was built without what this takes
    from manyhands.processes import portable as system  # type: ignore[no-redef]

MARK = "MANYHANDS_RUN"
"""The environment variable that marks a run's processes."""
SANDBOX_VARIABLE = "MANYHANDS_SANDBOX"
"""The environment variable that marks the processes of one sandbox, or of one command."""
_ROUNDS = 20
"""How often what was found is looked for again: a process may fork while it is looked for."""
_PAUSE = 0.01
_MAX_DIGITS = 20
_CLOCKS_DIFFER = 5.0
"""Seconds by which the start of a process and the time of a file may seem to be in the wrong order."""
_HIGHEST_TAG = 9 * 10**18
_FAMILY = 1_000_000_000
"""How many tags there are in a family."""

children = system.children
process_line = system.process_line
ticks_now = system.ticks_now
lock_holders = system.lock_holders
mounts = system.mounts
die_with_parent = system.die_with_parent
processors = system.processors


def process_mark(run_id: str) -> str:
    """The mark for what this process starts on behalf of a run."""
    return f"{run_id}.{_owner(os.getpid())}"


@cache
def _owner(pid: int) -> str:
    return f"{_started(pid) or 0}.{system.numbering()}.{system.boot()}.{pid}"


def kill_strays(run_id: str, owner: int | None = None) -> int:
    """Kill every process that is marked as one of this run (and this owner, by its id), and whose owner is dead; never this process.
    Returns how many."""
    wanted = f"{MARK}={run_id}".encode()
    killed: set[int] = set()

    def strays() -> set[int]:
        marks = {pid: _mark_of(pid, wanted) for pid in _others()}
        found = {pid for pid, mark in marks.items() if mark and _is_dead(mark, killed, owner)}
        killed.update(found)  # they may be the owners of further ones
        return found

    return kill_found(strays)


def _mark_of(pid: int, wanted: bytes) -> str | None:
    """A process's mark, if it is of those that are wanted."""
    for variable in system.environment_of(pid):
        if variable == wanted or variable.startswith(wanted + b"."):
            return variable.decode(errors="replace").partition("=")[2]
    return None


def _is_dead(mark: str, killed: set[int], wanted: int | None) -> bool:
    """Whether the owner that a mark names is the one that is wanted, and known to be dead. Marks of earlier versions name only a
    process."""
    *fields, pid = mark.split(".")[1:] or [""]
    if not _is_number(pid) or wanted not in (None, int(pid)):
        return False
    started = _started(int(pid))
    if not fields:
        return started is None or int(pid) in killed
    if len(fields) != 3 or not _is_number(fields[0]):
        return False
    if fields[2] != system.boot():
        return True
    return fields[1] == str(system.numbering()) and (started != int(fields[0]) or int(pid) in killed)


def _is_number(text: str) -> bool:
    """Whether ``int`` reads it: a mark may be forged."""
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def kill_marked(variable: str, value: str) -> int:
    """Kill every process on this machine whose environment holds ``variable=value``, but for this one, until none is left.
    Returns how many there were. Reads the whole process table: not for the event loop's thread."""
    return kill_found(lambda: marked_processes(variable, value))


def marked_processes(variable: str, value: str) -> set[int]:
    """The living processes on this machine whose environment holds ``variable=value``, but for this one. Reads the whole process table."""
    mark = f"{variable}={value}".encode()
    return {pid for pid in _others() if mark in system.environment_of(pid) and _started(pid) is not None}


class Tags:
    """A family of tags: the same first digits, and a number for each."""

    def __init__(self) -> None:
        self._next = _FAMILY
        self._prefix = _prefix()

    @property
    def text(self) -> str:
        """The digits that all tags of the family begin with; empty where there are none."""
        return "" if self._prefix is None else str(self._prefix)

    def new(self) -> int | None:
        """A further tag; None where there are none."""
        if self._prefix is None or self._next == 0:
            return None
        self._next -= 1
        return self._prefix * _FAMILY + self._next

    def kill_all(self) -> int:
        """Kill every process with a tag of the family, until none is left. Returns how many there were. Looks at all processes: not
        for the event loop's thread."""
        if self._prefix is None:
            return 0
        first = self._prefix * _FAMILY
        return kill_found(lambda: _tagged(first, first + _FAMILY))


def _prefix() -> int | None:
    """First digits that nobody else uses. Where we are tagged ourselves they must be lower, as nobody can raise the limit."""
    if system.tag_setter() is None:
        return None
    ours = system.tag_of(os.getpid())
    highest = (_HIGHEST_TAG if ours < 0 or ours > _HIGHEST_TAG else ours) // _FAMILY
    lowest = highest // 2
    return None if lowest < 10**6 else lowest + secrets.randbelow(highest - lowest)


def tagged_words(
    words: Sequence[str], tag: int | None, environment: Mapping[str, str], directory: str | Path
) -> list[str]:
    """The command that runs ``words`` with a tag, so that not even the first of its processes is without. Raises the OSError that starting
    them would raise if there is no such program. ``directory``: where it starts."""
    if tag is None:
        return list(words)
    program = words[0]
    found = program if "/" in program else shutil.which(program, path=environment.get("PATH", os.defpath))
    path = os.path.join(directory, found or program)
    if found is None or not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    return [system.tag_setter() or "", f"--rttime={tag}:{tag}", "--", *words]


def kill_tagged(tag: int | None) -> int:
    """Kill every process of this machine with this tag, until none is left. Returns how many there were. Looks at all processes: not for
    the event loop's thread."""
    return 0 if tag is None else kill_found(lambda: tagged(tag))


def tagged(tag: int | None) -> set[int]:
    """The ids of the living processes with this tag."""
    return set() if tag is None else _tagged(tag, tag + 1)


def _tagged(first: int, end: int) -> set[int]:
    return {pid for pid in _others() if first <= system.tag_of(pid) < end and _started(pid) is not None}


async def end_session(session: int, since: int, *, grace: float = 0.3) -> None:
    """SIGTERM to the members of a session that started at ``since`` or later, then SIGKILL to those that remain after ``grace``
    seconds, until none is left (processes that can't be killed are given up after a second)."""
    members = await asyncio.to_thread(session_members, session, since)
    send(members, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while members and time.monotonic() < deadline:
        await asyncio.sleep(_PAUSE)
        members = {pid for pid in members if _started(pid) is not None}
    for _ in range(_ROUNDS):
        members = await asyncio.to_thread(session_members, session, since)
        if not members:
            return
        send(members, signal.SIGKILL)
        await asyncio.sleep(_PAUSE)


def session_members(session: int, since: int) -> set[int]:
    """The living processes of a session and their descendants, as far as they started at ``since`` (ticks) or later."""
    table = process_table()
    wanted = {pid for pid, line in table.items() if line.session == session}
    for pid in table:
        if _has_ancestor(pid, wanted, table):
            wanted.add(pid)
    return {pid for pid in wanted if table[pid].started >= since and table[pid].state not in "ZX"}


def process_table() -> dict[int, ProcessLine]:
    """Every process that can be seen, by id. Costs about 15 microseconds a process: not for the event loop's thread."""
    lines = (process_line(pid) for pid in system.process_ids())
    return {line.pid: line for line in lines if line is not None}


def _has_ancestor(pid: int, wanted: set[int], table: dict[int, ProcessLine]) -> bool:
    return bool(wanted) and any(ancestor in wanted for ancestor in _ancestors(pid, table))


def _ancestors(pid: int, table: dict[int, ProcessLine]) -> Iterator[int]:
    seen = {pid}
    while (line := table.get(pid)) is not None and line.parent not in seen:
        pid = line.parent
        seen.add(pid)
        yield pid


def kill_found(find: Callable[[], set[int]]) -> int:
    """Kill what ``find`` finds, until it finds nothing: a process may have made others meanwhile. Returns how many there were."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = find()
        if not found:
            break
        send(found, signal.SIGKILL)
        killed |= found
        time.sleep(_PAUSE)
    return len(killed)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def remove_asides(folder: Path, name: str | None = None) -> None:
    """Remove what processes that are gone were writing aside in a folder (in place of a file of that name) when they were killed."""
    for path, writer in asides(folder, name):
        if not _may_be_writing(path, writer):
            path.unlink(missing_ok=True)


def _may_be_writing(path: Path, pid: int) -> bool:
    """Whether a process lives, and may have begun the file: its number may have been another one's before."""
    started = _started(pid)
    if started is None:
        return False
    try:
        written = path.stat().st_mtime
    except OSError:
        return False
    age = (ticks_now() - started) / os.sysconf("SC_CLK_TCK") if started else 0.0
    return not started or time.time() - age <= written + _CLOCKS_DIFFER


def _others() -> set[int]:
    return set(system.process_ids()) - {os.getpid()}


def _started(pid: int) -> int | None:
    """When a living process began (``ProcessLine.started``); None if it has ended."""
    line = process_line(pid)
    return None if line is None or line.state in "ZX" else line.started
