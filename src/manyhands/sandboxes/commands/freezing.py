"""Stopping all processes of a sandbox for a while, so that its files keep still while they are looked at.

SIGSTOP needs nothing of the machine, where the kernel's freezer needs control groups that are ours. Whether everything has stopped is read
from ``/proc`` on the host, where nobody inside can lie about it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from manyhands.processes.children import Guard, to_the_end
from manyhands.processes.strays import send
from manyhands.processes.system import process_line

_SECONDS = 2.0
_PAUSE = 0.002
_STOPPED = "TtZX"
_SWITCHES = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
_NS_GET_PARENT = 0xB702  # ioctl_ns(2)


def stop_all(running: Callable[[], set[int]]) -> set[int] | None:
    """Stop every process that ``running`` finds; those that had not been stopped before, or None if they could not all be stopped in two
    seconds: then some of them may be stopped. ``running`` also gives the ids of processes that ended while it looked: one look differs
    from the next by them, so that no chain of processes stays unseen by ending in time.

    Not for the event loop's thread.
    """
    stopped: set[int] = set()
    before: dict[int, dict[str, int] | None] = {}
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        found = {pid: _standing(pid) for pid in running()}
        left = {pid for pid, standing in found.items() if standing is None}
        # What was born while the first clean look was taken is found by the second one, when nobody could bear any more. Processes
        # that stop and wake each other in turn each look stopped, but are not where they were.
        if not left and found == before:
            return stopped
        before = found
        send(left, signal.SIGSTOP)
        stopped |= left
        if left:
            time.sleep(_PAUSE)
    return None


class Frozen:
    """What stands still. ``entries``: our own children, which bring commands into a sandbox. They stop when their command stops; were we
    killed then, they would stay, so that a guard ends them."""

    def __init__(self, entries: list[int]) -> None:
        self._entries = entries
        self._guard = Guard(groups=entries)
        self._stopped: set[int] = set()

    async def stop(self, running: Callable[[], set[int]]) -> bool:
        """Stop them and what ``running`` finds; whether all of it stands still."""
        send(self._entries, signal.SIGSTOP)
        stopped = await to_the_end(asyncio.to_thread(stop_all, running))
        self._stopped = stopped or set()
        return stopped is not None

    async def thaw(self) -> None:
        """Let it go on."""
        send(self._stopped, signal.SIGCONT)
        send(self._entries, signal.SIGCONT)  # after their commands, or else they find these stopped and stop again
        await self._guard.dismiss()


def namespace_of(pid: int) -> int:
    """What tells a process's process-id namespace from others."""
    return os.stat(f"/proc/{pid}/ns/pid").st_ino


def namespace_members(namespace: int) -> set[int]:
    """The ids of the processes in a process-id namespace, and in those within it, as the host counts; also of any that ended before it was
    seen where they were: each of them may have left another one. Reads the whole process table."""
    known: dict[int, bool] = {
        namespace: True,
        namespace_of(os.getpid()): False,
    }  # never our own, whatever was requested
    newest_first = sorted(map(int, filter(str.isdigit, os.listdir("/proc"))), reverse=True)
    return {pid for pid in newest_first if _is_within(pid, known)}


def _is_within(pid: int, known: dict[int, bool]) -> bool:
    """Whether a process is within, or is gone. ``known``: of namespaces, whether they are in the one that is looked for."""
    try:
        own = namespace_of(pid)
        if own not in known:
            known[own] = any(known.get(each, False) for each in _above(pid))
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # none of ours
        return False
    return known[own]


def parent_namespace(namespace: int) -> int:
    """A descriptor of the namespace that another one is in. Raises OSError where there is none, or none that we may see."""
    above: int = fcntl.ioctl(namespace, _NS_GET_PARENT)
    os.set_inheritable(above, False)
    return above


def _above(pid: int) -> Iterator[int]:
    """The namespaces that a process's namespace is in, as far as we may see them."""
    namespace = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            with suppress(OSError):
                above = parent_namespace(namespace)
                os.close(namespace)
                namespace = above
                yield os.fstat(namespace).st_ino
                continue
            return
    finally:
        os.close(namespace)


def _standing(pid: int) -> dict[str, int] | None:
    """How often each thread of a process has run, if all of them have stopped or ended; None if one runs."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    times: dict[str, int] = {}
    for thread in threads:
        with suppress(OSError):
            status = _status(pid, thread)
            if status["State"][:1] not in _STOPPED:
                return None
            times[thread] = sum(int(status[name]) for name in _SWITCHES)
    return times


def _status(pid: int, thread: str) -> dict[str, str]:
    text = Path(f"/proc/{pid}/task/{thread}/status").read_text(encoding="utf-8", errors="replace")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def session_of(pid: int) -> int:
    """A process's session; 0 if it is gone."""
    line = process_line(pid)
    return 0 if line is None else line.session
