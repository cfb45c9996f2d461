"""What every system knows of its processes; it stands in for ``linux`` where there is none, under the same names.

Whether a process lives is known, and no more: what a crash or a sandbox left behind is then found by its process group alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """One line of the process table."""

    pid: int
    state: str
    """A letter as in proc(5); ``Z`` and ``X``: it has ended."""
    parent: int
    session: int
    started: int
    """Clock ticks from the start of the machine to that of the process; 0 where that is not known."""


def process_line(pid: int) -> ProcessLine | None:
    """A process's line; None if there is no such process."""
    try:
        return ProcessLine(pid, "R", 0, os.getsid(pid), 0)
    except PermissionError:
        return ProcessLine(pid, "R", 0, 0, 0)
    except OSError:
        return None


def process_ids() -> Iterator[int]:
    """The ids of all processes that can be seen."""
    return iter(())


def newest_process() -> int | None:
    """The id that was given last, of a process or thread that may have ended; None where that can't be read."""
    return None


def is_process(pid: int) -> bool:
    """Whether an id is a living process's, and not that of one of its further threads."""
    return process_line(pid) is not None


def environment_of(pid: int) -> list[bytes] | None:
    """A process's environment as it was at its start, ``NAME=value`` each; empty for one of somebody else's, None for one that is gone."""
    return []


def children(pid: int) -> list[int]:
    """The ids of a process's children, whichever of its threads started them."""
    return []


def ticks_now() -> int:
    """The present as ``ProcessLine.started`` counts it."""
    return 0


class Elders:
    """The processes that are there now, as long as they live; none where that can't be known."""

    def ids(self) -> set[int]:
        """Those that live."""
        return set()

    def close(self) -> None:
        """Idempotent."""


def boot() -> str:
    """Which start of the machine this is."""
    return "unknown"


def numbering() -> int:
    """Which numbering of processes this process is in: the machine's, or some container's."""
    return 0


def tag_of(pid: int) -> int | None:
    """A process's tag; -1 if it has none, None if it is gone."""
    return -1


def tag_setter() -> str | None:
    """The program that sets a tag and becomes another program; None where there are no tags."""
    return None


def lock_holders(status: os.stat_result) -> list[int]:
    """The processes that hold a lock on a file."""
    return []


def mounts() -> str:
    """The mounted file systems, as a ``mountinfo`` file lists them (see proc(5))."""
    return ""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""


def threads() -> int:
    """How many threads this process has; 0 if that can't be read."""
    return 0


def name_process(name: str) -> None:
    """Have lists of processes show this one by a name, of which 15 bytes count."""


def processors() -> int:
    """How many processors this process may use."""
    return os.cpu_count() or 1


def open_up(folder: str) -> None:
    """Give ourselves all rights on a folder; a link in its place is left alone. Raises OSError."""
    os.chmod(folder, stat.S_IRWXU, follow_symlinks=False)


def path_of(descriptor: int) -> str:
    """A path to the file that is open, whatever its name is now."""
    return f"/dev/fd/{descriptor}"
