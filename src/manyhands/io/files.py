"""Files done safely: written aside and renamed, private, without secrets; and what to do about a full disk."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import sqlite3
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, TextIO

from manyhands.core.digests import digest
from manyhands.core.errors import StorageError
from manyhands.core.redaction import KNOWN

MAX_FOLDER_NAME = 80
"""Bytes of what an agent is, as part of a folder's name."""
BLOCK = 1 << 18
"""Bytes that are written to such a file at once."""
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x20000
"""FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of most 64-bit machines (elsewhere no such calls), and FS_TOPDIR_FL of linux/fs.h."""
_ASIDE = re.compile(r"\.(.+?)(?:\.\d+)?\.(\d+)\.new")
_MAX_STEM = 200
"""Bytes of a file's name in that of what is being written aside: with what is added it must not get longer than names may be."""
_serial = count()
_MASKED_AT_ONCE, _OVERLAP = 1 << 19, 1 << 12
SECONDS = 10.0
"""Maximum seconds that a run waits for space on a disk."""
WATCHED = "workspaces/*/disk_use"
"""Files that are there while a run's sandboxes are watched (``sandboxes.files.disk_watch``)."""
MAX_READ = 32 << 20
"""Bytes of a file that is read whole, although nobody knows who wrote it."""
_INSIDE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def folder_name(text: str, max_bytes: int = MAX_FOLDER_NAME) -> str:
    """A text as part of a folder's name: separators become hyphens, as in the original's names. Of one with more than so many bytes the
    beginning stays, and a mark that distinguishes it from others."""
    safe = "".join(mark if mark.isprintable() and mark not in '*?[]<>|"\\' else "-" for mark in text.replace("/", "-"))
    if len(safe.encode()) <= max_bytes:
        return safe
    mark = digest("folder", text).hex()[:8]
    return f"{safe.encode()[: max_bytes - 9].decode(errors='ignore')}-{mark}"


@contextmanager
def written_aside(path: Path) -> Iterator[TextIO]:
    """A text file to write, in UTF-8; it takes the place of ``path`` only when all of it is on disk. Its folder is made.

    Raises StorageError if that fails, and then ``path`` is as it was.
    """
    with bytes_written_aside(path) as binary:
        handle = io.TextIOWrapper(binary, encoding="utf-8", newline="\n")
        try:
            yield handle
            handle.flush()
        finally:
            handle.detach()


@contextmanager
def bytes_written_aside(path: Path) -> Iterator[BinaryIO]:
    """A file of bytes to write; it takes the place of ``path`` only when all of it is on disk. Its folder is made.

    Raises StorageError if that fails, and then ``path`` is as it was.
    """
    aside = path.with_name(f".{_short(path.name)}.{next(_serial)}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb", buffering=BLOCK) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: can't be written ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def _short(name: str) -> str:
    """A file's name, or so much of it that something can be added to it."""
    data = os.fsencode(name)
    return name if len(data) <= _MAX_STEM else data[:_MAX_STEM].decode(errors="ignore")


def open_inside(folder: Path, path: Path) -> BinaryIO:
    """A file of a folder that anybody may have made, to be read. ``path``: below the folder.

    Links behind the folder are not followed, since they may lead anywhere, and nothing but a plain file is read: pipes keep readers waiting
    for good. Raises OSError with what is wrong.
    """
    *above, name = path.relative_to(folder).parts
    with ExitStack() as opened:
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, inside)
        for part in above:
            inside = _opened_inside(inside, part, os.O_DIRECTORY)
            opened.callback(os.close, inside)
        descriptor = _opened_inside(inside, name)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise


def _opened_inside(folder: int, name: str, flags: int = 0) -> int:
    if name == os.pardir:
        raise OSError(errno.EINVAL, "not in the folder")
    try:
        return os.open(name, _INSIDE | flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP or (flags and error.errno == errno.ENOTDIR):
            raise OSError(
                error.errno, "a link, which is not followed, or no folder" if flags else "a link, which is not followed"
            ) from None
        raise


def read_inside(folder: Path, path: Path, max_bytes: int = MAX_READ) -> bytes:
    """The bytes of such a file. Raises OSError with what is wrong, also for a larger one."""
    with open_inside(folder, path) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes >> 20} MiB")
        return file.read(max_bytes)


def make_private(folder: Path, *, apart: bool = False) -> None:
    """Make a folder for its owner alone; one that is there already gets to be so. ``apart``: see ``keep_apart``. Raises OSError."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
        if apart:
            keep_apart(folder)
    keep_private(folder)


def keep_apart(folder: Path) -> None:
    """Have ext4 know that the folders in this one have nothing to do with each other (chattr(1), ``T``), so that it spreads them over the
    disk. Where folders come and go it would otherwise pass over all that were just removed whenever it makes a file. Other file systems
    don't know this."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            (flags, rest) = struct.unpack("II", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8)))
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("II", flags | _TOP_FOLDER, rest))
    finally:
        os.close(descriptor)


def keep_private(folder: Path) -> None:
    """Take a folder that is there already away from everybody but its owner. Raises OSError."""
    mode = folder.lstat().st_mode
    if stat.S_ISDIR(mode) and stat.S_IMODE(mode) != stat.S_IRWXU:
        folder.chmod(stat.S_IRWXU)


def asides(folder: Path, name: str | None = None) -> Iterator[tuple[Path, int]]:
    """The files in a folder that were being written aside (in place of a file of that name), each with the id of its process."""
    for path in folder.iterdir():
        writer = _ASIDE.fullmatch(path.name)
        if writer is not None and (name is None or writer[1] == _short(name)) and not path.is_dir():
            yield path, int(writer[2])


def mask_secrets(path: Path) -> None:
    """Turn secrets into asterisks in a file that something of a person's own has written, best effort. Neither a link nor a file with
    further names is touched, since these may lead anywhere."""
    if not KNOWN:
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                for offset in range(0, status.st_size, _MASKED_AT_ONCE):
                    data = os.pread(descriptor, _MASKED_AT_ONCE + _OVERLAP, offset)
                    if (masked := KNOWN.masked(data)) != data:
                        os.pwrite(descriptor, masked, offset)
        finally:
            os.close(descriptor)


class Patience:
    """Whether to try a write of a run's own files again on a full disk. If a sandbox has just filled it, whoever watches that sandbox is
    about to end it and to remove its files. ``folder``: the run's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._since: float | None = None

    def worth_waiting(self, error: Exception) -> bool:
        """Whether a write that failed may succeed soon. To be called at each failure, and ``over`` to be called at each success."""
        if not is_full(error) or next(self._folder.glob(WATCHED), None) is None:
            return False
        if self._since is None:
            self._since = time.monotonic()
        return time.monotonic() - self._since < SECONDS

    def over(self) -> None:
        self._since = None


def is_full(error: BaseException | None) -> bool:
    """Whether an error says that no space is left, or no quota."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
