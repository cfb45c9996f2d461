"""Folders that a model wrote: names, links and permissions in them are not to be trusted.

Everything here goes by open directories and never follows a symbolic link, so that nothing outside the folder can be reached, not even
when the tree changes meanwhile. Paths are taken one component at a time: openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS would come
to the same in one call, but Python has none, kernels before 5.6 neither, and trees deeper than a path may be long need the steps anyway.
Pipes, sockets and devices are never opened for reading. What root makes in such a folder gets the folder's owner, as those who work in it
may have no rights on root's files; set-user-id and set-group-id bits are never passed on.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_PLAIN_BITS = 0o1777
DEEPEST_READ = 200
"""Folders within folders that ``Tree.walk`` goes down."""
MAX_STEPS = 2_000_000
"""Entries that ``Tree.walk`` looks at, and folders that it opens on its ways, together."""
_MAX_LINKS = 40


class NotPlain(OSError):
    """The path goes through a symbolic link, or what is there is no regular file or folder."""


class TooMuch(OSError):
    """The tree has more folders within folders, or more entries, than are looked at."""


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of a tree."""

    path: str
    """Relative to the tree, with slashes."""
    folder: int
    """The open folder that it is in, open until the next entry or anything else is read of the tree."""
    name: str
    status: os.stat_result
    """Its own, also of a link."""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)


class Tree:
    """A tree for reading. ``root``: its folder, which must not be a link itself; the folders above it are trusted.

    A context manager. Raises OSError. Not for several threads at once.
    """

    def __init__(self, root: Path) -> None:
        self._root = _open_plain(os.fspath(root), _DIRECTORY, None)
        self._parts: tuple[str, ...] = ()
        self._folder = os.dup(self._root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)
        os.close(self._root)

    def walk(self, enter: Callable[[Found], bool] = lambda found: True) -> Iterator[Found]:
        """All entries: of each folder by name, before those of the folders in it. ``enter``: whether to look into a folder.
        What vanishes meanwhile is left out. Raises TooMuch, and OSError for a folder that can't be read."""
        left = MAX_STEPS
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            parts = waiting.pop()
            if len(parts) > DEEPEST_READ:
                raise TooMuch(f"there are more than {DEEPEST_READ} folders within each other")
            folder = self.folder(parts)
            found = _entries(folder, "".join(f"{part}/" for part in parts), left - len(parts))
            left -= len(parts) + len(found)
            yield from found
            inner = [each.name for each in found if each.is_folder and enter(each)]
            waiting += [(*parts, name) for name in reversed(inner)]

    def open(self, path: str) -> int:
        """A descriptor for reading the regular file of that path. Raises NotPlain for anything else that is there."""
        *above, name = path.split("/")
        return open_regular(self.folder(above), name)

    def read(self, path: str, limit: int) -> bytes:
        """Up to ``limit`` bytes from the beginning of a regular file."""
        descriptor = self.open(path)
        try:
            return read_at_most(descriptor, limit)
        finally:
            os.close(descriptor)

    def link(self, path: str) -> bytes:
        """What a symbolic link says."""
        *above, name = path.split("/")
        return os.readlink(os.fsencode(name), dir_fd=self.folder(above))

    def status(self, path: str) -> os.stat_result:
        """Of the entry itself, also of a link; "" is the tree."""
        if not path:
            return os.fstat(self._root)
        *above, name = path.split("/")
        return os.stat(name, dir_fd=self.folder(above), follow_symlinks=False)

    def folder(self, parts: Sequence[str]) -> int:
        """An open folder of the tree, open until the next one is requested."""
        wanted = tuple(filter(None, parts))
        if wanted != self._parts:
            folder = _descend(os.dup(self._root), wanted)
            os.close(self._folder)
            self._folder, self._parts = folder, wanted
        return self._folder

    def resolved(self, path: str, shown: str) -> str:
        """A path without links and dots in it, as links within the tree lead. ``shown``: the tree's own path, where links with absolute
        paths may lead. Raises NotPlain for what leads out of it. What is there may be another thing by the time it is opened, but the
        open does not follow it."""
        waiting, found, links = path.split("/")[::-1], list[str](), 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                if not found:
                    raise NotPlain("outside")
                found.pop()
            elif part not in ("", "."):
                said = self._said([*found, part])
                if said is None:
                    found.append(part)
                    continue
                links += 1
                if links > _MAX_LINKS:
                    raise NotPlain("too many links")
                if said.startswith("/"):
                    if not f"{said}/".startswith(f"{shown}/"):
                        raise NotPlain("outside")
                    said, found = said[len(shown) :], []
                waiting += said.split("/")[::-1]
        return "/".join(found)

    def _said(self, parts: Sequence[str]) -> str | None:
        """What a link says; None if there is no link."""
        folder = self.folder(parts[:-1])
        return os.readlink(parts[-1], dir_fd=folder) if _is_link(parts[-1], folder) else None


def _entries(folder: int, above: str, limit: int) -> list[Found]:
    found: list[Found] = []
    with os.scandir(folder) as entries:
        for each in entries:
            if len(found) >= limit:
                raise TooMuch("there are too many files and folders")
            with suppress(FileNotFoundError):
                found.append(Found(f"{above}{each.name}", folder, each.name, each.stat(follow_symlinks=False)))
    return sorted(found, key=lambda each: each.name)


def _descend(descriptor: int, parts: Sequence[str]) -> int:
    """Take an open folder to one below it. Closes it, whatever happens."""
    for part in parts:
        try:
            deeper = _open_plain(part, _DIRECTORY, descriptor)
        finally:
            os.close(descriptor)
        descriptor = deeper
    return descriptor


@contextmanager
def open_folder(root: Path, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder ``root/parts…``, reached without following links: not at ``root`` either, but the folders above that are
    trusted.

    ``make``: missing folders are made. Raises NotPlain for a link on the way, other OSErrors as they come.
    """
    descriptor = _open_plain(os.fspath(root), _DIRECTORY, None)
    try:
        for part in parts:
            deeper = make_folder(descriptor, part) if make else _open_plain(part, _DIRECTORY, descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(folder: int, name: str, mode: int = 0o777) -> int:
    """A descriptor of the folder ``name`` of an open folder, which is made if it is not there. Raises NotPlain for a link."""
    made = True
    try:
        os.mkdir(name, mode & _PLAIN_BITS, dir_fd=folder)
    except FileExistsError:
        made = False
    descriptor = _open_plain(name, _DIRECTORY, folder)
    try:
        if made:
            hand_over(descriptor, folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def hand_over(descriptor: int, folder: int) -> None:
    """Give what root has just made in an open folder to the folder's owner. It must be called before the mode is set. Whoever else makes
    something owns it anyway."""
    if os.geteuid() == 0:
        owner = os.fstat(folder)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def make_link(folder: int, name: str, said: str | bytes) -> None:
    """Make a symbolic link in an open folder."""
    os.symlink(said, name, dir_fd=folder)
    _hand_over_name(folder, name)


def make_pipe(folder: int, name: str, mode: int) -> None:
    """Make a named pipe in an open folder."""
    os.mkfifo(name, 0o600, dir_fd=folder)
    _hand_over_name(folder, name)
    with open_name(name, folder) as descriptor:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.chmod(f"/proc/self/fd/{descriptor}", plain_mode(mode))


def set_mode(descriptor: int, mode: int) -> None:
    """Set the mode of something open, but for its set-id bits."""
    os.fchmod(descriptor, plain_mode(mode))


def plain_mode(mode: int) -> int:
    """The permissions of a mode that are passed on: no set-user-id, no set-group-id."""
    return stat.S_IMODE(mode) & _PLAIN_BITS


def _hand_over_name(folder: int, name: str) -> None:
    if os.geteuid() == 0:
        owner = os.fstat(folder)
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)


def open_regular(folder: int, name: str) -> int:
    """A descriptor for reading the regular file ``name`` of an open folder. Raises NotPlain for anything else that is there."""
    if not stat.S_ISREG(
        os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    ):  # a device must not even be opened
        raise NotPlain("not a regular file")
    descriptor = _open_plain(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain("not a regular file")
    return descriptor


def replace_file(folder: int, name: str, data: bytes | BinaryIO) -> None:
    """Write a file of an open folder aside, then rename. ``data``: or what gives it when it is read to its end. An existing regular file's
    mode is kept; NotPlain if something else is there."""
    mode = _existing_mode(folder, name)
    aside = f".{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(aside, flags, 0o666, dir_fd=folder)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            for part in [data] if isinstance(data, bytes) else iter(partial(data.read, _CHUNK), b""):
                _write_all(file.fileno(), part)
            hand_over(file.fileno(), folder)
            if mode is not None:
                set_mode(file.fileno(), mode)
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


def copy_file(source: int, folder: int, name: str) -> None:
    """Copy an open file into an open folder, where nothing has that name, with its times and its mode."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        status = os.fstat(source)
        copy_data(source, target, status.st_size)
        hand_over(target, folder)
        set_mode(target, status.st_mode)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(target)


def copy_tree(tree: Tree, target: int, skip: Callable[[Found], bool]) -> None:
    """Copy what is in a tree into an open folder that is empty: without sockets, pipes and devices, links as links, files that are linked
    with each other each for itself. ``skip``: what to leave out, folders with all that is in them. Raises OSError."""
    modes: list[tuple[list[str], int]] = []
    for found in tree.walk(lambda each: not skip(each)):
        if skip(found):
            continue
        above, _, name = found.path.rpartition("/")
        folder = _descend(os.dup(target), above.split("/") if above else ())
        try:
            if found.is_folder:
                os.close(make_folder(folder, name, 0o700))
                modes.append((found.path.split("/"), found.status.st_mode | stat.S_IRWXU))
            elif found.is_link:
                make_link(folder, name, os.readlink(os.fsencode(found.name), dir_fd=found.folder))
            elif found.is_file:
                _copy_entry(found, folder, name)
        finally:
            os.close(folder)
    for parts, mode in reversed(modes):
        folder = _descend(os.dup(target), parts)
        try:
            set_mode(folder, mode)
        finally:
            os.close(folder)


def _copy_entry(found: Found, folder: int, name: str) -> None:
    source = open_regular(found.folder, found.name)
    try:
        copy_file(source, folder, name)
    finally:
        os.close(source)


def copy_data(source: int, target: int, size: int) -> None:
    """``size`` bytes of one open file to another, or fewer if there are no more: somebody may be writing to it without end."""
    while size > 0 and (data := os.read(source, min(size, _CHUNK))):
        _write_all(target, data)
        size -= len(data)


@contextmanager
def open_name(name: str, folder: int | None) -> Iterator[int]:
    """A descriptor that says what has a name, whatever that is: nothing is opened by it, nor followed. Its mode can be changed by its entry
    in /proc, which leads to it even if it has another name by then."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_plain(name: str, flags: int, folder: int | None) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if _is_link(name, folder):
            raise NotPlain("a symbolic link") from error
        raise


def _is_link(name: str, folder: int | None) -> bool:
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
