"""How much of the disk a sandbox's folders take up.

Counted is what is allocated, so that a sparse file counts for nothing, and each file once, however many names it has. Files without a name
that processes still hold open count too.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.sandboxes.files.walking import Moved, identity, walk

_TRIES = 3
_BLOCK = 512
_LOOK_AT_CLOCK = 256


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What folders take up."""

    size: int = 0
    """Bytes allocated."""
    entries: int = 0
    """Files and folders."""
    whole: bool = True
    """False if they could not be counted to the end, so that there may be more."""
    sent: bool = False
    """Whether descriptors are on their way in sockets, so that there may be files which nothing else holds."""


class _Enough(Exception):
    """The time or the bounds of a count are over."""


@dataclass(slots=True)
class _Count:
    limit: DiskUse
    deadline: float
    size: int = 0
    entries: int = 0
    linked: set[tuple[int, int]] = field(default_factory=set)
    sent: bool = False

    def visit(self, folder: int, name: str, status: os.stat_result) -> None:
        if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode):
            self.take(status)
        else:
            self.take_once(status)

    def take_once(self, status: os.stat_result) -> None:
        """Count a file unless it has been met under another name."""
        if identity(status) not in self.linked:
            self.linked.add(identity(status))
            self.take(status)

    def take(self, status: os.stat_result) -> None:
        self.size += status.st_blocks * _BLOCK
        self.entries += 1
        over = self.size > self.limit.size or self.entries > self.limit.entries
        if over or (self.entries % _LOOK_AT_CLOCK == 0 and time.monotonic() > self.deadline):
            raise _Enough


def disk_use(trees: Iterable[Path], pids: Iterable[int] = (), *, limit: DiskUse, seconds: float) -> DiskUse:
    """What these folders hold, and what these processes hold open of files without a name on the same file systems.

    Counting ends beyond ``limit``, or after ``seconds``. A folder that is gone counts for nothing. Reads folders: not for the event loop's
    thread. Raises OSError for what is no doing of whoever writes there, such as a lack of descriptors."""
    deadline = time.monotonic() + seconds
    count, whole = _Count(limit, deadline), False
    for _ in range(_TRIES):
        count = _Count(limit, deadline)
        try:
            present = [(tree, status.st_dev) for tree in trees if (status := _folder(tree)) is not None]
            closed = [tree for tree, _ in present if not walk(tree, count.visit)]
            devices = {device for _, device in present}
            for path, status in _held(pids):
                if stat.S_ISSOCK(status.st_mode):
                    count.sent = count.sent or _has_sent(path)
                elif stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_dev in devices:
                    count.take_once(status)
            whole = not closed
            break
        except (Moved, FileNotFoundError):
            continue
        except _Enough:
            return DiskUse(count.size, count.entries, whole=False)
    return DiskUse(count.size, count.entries, whole, count.sent)


def _folder(path: Path) -> os.stat_result | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        status = os.stat(path)
        return status if stat.S_ISDIR(status.st_mode) else None
    return None


def _held(pids: Iterable[int]) -> Iterator[tuple[str, os.stat_result]]:
    """What processes hold open, or, where we may look, map: the link in ``/proc`` to each, and what it is."""
    for pid in pids:
        for folder in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files"):
            with suppress(OSError):
                for name in os.listdir(folder):
                    with suppress(OSError):
                        yield f"{folder}/{name}", os.stat(f"{folder}/{name}")


def _has_sent(path: str) -> bool:
    """Whether descriptors wait in a socket to be received (``scm_fds`` in proc(5)). Linux before 5.9 does not tell."""
    with suppress(OSError):
        for line in Path(path.replace("/fd/", "/fdinfo/")).read_bytes().splitlines():
            if line.startswith(b"scm_fds:"):
                return line.split()[1] != b"0"
    return False
