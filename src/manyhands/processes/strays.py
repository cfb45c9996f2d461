"""Processes that somebody left behind, how they are found and ended; and the removal of what they left on disk.

**By a run's mark**, in the environment of every process that a run starts. A mark is ``RUN_ID.STARTED.NUMBERING.BOOT.PROCESS``: the
run, and the process on whose behalf it was started (its owner). A copy of a run folder has the original's run id, and process ids are
given again, so a marked process is a stray only if its owner is known to be dead: the machine was started anew since, or there is no such
process any more that was started at that time. What a sandbox starts carries the sandbox's own mark besides.

**By a tag**, whatever a process did to its environment, its session and its parents. A tag is a value of a resource limit that means
nothing to ordinary programs (``RLIMIT_RTTIME``, which bounds real-time scheduled ones; the values are thousands of years). Every process
inherits it from the one that started it, and nobody without special rights can raise it again: only a process that lowers this very limit
on purpose gets rid of it. It takes util-linux.

**By its session**, with all that descends from it.

On another system than Linux no process is found by any of these (see ``system``).
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from manyhands.core.errors import StorageError
from manyhands.io.files import asides
from manyhands.processes import system
from manyhands.processes.system import Elders, ProcessLine, open_up, process_line, ticks_now

MARK = "MANYHANDS_RUN"
"""The environment variable that marks a run's processes."""
SANDBOX_VARIABLE = "MANYHANDS_SANDBOX"
"""The environment variable that marks the processes of one sandbox, or of one command."""
_ROUNDS = 100
"""How often what was found is looked for again: a process may fork while it is looked for."""
_LOOKS_IN_VAIN = 5
"""After how many looks in a row that found nothing the search ends, although each missed processes that ended just then."""
_GLANCES_IN_VAIN = 30
"""After how many looks in a row at the newest process alone, some 20 microseconds each, a chase ends."""
_MOST_CHASED = 100
"""How many processes a chase kills at most: what forks in all directions is ended sooner by looks at all."""
_PAUSE = 0.01
_MAX_DIGITS = 20
_MAX_TAG = 9 * 10**18
_FAMILY = 1_000_000_000
"""How many tags there are in a family."""

Belongs = Callable[[int], bool | None]
"""Whether a process, by its id, is among those that are looked for; None if it ended before that could be seen."""
_CLOCKS_DIFFER = 5.0
"""Seconds by which the start of a process and the time of a file may seem to be in the wrong order."""


def process_mark(run_id: str, process: int | None = None) -> str:
    """The mark for what this process (or another living one, by its id) starts on behalf of a run."""
    return f"{run_id}.{_owner(process or os.getpid())}"


@cache
def _owner(pid: int) -> str:
    return f"{started(pid) or 0}.{system.numbering()}.{system.boot()}.{pid}"


def kill_strays(run_id: str, owner: int | None = None) -> int:
    """Kill every process that is marked as one of this run (and this owner, by its id), and whose owner is dead; never this process.
    Returns how many."""
    wanted = f"{MARK}={run_id}".encode()
    killed: set[int] = set()

    def is_stray(pid: int) -> bool | None:
        variables = system.environment_of(pid)
        if variables is None:
            return None
        mark = _mark_among(variables, wanted)
        if mark is None or not _is_dead(mark, killed, owner):
            return False
        killed.add(pid)  # it may be the owner of further ones
        return True

    return _kill_all(is_stray)


def _mark_among(variables: Iterable[bytes], wanted: bytes) -> str | None:
    """A process's mark, if it is of those that are wanted."""
    for variable in variables:
        if variable == wanted or variable.startswith(wanted + b"."):
            return variable.decode(errors="replace").partition("=")[2]
    return None


def _is_dead(mark: str, killed: set[int], wanted: int | None) -> bool:
    """Whether the owner that a mark names is the one that is wanted, and known to be dead. Marks of earlier versions name only a
    process."""
    *fields, pid = mark.split(".")[1:] or [""]
    if not _is_number(pid) or wanted not in (None, int(pid)):
        return False
    since = started(int(pid))
    if not fields:
        return since is None or int(pid) in killed
    if len(fields) != 3 or not _is_number(fields[0]):
        return False
    if fields[2] != system.boot():
        return True
    return fields[1] == str(system.numbering()) and (since != int(fields[0]) or int(pid) in killed)


def _is_number(text: str) -> bool:
    """Whether ``int`` reads it: a mark may be forged."""
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def kill_marked(variable: str, value: str) -> int:
    """Kill every process on this machine whose environment holds ``variable=value``, but for this one, until none is left.
    Returns how many there were. Reads the whole process table: not for the event loop's thread."""
    return _kill_all(_has_mark(variable, value))


def _has_mark(variable: str, value: str) -> Belongs:
    mark = f"{variable}={value}".encode()

    def has_mark(pid: int) -> bool | None:
        variables = system.environment_of(pid)
        return None if variables is None else mark in variables

    return has_mark


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
        return _kill_all(_has_tag(first, first + _FAMILY))


def _prefix() -> int | None:
    """First digits that nobody else uses. Where we are tagged ourselves they must be lower, as nobody can raise the limit."""
    if system.tag_setter() is None:
        return None
    ours = system.tag_of(os.getpid())
    highest = (_MAX_TAG if ours is None or not 0 <= ours <= _MAX_TAG else ours) // _FAMILY
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


def kill_left(wanted: Mapping[str, int | None], elders: Callable[[], Set[int]] = frozenset) -> int:
    """Kill every process on this machine with one of these values of ``SANDBOX_VARIABLE`` in its environment, or the tag beside it, until
    none is left; ``elders``, by their ids, are none of them. Returns how many there were. Reads the whole process table: not for the event
    loop's thread."""
    return _kill_all(_has_any(wanted), elders)


def _has_tag(first: int, end: int) -> Belongs:
    def has_tag(pid: int) -> bool | None:
        tag = system.tag_of(pid)
        if tag is None or not first <= tag < end:
            return None if tag is None else False
        return _lives(pid)

    return has_tag


def _lives(pid: int) -> bool | None:
    """True, or None for what has ended: it may have made another process before."""
    return None if started(pid) is None else True


class _SharedElders:
    """The elders of all that this process looks for at the same time: who comes later needs none of its own, as what was there before the
    first came was there before it, too. Each must be as many times left as entered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._elders: Elders | None = None
        self._users = 0

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._elders is None:
                self._elders = Elders()

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._elders is not None:
                self._elders.close()
                self._elders = None

    def ids(self) -> Set[int]:
        """Those that live; none if nobody has entered."""
        with self._lock:
            return frozenset() if self._elders is None else self._elders.ids()


_ELDERS: dict[int, _SharedElders] = {}
"""By process: one that is forked has none of its parent's open files."""


class Leftovers:
    """Kills what ended commands left behind (``kill_left``). A search takes milliseconds, so commands that end during one share the
    next. What had been there before it was made is none of it. For one event loop; to be closed."""

    def __init__(self) -> None:
        self._elders = _ELDERS.setdefault(os.getpid(), _SharedElders())
        self._elders.enter()
        self._closed = False
        self._wanted: dict[str, int | None] = {}
        self._next: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def kill(self, mark: str, tag: int | None) -> None:
        """Kill all that has this mark (a value of ``SANDBOX_VARIABLE``) or this tag, until none is left."""
        self._wanted[mark] = tag
        if self._next is None:
            self._next = asyncio.ensure_future(self._search())
        await asyncio.shield(self._next)

    async def _search(self) -> None:
        async with self._turn:
            wanted, self._wanted, self._next = self._wanted, {}, None
            await asyncio.to_thread(kill_left, wanted, frozenset if self._closed else self._elders.ids)

    async def close(self) -> None:
        """Let go of what it knows, once no search is under way. Idempotent."""
        async with self._turn:
            if not self._closed:
                self._closed = True
                self._elders.leave()


def _has_any(wanted: Mapping[str, int | None]) -> Belongs:
    marks = {f"{SANDBOX_VARIABLE}={mark}".encode() for mark in wanted}
    tags = set(wanted.values()) - {None}

    def has_any(pid: int) -> bool | None:
        tag = system.tag_of(pid)
        if tag in tags:
            return _lives(pid)
        variables = None if tag is None else system.environment_of(pid)
        return None if variables is None else not marks.isdisjoint(variables)

    return has_any


def tagged_or_marked(tag: int | None, variable: str, value: str) -> set[int]:
    """The ids of the living processes that have this tag, or ``variable=value`` in their environment, but for this one; also of any that
    ended before that was seen: each of them may have left another one. Reads the whole process table."""
    tests = [_has_mark(variable, value), *([] if tag is None else [_has_tag(tag, tag + 1)])]
    return {pid for pid in _newest_first() if any(test(pid) is not False for test in tests)}


async def end_session(session: int, since: int, *, grace: float = 0.3) -> None:
    """SIGTERM to the members of a session that started at ``since`` or later, then SIGKILL to those that remain after ``grace``
    seconds, until none is left (processes that can't be killed are given up after a second)."""
    members = await asyncio.to_thread(session_members, session, since)
    send(members, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while members and time.monotonic() < deadline:
        await asyncio.sleep(_PAUSE)
        members = {pid for pid in members if started(pid) is not None}
    for _ in range(_ROUNDS):
        members = await asyncio.to_thread(session_members, session, since)
        if not members:
            return
        send(oldest_first(members), signal.SIGKILL)
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


def _kill_all(belongs: Belongs, elders: Callable[[], Set[int]] = frozenset) -> int:
    """Kill every process that belongs, until a look at all of them finds none: it may have made others meanwhile. ``elders`` are not looked
    at. Returns how many there were.

    What the first look finds is killed together (``oldest_first``). What makes another process and ends at once may be gone each time when
    it is looked at. So from then on it is chased before each look, the newest come first, each is killed as soon as it is found, and a look
    that missed one is not the last, unless that had ended by the look before (it made none since).
    """
    killed: set[int] = set()
    missed: set[int] = set()
    found_none = 0
    for look in range(_ROUNDS):
        found = _chase(belongs, elders()) if look else []
        missed_before, missed = missed, set()
        for pid in _newest_first(elders):
            verdict = belongs(pid)
            if verdict:
                found.append(pid)
                if look:
                    send([pid], signal.SIGKILL)
            elif verdict is None:
                missed.add(pid)
        if not look:
            send(oldest_first(found), signal.SIGKILL)
        killed.update(found)
        found_none = 0 if found else found_none + 1
        if not (found or missed - missed_before) or found_none == _LOOKS_IN_VAIN:
            break
        if found:
            time.sleep(_PAUSE)
    return len(killed)


def _chase(belongs: Belongs, elders: Set[int]) -> list[int]:
    """Kill the process that was made last, if it belongs, and what was made last then, as long as there are such. This takes a hundredth
    of the time of a look at all, and does not depend on the order of the ids, which begin anew. Returns what was killed."""
    killed: list[int] = []
    in_vain = 0
    while in_vain < _GLANCES_IN_VAIN and len(killed) < _MOST_CHASED:
        if (newest := system.newest_process()) is None:
            break
        passed_over = newest in killed[-1:] or newest in elders or newest == os.getpid()
        # A thread may be one of a process that is passed over.
        if not passed_over and belongs(newest) and system.is_process(newest):
            send([newest], signal.SIGKILL)
            killed.append(newest)
            in_vain = 0
        else:
            in_vain += 1
    return killed


def oldest_first(pids: Iterable[int]) -> list[int]:
    """In the order in which to kill processes: a shell must not see the end of its command, report it and go on. Ids say little of that
    order, as they begin anew."""
    return sorted(pids, key=lambda pid: (started(pid) or 0, pid))


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _newest_first(elders: Callable[[], Set[int]] = frozenset) -> list[int]:
    """The ids of all processes but this one and ``elders``: what was made last has the highest, as long as they do not begin anew."""
    found = set(system.process_ids())
    return sorted(found - elders() - {os.getpid()}, reverse=True)  # an elder that lives now had its id then, too


def started(pid: int) -> int | None:
    """When a living process began (``ProcessLine.started``); None if it has ended."""
    line = process_line(pid)
    return None if line is None or line.state in "ZX" else line.started


def remove_tree(folder: Path) -> None:
    """Remove a folder, also one with read-only folders in it; symbolic links are removed, not followed. What can't be removed stays, and
    what is not there is fine: no mode is changed for its sake."""

    def unlock(function: Callable[..., Any], path: str, failure: Any) -> None:
        if isinstance(failure[1], FileNotFoundError):
            return
        try:
            open_up(os.path.dirname(path))
            if not os.path.islink(path) and os.path.isdir(path):
                open_up(path)
                shutil.rmtree(path, ignore_errors=True)
            else:
                function(path)
        except OSError:
            return

    try:
        shutil.rmtree(folder, onerror=unlock)
    except RecursionError:  # a program that made folders within folders without end; rm follows them to any depth
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["rm", "-rf", "--", str(folder)], stdin=subprocess.DEVNULL, capture_output=True, timeout=600)


def remove_asides(folder: Path, name: str | None = None) -> None:
    """Remove what processes that are gone were writing aside in a folder (in place of a file of that name) when they were killed."""
    for path, writer in asides(folder, name):
        if not _may_be_writing(path, writer):
            path.unlink(missing_ok=True)


def make_way(path: Path) -> None:
    """Make the folder of a file that is about to be written, and remove what killed processes were writing aside in its place. Raises
    StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_asides(path.parent, path.name)
    except OSError as error:
        raise StorageError(f"{path.parent}: the folder can't be written ({error.strerror or error})") from error


def _may_be_writing(path: Path, pid: int) -> bool:
    """Whether a process lives, and may have begun the file: its number may have been another one's before."""
    since = started(pid)
    if since is None:
        return False
    try:
        written = path.stat().st_mtime
    except OSError:
        return False
    age = (ticks_now() - since) / os.sysconf("SC_CLK_TCK") if since else 0.0
    return not since or time.time() - age <= written + _CLOCKS_DIFFER
