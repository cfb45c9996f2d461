"""Template folders: what is copied into the workspaces of items, and what identifies it. What is packed of them says
``sandboxes.files.packing``.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.text import expand_home
from manyhands.sandboxes.files.packing import Packer, TooLarge, walked

MAX_BYTES = 1 << 30
"""Bytes of all files of a template, of which each item gets a copy."""
MAX_ENTRIES = 200_000


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


def read_template(value: str | Path, *, name: str = "--workspace") -> Template:
    """The template in a folder. ``name``: of the setting, for messages. Raises UserError, naming what can't be copied."""
    return _packed(_folder(value, name), None, name)


def pack(folder: Path, archive: BinaryIO, name: str) -> Template:
    """Write what is in a folder as a tar archive. ``name``: of the folder, for messages. Raises UserError, as ``read_template``."""
    return _packed(folder, archive, name)


def packed_template(folder: Path, digest: str) -> tuple[Template, BinaryIO]:
    """A template's contents as a tar archive, in a temporary file that is kept for this process. Each caller reads it from its start,
    whoever reads it at the same time. Raises UserError if the folder does not hold any more what ``digest`` stands for, or can't be
    read."""
    template, archive = _kept(folder, digest, os.getpid())
    return template, io.BufferedReader(_SharedFile(archive))


class _SharedFile(io.RawIOBase):
    """A file with a position of its own, over an open one that others read, too."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._file.fileno(), len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: os.fstat(self._file.fileno()).st_size}[
            whence
        ]
        self._position = start + offset
        return self._position


def check_apart(template: Path, run_folder: Path) -> None:
    """Raises UserError if a run would be kept in the folder that its items get copies of."""
    run = run_folder.resolve()
    if template == run or template in run.parents or run in template.parents:
        raise UserError(f"--workspace: {template} holds the run's own folder, {run}; name another folder for either")


@lru_cache(maxsize=64)
def _kept(folder: Path, digest: str, process: int) -> tuple[Template, BinaryIO]:
    archive = tempfile.TemporaryFile(prefix="manyhands-")  # noqa: SIM115 - kept open for as long as this process needs it
    found = _packed(folder, archive, "--workspace")
    archive.flush()
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
    try:
        with Packer(archive, max_bytes=MAX_BYTES, max_entries=MAX_ENTRIES) as packer:
            for found in walked(folder):
                if not found.packable:
                    skipped.append(found.path)
                    continue
                content, is_link = packer.add(found), found.kind == stat.S_IFLNK
                state.update(f"{found.kind:o} {0 if is_link else found.mode:o} ".encode())
                for text in (found.path, found.target):
                    state.update(os.fsencode(text) + b"\0")
                state.update(content)
                if is_link:
                    links.add(found.path)
    except TooLarge as error:
        raise UserError(f"{name}: {folder} holds more than {error}, too much for a copy for each item") from None
    except OSError as error:
        raise UserError(f"{name}: can't read {error.filename or folder}: {error.strerror or error}") from error
    return Template(folder, state.hexdigest(), packer.size, tuple(skipped), frozenset(links))
