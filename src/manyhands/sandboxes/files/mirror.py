"""A copy of a tree that is kept up to date, changed entries only.

Links are kept as links, named pipes as such, and files that are linked with each other stay so, also across trees. Sockets and devices are
left out, and so are set-user-id and set-group-id bits. What root restores gets the owner of the tree that it is in.

Of the upper folder of an overlay (Documentation/filesystems/overlayfs.rst) are also kept what hides entries of lower folders (character
devices 0:0, and the attribute of folders that hide all), the owners of entries, and the owner and the mode of the tree itself.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.io.files import is_full
from manyhands.sandboxes.files.removing import clear_folder, remove_tree
from manyhands.sandboxes.files.trees import (
    NotPlain,
    copy_data,
    copy_file,
    make_folder,
    make_link,
    make_pipe,
    open_folder,
    open_regular,
    plain_mode,
    set_mode,
)

_MAX_DEPTH = 64
_RACY = 100_000_000
"""Nanoseconds. A file changed so shortly before it was looked at may change again without its times telling (kernel time stamps are
coarse), so its times are not believed at the next look."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Signature = tuple[int, ...]


class TooLarge(Exception):
    """The world is beyond the bounds of a mirror, or can't be read."""


@dataclass(slots=True)
class Budget:
    """What is left of the bounds of one mirror."""

    entries: int
    size: int

    def take(self, status: os.stat_result, *, again: bool = False) -> None:
        """Count an entry; ``again``: it is a further name of a file that was counted. Raises TooLarge."""
        self.entries -= 1
        if stat.S_ISREG(status.st_mode) and not again:
            self.size -= status.st_size
        if self.entries < 0 or self.size < 0:
            raise TooLarge


Identity = tuple[int, int]
"""What files that are linked with each other have in common."""
Entry = tuple[Path, str]
"""A tree, and a path in it."""


@dataclass(slots=True)
class Links:
    """What one look over all trees knows of files with several names."""

    copies: dict[Identity, Path] = field(default_factory=dict)
    """By the file, its first copy."""
    taken: dict[Identity, Identity] = field(default_factory=dict)
    """By the copy, the file that it is of, as a copy may still be linked with others that its file is no longer linked with."""


@dataclass(slots=True)
class _Look:
    """One look over a tree: what it found, and what may be spent on it."""

    budget: Budget
    before_change: Callable[[], None]
    links: Links
    at: int = field(default_factory=time.time_ns)
    seen: dict[str, Signature | None] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {""})
    modes: dict[str, int] = field(default_factory=dict)
    """Of folders whose owner lacks some right: the mirror's folder can't have the same mode, as it must stay writable."""


_OPAQUE = "user.overlay.opaque"
"""Of a folder in the upper folder of an overlay that was mounted with ``userxattr``: it hides what lower ones have there."""
_TREE = "."
"""In modes: the tree itself."""
_USUAL_MODE = 0o755


class Mirror:
    """A copy of a tree that is kept up to date. Links are kept as links; sockets and devices are left out. ``overlay``: whether the tree is
    the upper folder of one, which is not mounted when it is restored."""

    def __init__(self, source: Path, copy: Path, *, overlay: bool = False) -> None:
        self.source = source
        self.copy = copy
        self._overlay = overlay
        self._owners = overlay and os.geteuid() == 0
        self._aside = copy.parent / ".partial"
        self._known: dict[str, Signature | None] | None = None

    def update(self, budget: Budget, before_change: Callable[[], None], links: Links) -> dict[str, int]:
        """Copy what changed; returns odd modes of folders, by path. ``before_change`` is called before each change to
        the copy; ``links``: of all trees that are looked over together. Raises TooLarge."""
        if self._known is None:
            self._known = dict.fromkeys(_paths_below(self.copy))

        def change() -> None:
            before_change()
            if not self._known:  # most trees stay empty, and have no copy
                self.copy.mkdir(parents=True, exist_ok=True)

        look = _Look(budget, change, links)
        try:
            root = os.open(self.source, _DIRECTORY)
            try:
                if self._overlay:
                    self._mirror_itself(root, look)
                self._folder(root, "", look, 0)
            finally:
                os.close(root)
        except OSError as error:
            if is_full(error):  # of the host's disk: without a mirror, a crash would cost more than the step
                raise
            raise TooLarge from error
        for gone in self._known.keys() - look.seen.keys():
            if gone.rpartition("/")[0] in look.folders:  # else it went with its folder, where a link may be now
                change()
                remove_tree(self.copy / gone)
        self._known = look.seen
        return look.modes

    def forget(self) -> None:
        """Remove the copy."""
        remove_tree(self.copy)
        self._known = None

    def restore(self, modes: Mapping[str, int], linked: dict[Identity, Entry]) -> None:
        """Make the tree what the copy is. ``linked``: where copies with several names were restored to, of all trees."""
        clear_folder(self.source)
        for path in sorted(_paths_below(self.copy)):
            above, name = _parted(path)
            with open_folder(self.source, above) as folder:
                if self._overlay and _is_whiteout(self.copy.joinpath(path).lstat()):
                    os.mknod(name, stat.S_IFCHR, 0, dir_fd=folder)
                    continue
                _restore_entry(self.copy / path, folder, name, (self.source, path), linked)
                if self._overlay:
                    self._restore_for_overlay(self.copy / path, folder, name)
        if self._owners and self.copy.exists():
            itself = self.copy.stat()
            os.chown(self.source, itself.st_uid, itself.st_gid)
        for path in sorted(modes, reverse=True):
            with open_folder(self.source, path.split("/")) as folder:
                set_mode(folder, modes[path])

    def _folder(self, folder: int, path: str, look: _Look, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise TooLarge
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # something in the background removed it meanwhile
                    status = entry.stat(follow_symlinks=False)
                    look.budget.take(status, again=_several(status) and _identity(status) in look.links.copies)
                    self._entry(folder, entry.name, f"{path}{entry.name}", status, look, depth)

    def _entry(self, folder: int, name: str, path: str, status: os.stat_result, look: _Look, depth: int) -> None:
        if stat.S_ISDIR(status.st_mode):
            self._mirror_folder(path, status, look)
            if self._owners:
                self._mirror_owner(self.copy / path, status, look)
            inner = os.open(name, _DIRECTORY, dir_fd=folder)
            try:
                if self._overlay:
                    self._mirror_opacity(inner, path, look)
                self._folder(inner, f"{path}/", look, depth + 1)
            finally:
                os.close(inner)
        elif not _several(status):
            self._mirror_leaf(folder, name, path, status, look)
        elif (first := look.links.copies.get(_identity(status))) is not None:
            look.seen[path] = None
            self._mirror_name(first, path, look)
        else:
            self._mirror_first(folder, name, path, status, look)

    def _mirror_leaf(self, folder: int, name: str, path: str, status: os.stat_result, look: _Look) -> None:
        if stat.S_ISLNK(status.st_mode):
            look.seen[path] = None
            self._mirror_link(path, os.readlink(name, dir_fd=folder), status, look)
        elif stat.S_ISFIFO(status.st_mode):
            look.seen[path] = None
            self._mirror_pipe(path, status, look)
        elif stat.S_ISREG(status.st_mode):
            self._mirror_file(folder, name, path, status, look)
        elif self._overlay and _is_whiteout(status):
            look.seen[path] = None
            self._mirror_whiteout(path, look)
            return
        if self._owners:
            self._mirror_owner(self.copy / path, status, look)

    def _mirror_first(self, folder: int, name: str, path: str, status: os.stat_result, look: _Look) -> None:
        """The first name of a file that has several."""
        target, links = self.copy / path, look.links
        there = _status(target)
        if there is not None and links.taken.get(_identity(there), _identity(status)) != _identity(status):
            look.before_change()
            remove_tree(target)
            self._forget_signature(path)
        self._mirror_leaf(folder, name, path, status, look)
        there = _status(target)
        if there is not None and stat.S_IFMT(there.st_mode) == stat.S_IFMT(status.st_mode):
            links.copies[_identity(status)] = target
            links.taken[_identity(there)] = _identity(status)

    def _mirror_name(self, first: Path, path: str, look: _Look) -> None:
        """A further name of a file whose first name has been mirrored."""
        target = self.copy / path
        there = _status(target)
        if there is not None and _identity(there) == _identity(first.lstat()):
            return
        look.before_change()
        remove_tree(target)
        os.link(first, target, follow_symlinks=False)

    def _forget_signature(self, path: str) -> None:
        if self._known is not None:
            self._known[path] = None

    def _mirror_pipe(self, path: str, status: os.stat_result, look: _Look) -> None:
        target, mode = self.copy / path, plain_mode(status.st_mode)
        there = _alike(target, status)
        if there is not None and stat.S_IMODE(there.st_mode) == mode:
            return
        look.before_change()
        remove_tree(target)
        os.mkfifo(target)
        target.chmod(mode)

    def _mirror_folder(self, path: str, status: os.stat_result, look: _Look) -> None:
        look.seen[path] = None
        look.folders.add(path)
        mode = plain_mode(status.st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            look.modes[path] = mode
        target = self.copy / path
        there = _status(target)
        if there is None or not stat.S_ISDIR(there.st_mode):
            look.before_change()
            remove_tree(target)
            target.mkdir()
            there = target.stat()
        if stat.S_IMODE(there.st_mode) != mode | stat.S_IRWXU:
            look.before_change()
            target.chmod(mode | stat.S_IRWXU)

    def _mirror_itself(self, root: int, look: _Look) -> None:
        status = os.fstat(root)
        if stat.S_IMODE(status.st_mode) != _USUAL_MODE:
            look.modes[_TREE] = stat.S_IMODE(status.st_mode)
        if self._owners and (self.copy.exists() or status.st_uid != os.geteuid()):
            self.copy.mkdir(parents=True, exist_ok=True)
            self._mirror_owner(self.copy, status, look)

    def _mirror_owner(self, target: Path, status: os.stat_result, look: _Look) -> None:
        there = _status(target)
        if there is not None and (there.st_uid, there.st_gid) != (status.st_uid, status.st_gid):
            look.before_change()
            os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)

    def _mirror_whiteout(self, path: str, look: _Look) -> None:
        target = self.copy / path
        there = _status(target)
        if there is None or not _is_whiteout(there):
            look.before_change()
            remove_tree(target)
            os.mknod(target, stat.S_IFCHR, 0)

    def _mirror_opacity(self, folder: int, path: str, look: _Look) -> None:
        said, target = _attribute(folder), self.copy / path
        if said != _attribute(target):
            look.before_change()
            if said is None:
                os.removexattr(target, _OPAQUE)
            else:
                os.setxattr(target, _OPAQUE, said)

    def _restore_for_overlay(self, copy: Path, folder: int, name: str) -> None:
        status = copy.lstat()
        if self._owners:
            os.chown(name, status.st_uid, status.st_gid, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode) and (said := _attribute(copy)) is not None:
            made = os.open(name, _DIRECTORY, dir_fd=folder)
            try:
                os.setxattr(made, _OPAQUE, said)
            finally:
                os.close(made)

    def _mirror_link(self, path: str, text: str, status: os.stat_result, look: _Look) -> None:
        target = self.copy / path
        there = _alike(target, status)
        if there is not None and os.readlink(target) == text:
            return
        look.before_change()
        remove_tree(target)
        os.symlink(text, target)

    def _mirror_file(self, folder: int, name: str, path: str, status: os.stat_result, look: _Look) -> None:
        signature = _signature(status)
        assert self._known is not None
        racy = max(status.st_mtime_ns, status.st_ctime_ns) > look.at - _RACY
        if self._known.get(path) != signature:
            try:
                source = open_regular(folder, name)
            except NotPlain:
                return
            try:
                status = os.fstat(source)
                if not _same_file(source, status, self.copy / path):
                    look.before_change()
                    _copy_file(source, status, self.copy / path, self._aside)
            finally:
                os.close(source)
        look.seen[path] = None if racy else signature


def _paths_below(folder: Path) -> list[str]:
    """Paths of everything in a folder of our own, relative to it."""
    paths = []
    for parent, folders, files in os.walk(folder):
        inner = os.path.relpath(parent, folder)
        paths += [os.path.normpath(os.path.join(inner, name)) for name in (*folders, *files)]
    return paths


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _alike(copy: Path, status: os.stat_result) -> os.stat_result | None:
    """A copy's status; None if there is none of that kind, or one with several names of a file that has no other."""
    there = _status(copy)
    if there is None or stat.S_IFMT(there.st_mode) != stat.S_IFMT(status.st_mode):
        return None
    return None if _several(there) and not _several(status) else there


def _signature(status: os.stat_result) -> Signature:
    return (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _same_file(source: int, status: os.stat_result, copy: Path) -> bool:
    """Whether a copy has the same mode, time and bytes as an open file; the file is left at its beginning."""
    there = _alike(copy, status)
    if there is None or _looks(there) != _looks(status):
        return False
    with copy.open("rb", buffering=0) as file:
        while True:
            ours = os.read(source, 1 << 16)
            if ours != file.read(1 << 16):
                same = False
                break
            if not ours:
                same = True
                break
    os.lseek(source, 0, os.SEEK_SET)
    return same


def _looks(status: os.stat_result) -> tuple[int, int, int]:
    return (plain_mode(status.st_mode), status.st_size, status.st_mtime_ns)


def _copy_file(source: int, status: os.stat_result, copy: Path, aside: Path) -> None:
    """Copy an open file, whole or not at all, by way of ``aside``."""
    if (there := _status(copy)) is not None and stat.S_ISDIR(there.st_mode):
        remove_tree(copy)
    with aside.open("wb") as file:
        copy_data(source, file.fileno(), status.st_size)
    os.chmod(aside, plain_mode(status.st_mode))
    os.utime(aside, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(aside, copy)


def _restore_entry(copy: Path, folder: int, name: str, destination: Entry, linked: dict[Identity, Entry]) -> None:
    """Make ``name`` in an open folder, which is the entry ``destination``, what a copy is."""
    status = copy.lstat()
    if stat.S_ISDIR(status.st_mode):
        made = make_folder(folder, name)
        try:
            set_mode(made, status.st_mode)
        finally:
            os.close(made)
        return
    first = linked.setdefault(_identity(status), destination) if _several(status) else destination
    if first != destination:
        above, first_name = _parted(first[1])
        with open_folder(first[0], above) as there:
            os.link(first_name, name, src_dir_fd=there, dst_dir_fd=folder, follow_symlinks=False)
    elif stat.S_ISLNK(status.st_mode):
        make_link(folder, name, os.readlink(copy))
    elif stat.S_ISFIFO(status.st_mode):
        make_pipe(folder, name, status.st_mode)
    else:
        source = os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            copy_file(source, folder, name)
        finally:
            os.close(source)


def _is_whiteout(status: os.stat_result) -> bool:
    """Whether an entry of an overlay's upper folder says that there is none of that name."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _attribute(folder: int | Path) -> bytes | None:
    try:
        return os.getxattr(folder, _OPAQUE)
    except OSError:
        return None


def _several(status: os.stat_result) -> bool:
    return status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)


def _identity(status: os.stat_result) -> Identity:
    return (status.st_dev, status.st_ino)


def _parted(path: str) -> tuple[list[str], str]:
    *above, name = path.split("/")
    return above, name
