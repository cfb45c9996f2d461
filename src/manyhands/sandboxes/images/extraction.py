"""Unpacking the layers of an image into a folder, whatever is in them.

Names, links and types in an archive are not to be trusted. Everything goes by open folders, and a link on the way to an entry is followed
as it would be inside, so that nothing outside the folder can be reached. Devices are left out; set-user-id and set-group-id bits are
dropped, and so are extended attributes. Format of layers, and of the files that take entries of lower layers away: the OCI image
specification, ``layer.md``; of archives: pax(1).
"""

from __future__ import annotations

import os
import stat
import tarfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import plain_mode

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_MAX_LINKS = 40
_MAX_DEPTH = 200
_MAX_HEADER = 1 << 20
"""Bytes of a long name, or of the records of one entry."""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_NOBODY = 65_534

Names = tuple[str, ...]
"""A path without links in it, relative to the root."""


class BadArchive(Exception):
    """An archive that is damaged, hostile, or no archive of an image. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Owners:
    """Which user and group ids of this machine stand for those of images."""

    uid: int
    """The one that stands for root."""
    gid: int
    count: int = 1
    """How many there are from there on. If there is only one, everything in images belongs to root."""

    def of(self, uid: int, gid: int) -> tuple[int, int]:
        """Those of this machine. Ids beyond them all become nobody's."""
        if self.count == 1:
            return self.uid, self.gid
        return self.uid + self._within(uid), self.gid + self._within(gid)

    def _within(self, identity: int) -> int:
        return identity if 0 <= identity < self.count else min(_NOBODY, self.count - 1)


@dataclass(slots=True)
class Bounds:
    """What is left of what an image may come to."""

    entries: int = 4_000_000
    size: int = 200 << 30
    """Bytes."""
    min_free: int = 1 << 30
    """Bytes that are to stay free on the file system."""

    def take(self, size: int) -> None:
        """Raises BadArchive."""
        self.entries -= 1
        self.size -= max(0, size)
        if self.entries < 0 or self.size < 0:
            raise BadArchive("has too many files, or too large ones")


class _Entry(tarfile.TarInfo):
    """An entry whose header can't take up any amount of memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        headers = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if self.type in (*headers, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK) and self.size > _MAX_HEADER:
            raise tarfile.ReadError("an entry's header is too long")
        inherited = super()._proc_member  # type: ignore[misc] # not in the stubs; the class names it as what may be overridden
        entry: tarfile.TarInfo = inherited(archive)
        return entry


def open_archive(file: IO[bytes], *, stream: bool) -> tarfile.TarFile:
    """An archive that is not compressed, for reading. ``stream``: from its beginning to its end only. Raises tarfile.TarError."""
    mode = "r|" if stream else "r:"
    return tarfile.open(fileobj=file, mode=mode, tarinfo=_Entry, errorlevel=2)  # type: ignore[call-overload,no-any-return]


@dataclass(slots=True)
class Extraction:
    """An image that is being unpacked into ``root``, an empty folder. ``owners``: None leaves everything to who unpacks it.

    A context manager: at its end folders get their modes. Not for the event loop's thread. Raises BadArchive, and OSError.
    """

    root: Path
    owners: Owners | None
    bounds: Bounds
    _top: int = -1
    _folder: int = -1
    """The folder that was needed last; ``_names`` are its."""
    _names: Names = ()
    _modes: dict[Names, int] = field(default_factory=dict)
    """Of folders: until the end they are open to us."""
    _added: set[Names] = field(default_factory=set)
    """By the layer that is being unpacked."""

    def __enter__(self) -> Extraction:
        self._top = os.open(self.root, _DIRECTORY)
        self._folder = os.dup(self._top)
        self._modes[()] = 0o755
        self._give(self._top, 0, 0)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._set_modes()
        finally:
            os.close(self._folder)
            os.close(self._top)

    def add_layer(self, file: IO[bytes], *, whiteouts: bool = True) -> None:
        """Unpack an archive over what is there. ``whiteouts``: whether its names may take entries of lower layers away, as in layers of
        images."""
        self._added = set()
        try:
            with open_archive(file, stream=True) as archive:
                while (entry := archive.next()) is not None:
                    self.bounds.take(entry.size if entry.isreg() else 0)
                    self._add(archive, entry, whiteouts=whiteouts)
                    archive.members = []  # type: ignore[attr-defined] # else it would keep all of them
        except (tarfile.TarError, ValueError, OverflowError, LookupError, EOFError, RecursionError) as error:
            raise BadArchive(f"is damaged: {error}") from error

    def make_folder(self, name: str) -> None:
        """Have a folder of this name at the root, whatever was there, that belongs to root. An existing one is kept."""
        self._make_folder((), name, 0o755, 0, 0)

    # Entries

    def _add(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, *, whiteouts: bool) -> None:
        parts = _parts(entry.name)
        if not parts:
            if entry.isdir():
                self._modes[()] = entry.mode
                self._give(self._top, entry.uid, entry.gid)
            return
        if len(parts) > _MAX_DEPTH:
            raise BadArchive("has too many folders within each other")
        name = parts[-1]
        if len(os.fsencode(name)) > 255:
            raise BadArchive("has a name that is too long")
        above = self._enter(parts[:-1])
        if whiteouts and name.startswith(_WHITEOUT):
            self._take_away(above, name)
            return
        if entry.isdir():
            self._make_folder(above, name, entry.mode, entry.uid, entry.gid)
        elif entry.isreg() or entry.islnk() or entry.issym() or entry.isfifo():
            if entry.islnk():
                self._make_name(above, name, entry)
            else:
                self._remove(above, name)
                self._make_leaf(archive, entry, name)
        else:
            return
        self._added.add((*above, name))

    def _make_leaf(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, name: str) -> None:
        folder = self._folder
        if entry.issym():
            os.symlink(_text(entry.linkname), name, dir_fd=folder)
            if self.owners is not None:
                uid, gid = self.owners.of(entry.uid, entry.gid)
                os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
            return
        if entry.isfifo():
            os.mkfifo(name, plain_mode(entry.mode) & 0o777, dir_fd=folder)
            if self.owners is not None:
                uid, gid = self.owners.of(entry.uid, entry.gid)
                os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
            return
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
        try:
            self._copy(archive, entry, descriptor)
            self._give(descriptor, entry.uid, entry.gid)
            os.fchmod(descriptor, plain_mode(entry.mode))
            with suppress(OverflowError, OSError):  # a time that the file system can't hold
                os.utime(descriptor, (entry.mtime, entry.mtime))
        finally:
            os.close(descriptor)

    def _copy(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, descriptor: int) -> None:
        source = archive.extractfile(entry)
        if source is None:
            raise BadArchive("is damaged")
        if entry.size > _CHUNK:
            space = os.fstatvfs(descriptor)
            if space.f_bavail * space.f_frsize - entry.size < self.bounds.min_free:
                raise BadArchive("does not fit on the disk")
        while data := source.read(_CHUNK):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    def _make_name(self, above: Names, name: str, entry: tarfile.TarInfo) -> None:
        """A further name of a file."""
        target = _parts(entry.linkname)
        if not target:
            raise BadArchive("has a hard link to its root")
        folder = os.dup(self._folder)
        try:
            first = self._enter(target[:-1])
            if (*first, target[-1]) == (*above, name):
                return
            try:
                mode = os.stat(target[-1], dir_fd=self._folder, follow_symlinks=False).st_mode
            except FileNotFoundError:
                raise BadArchive(f"has a hard link to a file that it does not have: {entry.linkname!r}") from None
            if stat.S_ISDIR(mode):
                raise BadArchive("has a hard link to a folder")
            _remove_entry(folder, name, self._path(above, name))
            os.link(target[-1], name, src_dir_fd=self._folder, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)

    def _make_folder(self, above: Names, name: str, mode: int, uid: int, gid: int) -> None:
        self._enter(above)
        try:
            os.mkdir(name, 0o700, dir_fd=self._folder)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mode):
                self._remove(above, name)
                os.mkdir(name, 0o700, dir_fd=self._folder)
        self._modes[(*above, name)] = mode
        if self.owners is not None:
            owner = self.owners.of(uid, gid)
            os.chown(name, *owner, dir_fd=self._folder, follow_symlinks=False)

    def _take_away(self, above: Names, name: str) -> None:
        """Take away what lower layers have; what this layer added stays."""
        if name == _OPAQUE:
            for each in os.listdir(self._folder):
                if (*above, each) not in self._added:
                    self._remove(above, each)
            return
        taken = name.removeprefix(_WHITEOUT)
        if taken in ("", ".", ".."):
            raise BadArchive("takes away what has no name")
        if (*above, taken) not in self._added:
            self._remove(above, taken)

    def _remove(self, above: Names, name: str) -> None:
        _remove_entry(self._folder, name, self._path(above, name))
        self._modes.pop((*above, name), None)

    def _give(self, descriptor: int, uid: int, gid: int) -> None:
        if self.owners is not None:
            os.fchown(descriptor, *self.owners.of(uid, gid))

    def _path(self, above: Names, name: str) -> Path:
        return self.root.joinpath(*above, name)

    # Ways

    def _enter(self, parts: Names) -> Names:
        """Go to a folder, which is made if it is not there; its path without links."""
        if parts == self._names:
            return parts
        folder, found = os.dup(self._top), list[str]()
        waiting, links = list(reversed(parts)), 0
        try:
            while waiting:
                part = waiting.pop()
                if part == "..":  # of a link: the way up is by the path, as the one in the folder could lead anywhere
                    waiting += reversed(found[:-1])
                    found.clear()
                    os.close(folder)
                    folder = os.dup(self._top)
                    continue
                said = _link_at(folder, part)
                if said is None:
                    deeper = self._opened(folder, (*found, part))
                    os.close(folder)
                    folder = deeper
                    found.append(part)
                    continue
                links += 1
                if links > _MAX_LINKS:
                    raise BadArchive("has links that lead around in a circle")
                if said.startswith("/"):
                    found.clear()
                    os.close(folder)
                    folder = os.dup(self._top)
                waiting += [each for each in reversed(said.split("/")) if each not in ("", ".")]
                if len(waiting) + len(found) > _MAX_DEPTH * 2:
                    raise BadArchive("has too many folders within each other")
        except BaseException:
            os.close(folder)
            raise
        os.close(self._folder)
        self._folder, self._names = folder, tuple(found)
        return self._names

    def _opened(self, folder: int, path: Names) -> int:
        name = path[-1]
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
            self._modes[path] = 0o755
            if self.owners is not None:
                os.chown(name, *self.owners.of(0, 0), dir_fd=folder, follow_symlinks=False)
        try:
            return os.open(name, _DIRECTORY, dir_fd=folder)
        except NotADirectoryError:
            raise BadArchive("has files in something that is no folder") from None

    def _set_modes(self) -> None:
        for path in sorted(self._modes, key=len, reverse=True):
            self._enter(path)
            os.fchmod(self._folder, plain_mode(self._modes[path]))
            if self.owners is None and path:  # before it is closed to us, we leave it
                self._enter(path[:-1])


def _remove_entry(folder: int, name: str, path: Path) -> None:
    """``path``: that of the entry, without links. Nobody else changes what is being unpacked."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        remove_tree(path)


def _link_at(folder: int, name: str) -> str | None:
    """What a link says; None for anything else, or nothing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def _parts(name: str) -> Names:
    """A name's parts. Raises BadArchive for one that leads upwards."""
    parts = tuple(part for part in _text(name).split("/") if part not in ("", "."))
    if ".." in parts:
        raise BadArchive(f"has a name that leads out of it: {name[:100]!r}")
    return parts


def _text(name: str) -> str:
    if "\0" in name or not name:
        raise BadArchive("has an entry without a usable name")
    return name
