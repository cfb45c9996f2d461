"""Exact copies of the upper folders of overlays: all that a container has beyond its image.

Everything is kept as it is: deletions and replaced folders (the whiteouts and opaque marks of Linux's overlayfs), owners, modes with set-id
bits, times, extended attributes, links, pipes and sockets. A copy is root's alone, as it may hold set-user-id programs. Folders are entered
by descriptors only and no link is followed, whatever changes in the source meanwhile.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import NotPlain, TooMuch, copy_data, open_regular

MAX_ENTRIES = 20_000
_MAX_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_OVERLAY = "trusted.overlay."


class TooLarge(OSError):
    """The files have more bytes than may be copied."""


def copy_upper(source: Path, copy: Path, *, max_bytes: int) -> None:
    """Copy an upper folder to ``copy``, which is made, or may be another copy: then its files are written over, as new ones cost a
    multiple where many were just deleted (ext4 looks for a number that none of them had). ``max_bytes``: of all files, holes included.
    Raises OSError: NotPlain for a device, TooMuch for more than MAX_ENTRIES entries or for folders too deep in each other, TooLarge; then
    a part of the copy may be there."""
    copy.mkdir(mode=0o700, exist_ok=True)
    _Copying(max_bytes, over=True).copy(source, copy / "upper")


def fill_upper(copy: Path, upper: Path) -> None:
    """Make what ``copy_upper`` copied the content of an upper folder that no overlay uses yet. Empty folders may be in there. Raises
    OSError."""
    _Copying(None, over=False).copy(copy / "upper", upper)


class _Copying:
    """One copy. Of the overlay's own attributes the topmost folder gets none: they name the layers of another container. ``over``: what
    is there is another copy; else there may be empty folders alone."""

    def __init__(self, max_bytes: int | None, *, over: bool) -> None:
        self._over = over
        self._entries = 0
        self._bytes_left = max_bytes
        self._first_names: dict[tuple[int, int], str] = {}
        """Paths, in the copy, of files with several names."""

    def copy(self, source: Path, target: Path) -> None:
        target.mkdir(mode=0o700, exist_ok=True)
        original, made = os.open(source, _FOLDER), -1
        try:
            made = os.open(target, _FOLDER)
            self._copy_content(original, made, os.fspath(target), 0)
            _take_over(original, made, os.fstat(original), skip=_OF_OVERLAY)
        finally:
            os.close(original)
            if made >= 0:
                os.close(made)

    def _copy_content(self, original: int, made: int, path: str, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise TooMuch(f"more than {_MAX_DEPTH} folders within each other")
        taken = set(os.listdir(made))
        with os.scandir(original) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > MAX_ENTRIES:
                    raise TooMuch(f"more than {MAX_ENTRIES:,} entries")
                name, status = entry.name, entry.stat(follow_symlinks=False)
                is_there = name in taken
                taken.discard(name)
                if is_there and not self._stays(made, name, status):
                    self._remove(made, name, path)
                    is_there = False
                if stat.S_ISDIR(status.st_mode):
                    if not is_there:
                        os.mkdir(name, 0o700, dir_fd=made)
                    self._copy_folder(original, made, name, f"{path}/{name}", depth)
                else:
                    self._copy_name(original, made, name, f"{path}/{name}", status, over=is_there)
        for name in taken if self._over else ():
            self._remove(made, name, path)

    def _stays(self, made: int, name: str, status: os.stat_result) -> bool:
        """Whether what has a name becomes the copy: a folder of a folder, and a file with one name of such a file."""
        there = os.stat(name, dir_fd=made, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            return stat.S_ISDIR(there.st_mode)
        plain = stat.S_ISREG(status.st_mode) and stat.S_ISREG(there.st_mode)
        return self._over and plain and there.st_nlink == status.st_nlink == 1

    def _remove(self, made: int, name: str, path: str) -> None:
        if self._over:
            remove_tree(Path(path, name))
        else:
            os.rmdir(name, dir_fd=made)

    def _copy_folder(self, original: int, made: int, name: str, path: str, depth: int) -> None:
        inner, new = os.open(name, _FOLDER, dir_fd=original), -1
        try:
            new = os.open(name, _FOLDER, dir_fd=made)
            self._copy_content(inner, new, path, depth + 1)
            _take_over(inner, new, os.fstat(inner))
        finally:
            os.close(inner)
            if new >= 0:
                os.close(new)

    def _copy_name(self, original: int, made: int, name: str, path: str, status: os.stat_result, *, over: bool) -> None:
        """Anything but a folder. ``over``: to a file that is there."""
        if status.st_nlink > 1:
            first = self._first_names.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                os.link(first, name, dst_dir_fd=made, follow_symlinks=False)
                return
        if stat.S_ISREG(status.st_mode):
            self._copy_file(original, made, name, over=over)
            return
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=original), name, dir_fd=made)
        elif stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode) or _is_whiteout(status):
            os.mknod(name, stat.S_IFMT(status.st_mode) | 0o600, 0, dir_fd=made)
        else:
            raise NotPlain(f"{path} is a device")
        os.chown(name, status.st_uid, status.st_gid, dir_fd=made, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=made)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=made, follow_symlinks=False)

    def _copy_file(self, original: int, made: int, name: str, *, over: bool) -> None:
        source, target = open_regular(original, name), -1
        try:
            status = os.fstat(source)
            if self._bytes_left is not None:
                self._bytes_left -= status.st_size
                if self._bytes_left < 0:
                    raise TooLarge("more bytes than may be copied")
            target = os.open(name, _OLD_FILE if over else _NEW_FILE, 0o600, dir_fd=made)
            copy_data(source, target, status.st_size)
            if over and os.fstat(target).st_size != (end := os.lseek(target, 0, os.SEEK_CUR)):
                os.ftruncate(target, end)
            _take_over(source, target, status)
        finally:
            os.close(source)
            if target >= 0:
                os.close(target)


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _take_over(source: int, target: int, status: os.stat_result, *, skip: str | None = None) -> None:
    """Give an open file what another one has beside its content. ``skip``: the beginning of attributes that are left out. The owner comes
    first, as a new owner takes set-id bits and capabilities away."""
    os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    names = [name for name in os.listxattr(source) if skip is None or not name.startswith(skip)]
    for name in os.listxattr(target):
        if name not in names:
            os.removexattr(target, name)
    for name in names:
        with suppress(FileNotFoundError):
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
