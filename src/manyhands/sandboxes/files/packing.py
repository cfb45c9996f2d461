"""Packing what is on this machine into tar archives for sandboxes, by the same rules wherever it comes from.

Files, folders and links, which are never followed; sockets, pipes and devices are left out. All belongs to root, and set-user-id bits
are not kept. A further name of a file is a file of its own.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, Self

_BLOCK = 1 << 20


class TooLarge(Exception):
    """More was to be packed than the limits allow: ``str`` says which."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file, a folder or a link on this machine, as it was when it was looked at."""

    path: str
    """Below the folder that is packed, with slashes."""
    place: Path
    status: os.stat_result
    target: str = ""
    """Of a link."""

    @property
    def kind(self) -> int:
        """As of ``stat.S_IFMT``."""
        return stat.S_IFMT(self.status.st_mode)

    @property
    def packable(self) -> bool:
        return self.kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)

    @property
    def mode(self) -> int:
        """Its permissions."""
        return self.status.st_mode & 0o777


def found_at(place: Path, path: str) -> Found:
    """What is there. ``path``: its name in an archive. Raises OSError."""
    status = place.lstat()
    return Found(path, place, status, os.readlink(place) if stat.S_ISLNK(status.st_mode) else "")


def walked(folder: Path, below: str = "") -> Iterator[Found]:
    """All that is in a folder, in the order of the names' bytes, folders before what is in them. ``below``: where in the archive. Raises
    OSError."""
    with os.scandir(folder) as entries:
        names = sorted((entry.name for entry in entries), key=os.fsencode)
    for name in names:
        found = found_at(folder / name, f"{below}/{name}" if below else name)
        yield found
        if found.kind == stat.S_IFDIR:
            yield from walked(found.place, found.path)


class Packer:
    """Writes a tar archive. Use as ``with Packer(archive) as packer``; None for one that is only read and counted."""

    def __init__(
        self, archive: BinaryIO | None, *, max_bytes: int, max_entries: int | None = None, times: bool = True
    ) -> None:
        """``max_bytes``: of all files; ``times``: whether it says when files were changed, so that the same files may come to another
        archive."""
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._times = times
        self._tar = None if archive is None else tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115
        self.size = 0
        """Bytes of the files."""
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tar is not None and kind is None:
            self._tar.close()

    def add(self, found: Found) -> bytes:
        """Pack a file, a folder or a link; the digest of a file's content, empty for others. Raises OSError, ``TooLarge``."""
        info = tarfile.TarInfo(found.path)
        info.mode, info.mtime = found.mode, int(found.status.st_mtime) if self._times else 0
        if found.kind == stat.S_IFREG:
            return self._add_file(info, found.place)
        info.type = tarfile.DIRTYPE if found.kind == stat.S_IFDIR else tarfile.SYMTYPE
        info.linkname = found.target
        self._counted(0)
        if self._tar is not None:
            self._tar.addfile(info)
        return b""

    def add_data(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Pack a file that is nowhere yet. Raises ``TooLarge``."""
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(data), mode
        self._counted(info.size)
        if self._tar is not None:
            self._tar.addfile(info, io.BytesIO(data))

    def _add_file(self, info: tarfile.TarInfo, place: Path) -> bytes:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            info.size = os.fstat(descriptor).st_size
            self._counted(info.size)
            reader = _Hashing(file)
            if self._tar is not None:
                self._tar.addfile(info, reader)
            while self._tar is None and reader.read(_BLOCK):
                pass
        return reader.content.digest()

    def _counted(self, size: int) -> None:
        self._count += 1
        self.size += size
        if self.size > self._max_bytes:
            gib = self._max_bytes >> 30
            raise TooLarge(f"{gib} GiB" if gib else f"{self._max_bytes:,} bytes")
        if self._max_entries is not None and self._count > self._max_entries:
            raise TooLarge(f"{self._max_entries:,} files and folders")


class _Hashing:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.content = hashlib.blake2b(digest_size=16)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.content.update(data)
        return data
