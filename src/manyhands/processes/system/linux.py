"""What the Linux kernel knows of processes, by ``/proc`` (see proc(5)) and system calls that other systems don't have.

Everything of ``processes`` that takes Linux is here, and ``portable`` stands in for it on another system. Reading the whole process
table costs about 15 microseconds a process: that is not for the event loop's thread.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from manyhands.processes.system.portable import ProcessLine

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TAG = resource.RLIMIT_RTTIME
_CHUNK = 1 << 16
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_MOST_ELDERS = 4096


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


def process_ids() -> Iterator[int]:
    """The ids of all processes that can be seen."""
    with suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def newest_process() -> int | None:
    """The id that was given last, of a process or thread that may have ended; None where that can't be read. Costs some 10 microseconds."""
    with suppress(OSError, ValueError, IndexError):
        return int(read_all("/proc/loadavg").split()[4])
    return None


def is_process(pid: int) -> bool:
    """Whether an id is a living process's, and not that of one of its further threads."""
    with suppress(OSError):
        return f"\nTgid:\t{pid}\n".encode() in read_all(f"/proc/{pid}/status")
    return False


def environment_of(pid: int) -> list[bytes] | None:
    """A process's environment as it was at its start, ``NAME=value`` each; empty for one of somebody else's or of the kernel's, None for
    one that has ended."""
    try:
        return read_all(f"/proc/{pid}/environ").split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return [] if _is_kernel_thread(pid) else None
    except OSError:
        return []


def _is_kernel_thread(pid: int) -> bool:
    """Newer kernels refuse to open the environment of whatever has no memory: their threads, which are in no session, and what has
    ended."""
    with suppress(OSError):
        return os.getsid(pid) == 0
    return False


def children(pid: int) -> list[int]:
    """The ids of a process's children, whichever of its threads started them."""
    try:
        lists = [read_all(f"/proc/{pid}/task/{thread}/children") for thread in os.listdir(f"/proc/{pid}/task")]
        return [int(word) for found in lists for word in found.split()]
    except OSError:
        lines = map(process_line, process_ids())
        return [line.pid for line in lines if line is not None and line.parent == pid]


class Elders:
    """The processes that are there now, as long as they live: what is started later is none of them, even if it gets the id of one that
    has ended. Takes a descriptor for each, of at most a quarter of those that this process may have; to be closed. None of them are known
    where there are no such descriptors (pidfd_open(2)), or no more."""

    def __init__(self) -> None:
        self._ends: select.epoll | None = None
        self._ids: dict[int, int] = {}
        most = min(_MOST_ELDERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        with suppress(OSError, AttributeError):  # descriptors have run out, or Python was built without
            self._ends = select.epoll()
            for pid in islice(process_ids(), most):
                with suppress(ProcessLookupError):
                    self._add(self._ends, os.pidfd_open(pid), pid)

    def _add(self, ends: select.epoll, handle: int, pid: int) -> None:
        try:
            ends.register(handle, select.EPOLLIN)
        except OSError:  # its end would not be noticed
            os.close(handle)
            raise
        self._ids[handle] = pid

    def ids(self) -> set[int]:
        """Those that live."""
        while self._ends is not None and (ended := self._ends.poll(0)):
            for handle, _ in ended:
                self._ends.unregister(handle)
                os.close(handle)
                del self._ids[handle]
        return set(self._ids.values())

    def close(self) -> None:
        """Idempotent."""
        if self._ends is not None:
            self._ends.close()
            self._ends = None
        while self._ids:
            os.close(self._ids.popitem()[0])


def ticks_now() -> int:
    """The present as ``ProcessLine.started`` counts it."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


@cache
def boot() -> str:
    """Which start of the machine this is."""
    with suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return "unknown"


def numbering() -> int:
    """Which numbering of processes this process is in: the machine's, or some container's."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def tag_of(pid: int) -> int | None:
    """A process's tag; -1 if it has none, None if it is gone."""
    try:
        return resource.prlimit(pid, _TAG)[1]
    except ProcessLookupError:
        return None
    except (OSError, ValueError):
        return -1


@cache
def tag_setter() -> str | None:
    """util-linux's program that sets a limit and becomes another program; None where it can't."""
    program = shutil.which("prlimit")
    if program is None:
        return None
    trial = subprocess.run([program, "--rttime"], capture_output=True, timeout=20, check=False)
    return program if trial.returncode == 0 else None


def lock_holders(status: os.stat_result) -> list[int]:
    """The processes that hold a lock on a file."""
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError, IndexError):
        lines = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
        return [int(words[4]) for words in lines if words[1] == "FLOCK" and words[5] == file and int(words[4]) > 0]
    return []


def mounts() -> str:
    """The mounted file systems, as a ``mountinfo`` file lists them; empty where that can't be read."""
    with suppress(OSError):
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    return ""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def threads() -> int:
    """How many threads this process has, those that Python does not know of among them; 0 if that can't be read."""
    with suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    return 0


def name_process(name: str) -> None:
    """Have lists of processes show this one by a name, of which 15 bytes count."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode())


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def open_up(folder: str) -> None:
    """Give ourselves all rights on a folder; a link in its place is left alone. Raises OSError."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.chmod(path_of(descriptor), stat.S_IRWXU)
    finally:
        os.close(descriptor)


def path_of(descriptor: int) -> str:
    """A path to the file that is open, whatever its name is now."""
    return f"/proc/self/fd/{descriptor}"
