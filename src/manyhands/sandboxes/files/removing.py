"""Taking away what a model wrote: whole folders, whatever their depth, names and modes, and set-id bits in trees that stay.

Everything goes by open directories and never follows a symbolic link, so that nothing outside the folder can be reached.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from manyhands.sandboxes.files.trees import open_name, plain_mode
from manyhands.sandboxes.files.walking import Moved, identity, walk

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 64
"""Folders within folders that are gone down; deeper ones are moved up first."""


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


SET_IDS = stat.S_ISUID | stat.S_ISGID


def drop_set_ids(tree: Path, *, seconds: float = 30.0) -> bool:
    """Take the set-id bits from all files and folders of a tree in which nothing runs any more, so that nobody gets somebody else's rights
    by what a model wrote. Files that have a further name outside of the tree are left alone: they are not the tree's. Returns whether all
    of it was seen within ``seconds``. A tree that is gone is fine. Raises OSError."""
    deadline = time.monotonic() + seconds
    names: Counter[tuple[int, int]] = Counter()

    def visit(folder: int, name: str, status: os.stat_result) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError
        if status.st_mode & SET_IDS and (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            names[identity(status)] += 1
            if stat.S_ISDIR(status.st_mode) or names[identity(status)] == status.st_nlink:
                _drop_set_ids(folder, name)

    with suppress(FileNotFoundError, TimeoutError, Moved):
        return walk(tree, visit)
    return not tree.exists()


def _drop_set_ids(folder: int, name: str) -> None:
    with suppress(FileNotFoundError), open_name(name, folder) as descriptor:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISLNK(mode):
            os.chmod(f"/proc/self/fd/{descriptor}", plain_mode(mode))


def _clear(folder: int, top: int, depth: int) -> bool:
    """Empty an open folder. Folders too deep to descend into are moved up to ``top``; True if that happened."""
    moved = False
    for name in os.listdir(folder):
        if _unlink(folder, name):
            continue
        _make_usable(name, folder)
        if depth >= _MAX_DEPTH:
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
    with suppress(OSError), open_name(name, folder) as descriptor:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | stat.S_IRWXU)
