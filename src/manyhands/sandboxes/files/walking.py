"""A walk over a tree that a model wrote, while it may still be changing it; and how much of the disk a sandbox's folders take up.

Nothing is followed, and folders are entered by descriptors only, of which a walk holds a bounded number whatever the depth.

Of the disk is counted what is allocated, so that a sparse file counts for nothing, and each file once, however many names it has. Files
without a name that processes still hold open count too.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HELD = 32
"""Folders of one path that are held open; those above are found again by ``..``, and must be the ones that were left."""
_LINKS = frozenset({errno.ELOOP, errno.EMLINK})
"""What opening a folder fails with where a link is instead."""

Visit = Callable[[int, str, os.stat_result], object]
"""Called for everything in a tree, with the open folder that it is in, its name there, and what it is (not what it links to)."""


class Moved(Exception):
    """A folder was moved or removed while the walk was deep below it."""


@dataclass(slots=True)
class _Level:
    """A folder that the walk is in."""

    descriptor: int
    """-1 while it is not held."""
    mode: int | None = None
    """The one that it gets back when the walk leaves it, if its own gives us no rights."""
    identity: tuple[int, int] = (0, 0)
    left: list[str] = field(default_factory=list)
    """Folders in it that are still to come."""


def walk(tree: Path, visit: Visit) -> bool:
    """Visit everything below a folder, which is trusted itself. Returns whether all folders could be looked into. Ends with what ``visit``
    raises. Raises Moved, and OSError."""
    whole = True
    levels = [_Level(os.open(tree, _DIRECTORY & ~os.O_NOFOLLOW))]
    try:
        _enter(levels[-1], visit)
        while levels:
            level = levels[-1]
            if level.left:
                inner, allowed = _opened(level.left.pop(), level.descriptor, levels)
                whole = whole and allowed
                if inner is not None:
                    levels.append(inner)
                    _enter(inner, visit)
                    if len(levels) > _HELD and levels[-_HELD - 1].mode is None:
                        _let_go(levels[-_HELD - 1])
                continue
            if len(levels) > 1 and levels[-2].descriptor < 0:
                _find_again(levels[-2], level.descriptor)
            _let_go(levels.pop())
    finally:
        for level in reversed(levels):
            _let_go(level)
    return whole


def identity(status: os.stat_result) -> tuple[int, int]:
    """What tells a file from all others of this machine."""
    return status.st_dev, status.st_ino


def _enter(level: _Level, visit: Visit) -> None:
    """Visit what is in a folder."""
    level.identity = identity(os.fstat(level.descriptor))
    with os.scandir(level.descriptor) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                visit(level.descriptor, entry.name, status)
                if stat.S_ISDIR(status.st_mode):
                    level.left.append(entry.name)


def _opened(name: str, folder: int, levels: Sequence[_Level]) -> tuple[_Level | None, bool]:
    """A folder, None if there is no folder of this name any more; and False if it is closed to us for good."""
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=folder)
        if os.access(".", os.X_OK, dir_fd=descriptor):
            return _Level(descriptor), True
        os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None, True
    except PermissionError:
        pass
    except OSError as error:
        if error.errno in _LINKS:
            return None, True
        raise
    if sum(level.mode is not None for level in levels) >= _HELD:
        return None, False
    level = _unlocked(name, folder)
    return level, level is not None


def _unlocked(name: str, folder: int) -> _Level | None:
    """A folder of ours whose mode gives us no rights, with these rights for now."""
    with suppress(OSError):
        held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            mode = stat.S_IMODE(os.fstat(held).st_mode)
            itself = f"/proc/self/fd/{held}"
            os.chmod(itself, mode | stat.S_IRWXU)
            return _Level(os.open(itself, _DIRECTORY & ~os.O_NOFOLLOW), mode)
        finally:
            os.close(held)
    return None


def _find_again(level: _Level, below: int) -> None:
    """Open the folder above again. Raises Moved if it is not the one that it was."""
    try:
        descriptor = os.open("..", _DIRECTORY, dir_fd=below)
    except OSError as error:
        raise Moved from error
    if identity(os.fstat(descriptor)) != level.identity:
        os.close(descriptor)
        raise Moved
    level.descriptor = descriptor


def _let_go(level: _Level) -> None:
    if level.descriptor >= 0:
        if level.mode is not None and stat.S_IMODE(os.fstat(level.descriptor).st_mode) == level.mode | stat.S_IRWXU:
            os.fchmod(level.descriptor, level.mode)
        os.close(level.descriptor)
        level.descriptor = -1


# --- How much of the disk folders take up

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


def filled_size(tree: Path, seconds: float) -> int | None:
    """The bytes that the files in a folder take on the disk, or would take where holes are filled, as in a snapshot; None if they can't be
    counted in time."""
    total, deadline = 0, time.monotonic() + seconds

    def count(folder: int, name: str, status: os.stat_result) -> None:
        nonlocal total
        if time.monotonic() > deadline:
            raise _Enough
        total += max(status.st_blocks * _BLOCK, status.st_size if stat.S_ISREG(status.st_mode) else 0)

    try:
        return total if walk(tree, count) else None
    except (OSError, Moved, _Enough):
        return None


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
