"""Template folders: what is copied into the workspaces of items, and what identifies it.

Links are copied as links and never followed; sockets, pipes and devices are left out. Neither owners
nor set-user-id bits are kept.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.text import expand_home

MAX_BYTES = 1 << 30
"""Bytes of all files of a template: each item's copy goes through memory."""
MAX_ENTRIES = 200_000
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Template:
    """A folder as it was when it was read."""

    folder: Path
    digest: str
    """32 hexadecimal digits: names, kinds, permissions and contents."""
    size: int = 0
    """Bytes of its files."""
    skipped: tuple[str, ...] = ()
    """What is neither file nor folder nor link, and left out."""
    links: frozenset[str] = field(default=frozenset(), repr=False)
    """The paths of its links."""


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    """Below the template, with slashes."""
    status: os.stat_result
    target: str = ""
    """Of a link."""


def read_template(value: str | Path, *, name: str = "--workspace") -> Template:
    """The template in a folder. ``name``: of the setting, for messages. Raises UserError, naming what can't be copied."""
    return _packed(_folder(value, name), None, name)


def pack(folder: Path, archive: BinaryIO, name: str) -> Template:
    """Write what is in a folder as a tar archive. ``name``: of the folder, for messages. Raises UserError, as ``read_template``."""
    return _packed(folder, archive, name)


def packed_template(folder: Path, digest: str) -> tuple[Template, BinaryIO]:
    """A template's contents as a tar archive, in a temporary file that is kept for this process. Raises UserError if the folder does not
    hold any more what ``digest`` stands for, or can't be read."""
    return _kept(folder, digest, os.getpid())


def check_apart(template: Path, run_folder: Path) -> None:
    """Raises UserError if a run would be kept in the folder that its items get copies of."""
    run = run_folder.resolve()
    if template == run or template in run.parents or run in template.parents:
        raise UserError(f"--workspace: {template} holds the run's own folder, {run}; name another folder for either")


@lru_cache(maxsize=64)
def _kept(folder: Path, digest: str, process: int) -> tuple[Template, BinaryIO]:
    archive = tempfile.TemporaryFile(prefix="manyhands-")  # noqa: SIM115 - kept open for as long as this process needs it
    found = _packed(folder, archive, "--workspace")
    if found.digest != digest:
        archive.close()
        raise UserError(
            f"--workspace: {folder} changed since the run was opened; resume the run to go on with what is there now"
        )
    return found, archive


def _folder(value: str | Path, name: str) -> Path:
    folder = expand_home(value)
    if not folder.exists():
        raise UserError(f"{name}: there is no folder {folder}")
    if not folder.is_dir():
        raise UserError(f"{name}: {folder} is not a folder")
    return folder.resolve()


def _packed(folder: Path, archive: BinaryIO | None, name: str) -> Template:
    state = hashlib.blake2b(digest_size=16, person=b"template")
    skipped: list[str] = []
    links: set[str] = set()
    total = count = 0
    packing = None if archive is None else tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115
    try:
        for entry in _walked(folder, ""):
            kind = stat.S_IFMT(entry.status.st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                skipped.append(entry.path)
                continue
            count += 1
            total += entry.status.st_size if kind == stat.S_IFREG else 0
            if total > MAX_BYTES or count > MAX_ENTRIES:
                said = f"{MAX_BYTES >> 30} GiB" if total > MAX_BYTES else f"{MAX_ENTRIES:,} files and folders"
                raise UserError(f"{name}: {folder} holds more than {said}, too much for a copy for each item")
            if kind == stat.S_IFLNK:
                links.add(entry.path)
            _add(folder, entry, kind, state, packing)
        if packing is not None:
            packing.close()
    except OSError as error:
        raise UserError(f"{name}: can't read {error.filename or folder}: {error.strerror or error}") from error
    return Template(folder, state.hexdigest(), total, tuple(skipped), frozenset(links))


def _walked(folder: Path, below: str) -> Iterator[_Entry]:
    """All that is in a folder, in order of names, folders before what is in them."""
    with os.scandir(folder / below if below else folder) as found:
        entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
    for entry in entries:
        path = f"{below}/{entry.name}" if below else entry.name
        status = entry.stat(follow_symlinks=False)
        target = os.readlink(entry.path) if stat.S_ISLNK(status.st_mode) else ""
        yield _Entry(path, status, target)
        if stat.S_ISDIR(status.st_mode):
            yield from _walked(folder, path)


def _add(folder: Path, entry: _Entry, kind: int, state: hashlib.blake2b, packing: tarfile.TarFile | None) -> None:
    mode = entry.status.st_mode & 0o777
    state.update(f"{kind:o} {mode if kind != stat.S_IFLNK else 0:o} ".encode())
    for text in (entry.path, entry.target):
        state.update(os.fsencode(text) + b"\0")
    info = tarfile.TarInfo(entry.path)
    info.mode, info.mtime = mode, int(entry.status.st_mtime)
    if kind != stat.S_IFREG:
        info.type = tarfile.DIRTYPE if kind == stat.S_IFDIR else tarfile.SYMTYPE
        info.linkname = entry.target
        if packing is not None:
            packing.addfile(info)
        return
    descriptor = os.open(folder / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        info.size = os.fstat(descriptor).st_size
        reader = _Hashing(file)
        if packing is not None:
            packing.addfile(info, reader)
        else:
            while reader.read(_BLOCK):
                pass
        state.update(reader.content.digest())


class _Hashing:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.content = hashlib.blake2b(digest_size=16)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.content.update(data)
        return data
