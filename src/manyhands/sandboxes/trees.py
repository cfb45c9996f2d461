"""Folders that a model wrote: names, links and permissions in them are not to be trusted.

Everything here goes by open directories and never follows a symbolic link, so that nothing outside the folder can be reached, not even
when the tree changes meanwhile.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 64
_CHUNK = 1 << 20


class NotPlain(OSError):
    """The path goes through a symbolic link, or what is there is no regular file or folder."""


@contextmanager
def open_folder(root: Path, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder ``root/parts…``, reached without following links (``root`` itself is trusted).

    ``make``: missing folders are made. Raises NotPlain for a link on the way, other OSErrors as they come.
    """
    descriptor = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            deeper = _open_plain(part, _DIRECTORY, descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(folder: int, name: str) -> int:
    """A descriptor for reading the regular file ``name`` of an open folder. Raises NotPlain for anything else that is there."""
    descriptor = _open_plain(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain("not a regular file")
    return descriptor


def replace_file(folder: int, name: str, data: bytes, *, default_mode: int = 0o666) -> None:
    """Write a file of an open folder aside, then rename. An existing regular file's mode is kept; NotPlain if something else is there."""
    mode = _existing_mode(folder, name)
    aside = f".{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(aside, flags, default_mode, dir_fd=folder)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            _write_all(file.fileno(), data)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside, dir_fd=folder)
        raise


def read_at_most(descriptor: int, size: int) -> bytes:
    """Up to ``size`` bytes from an open file."""
    parts = []
    while size > 0 and (part := os.read(descriptor, min(size, _CHUNK))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def copy_data(source: int, target: int) -> None:
    """All bytes of one open file to another."""
    while data := os.read(source, _CHUNK):
        _write_all(target, data)


def remove_tree(path: Path) -> None:
    """Remove a folder (or file) with everything in it: links are not followed, read-only folders and any depth and names are no obstacle.
    A path that does not exist is fine. Raises OSError for what can't be removed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        clear_folder(path)
        os.rmdir(path)


def clear_folder(path: Path) -> None:
    """Remove everything in a folder, but not the folder."""
    _make_usable(os.fspath(path), None)
    descriptor = os.open(path, _DIRECTORY)
    try:
        while _clear(descriptor, descriptor, 0):
            pass
    finally:
        os.close(descriptor)


def _clear(folder: int, top: int, depth: int) -> bool:
    """Empty an open folder. Folders too deep to descend into are moved up to ``top``; True if that happened."""
    moved = False
    for name in os.listdir(folder):
        if _unlink(folder, name):
            continue
        _make_usable(name, folder)
        if depth >= _DEEPEST:
            os.rename(name, f".{secrets.token_hex(16)}", src_dir_fd=folder, dst_dir_fd=top)
            moved = True
            continue
        with suppress(FileNotFoundError):
            inner = os.open(name, _DIRECTORY, dir_fd=folder)
            try:
                moved = _clear(inner, top, depth + 1) or moved
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
    return moved


def _unlink(folder: int, name: str) -> bool:
    """Remove a name that is not a folder's; False if it is a folder's."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
        return False
    return True


def _make_usable(name: str, folder: int | None) -> None:
    """Give ourselves all rights on a folder, where we may. Links are left alone, as their target's mode would change."""
    with suppress(OSError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(name, stat.S_IMODE(mode) | stat.S_IRWXU, dir_fd=folder)


def _open_plain(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if _is_link(name, folder):
            raise NotPlain("a symbolic link") from error
        raise


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _existing_mode(folder: int, name: str) -> int | None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"a folder: {name}")
    if not stat.S_ISREG(mode):
        raise NotPlain("not a regular file")
    return stat.S_IMODE(mode)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
