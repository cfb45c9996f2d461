"""The changes of an exported world, made in a new one: by the driver's own archives and a shell inside, never on this machine.

An export may have been tampered with. All that it can do is what commands in the world can: names lead nowhere else, devices and what the
engine itself puts over the image are left out.
"""

from __future__ import annotations

import asyncio
import io
import os
import shlex
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

from manyhands.sandboxes.images.extraction import BadArchive, open_archive
from manyhands.sandboxes.project import PROJECT
from manyhands.sandboxes.remote.driver import Driver
from manyhands.sandboxes.remote.exported.archive import Exported, ExportPlace, opened_layers

APPLYING_SECONDS = 3600.0
_REMOVING_SECONDS = 600.0
_WHITEOUT, _OPAQUE, _OTHER = ".wh.", ".wh..wh..opq", ".wh..wh."
_MAX_ENTRIES = 4_000_000
_MAX_WORDS = 60_000
"""Bytes of names in one call of ``rm``."""
_MOUNTED = ("proc", "sys", "dev", PROJECT.strip("/"))
"""Folders that are no part of a world's own files."""
_ENGINES = ("etc/hosts", "etc/hostname", "etc/resolv.conf", ".dockerenv", "run/.containerenv")
_PROGRAMS = ("bin", "sbin", "lib", "lib64", "usr")
"""Where what removes files may itself be: removed last."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one layer says."""

    removed: tuple[str, ...]
    """Paths, relative to the root."""
    emptied: tuple[str, ...]
    """Folders whose former content is gone."""
    parts: tuple[tuple[int, int], ...]
    """Where in the archive its entries are: begins and ends. Whatever they hold is taken as it is."""


async def apply_export(driver: Driver, world: str, place: ExportPlace) -> Exported:
    """Make the changes in a world that was just made of the same image, and runs. Raises BadArchive or OSError for a file that can't be
    used, ItemError if the engine refuses it."""
    async with asyncio.timeout(APPLYING_SECONDS):
        with opened_layers(place) as (exported, layers):
            for layer in layers:
                changes = await asyncio.to_thread(read_changes, layer)
                await _remove(driver, world, changes)
                if changes.parts:
                    entries = io.BufferedReader(_Parts(layer, changes.parts), 1 << 18)  # type: ignore[type-var] # a raw one
                    await driver.put(world, cast(BinaryIO, entries), "/")
    return exported


def read_changes(layer: IO[bytes]) -> Changes:
    """Read through a layer. Raises BadArchive for what no engine writes."""
    removed: list[str] = []
    emptied: list[str] = []
    parts: list[tuple[int, int]] = []
    try:
        archive = open_archive(layer, stream=False)
        begin: int | None = None
        for _ in range(_MAX_ENTRIES):
            entry = archive.next()
            if begin is not None:
                _add(parts, begin, archive.offset if entry is None else entry.offset)
                begin = None
            if entry is None:
                return Changes(tuple(removed), tuple(emptied), tuple(parts))
            archive.members = []  # type: ignore[attr-defined] # else it keeps all of them
            name = _checked(entry)
            if _is_whiteout(name):
                _note_whiteout(name, removed, emptied)
            elif name and not _is_engines(name) and (entry.isfifo() or not entry.isdev()):
                begin = entry.offset
    except (tarfile.TarError, EOFError) as error:
        raise BadArchive(f"is damaged: {error}") from error
    raise BadArchive("has too many files")


def _is_whiteout(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_WHITEOUT)


def _note_whiteout(path: str, removed: list[str], emptied: list[str]) -> None:
    folder, slash, last = path.rpartition("/")
    gone = last.removeprefix(_WHITEOUT)
    if last == _OPAQUE:
        if not folder:
            raise BadArchive("takes away everything")
        if not _is_engines(folder):
            emptied.append(folder)
    elif last.startswith(_OTHER):  # notes of a file system
        return
    elif gone in ("", ".", ".."):
        raise BadArchive(f"has a name that leads out of it: {path[:100]!r}")
    elif not _is_engines(folder + slash + gone):
        removed.append(folder + slash + gone)


def _add(parts: list[tuple[int, int]], begin: int, end: int) -> None:
    if parts and parts[-1][1] == begin:
        parts[-1] = (parts[-1][0], end)
    else:
        parts.append((begin, end))


def _checked(entry: tarfile.TarInfo) -> str:
    """The path of an entry. Raises BadArchive for one that leads elsewhere."""
    name = _path(entry.name)
    if entry.islnk() and _is_engines(_path(entry.linkname)):
        raise BadArchive(f"has a link that leads out of it: {entry.name[:100]!r}")
    return name


def _path(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise BadArchive(f"has a name that leads out of it: {name[:100]!r}")
    return "/".join(parts)


def _is_engines(path: str) -> bool:
    """Whether the engine itself puts something there."""
    return path.partition("/")[0] in _MOUNTED or path in _ENGINES


async def _remove(driver: Driver, world: str, changes: Changes) -> None:
    """Raises ItemError, and BadArchive if something can't be removed."""
    if not changes.removed and not changes.emptied:
        return
    said: list[bytes] = []
    stream = await driver.execute(
        world,
        ["/bin/sh", "-s"],
        environment={},
        user="0",
        directory="/",
        output=lambda data: None,
        errors=said.append,
    )
    try:
        async with asyncio.timeout(_REMOVING_SECONDS):
            try:
                for line in _script(changes):
                    await stream.write(line)
                await stream.close_input()
            except ConnectionError:  # its exit code tells
                pass
            code = await stream.wait()
    except TimeoutError as error:
        raise BadArchive("takes too long to remove what it says") from error
    finally:
        await stream.close()
    if code != 0:
        text = b"".join(said).decode(errors="replace").strip()
        raise BadArchive(f"removes what can't be removed: {text[-300:]}")


def _script(changes: Changes) -> Iterator[bytes]:
    yield b"set -e\n"
    for names in _bunches(changes.emptied):  # the folder itself comes back with the layer's entries, as these say
        words = b" ".join(names)
        yield b"rm -rf -- " + words + b"\nmkdir -p -- " + words + b"\n"
    for names in _bunches(changes.removed):
        yield b"rm -rf -- " + b" ".join(names) + b"\n"


def _bunches(paths: Sequence[str]) -> Iterator[list[bytes]]:
    bunch: list[bytes] = []
    size = 0
    for path in sorted(paths, key=lambda path: path.partition("/")[0] in _PROGRAMS):
        word = os.fsencode(shlex.quote(f"/{path}"))
        if bunch and size + len(word) > _MAX_WORDS:
            yield bunch
            bunch, size = [], 0
        bunch.append(word)
        size += len(word)
    if bunch:
        yield bunch


class _Parts(io.RawIOBase):
    """An archive of some entries of another one."""

    def __init__(self, archive: IO[bytes], parts: Sequence[tuple[int, int]]) -> None:
        self._archive = archive
        self._parts = list(parts)
        self._end = io.BytesIO(bytes(2 * tarfile.BLOCKSIZE))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while self._parts:
            begin, end = self._parts[0]
            self._archive.seek(begin)
            data = self._archive.read(min(len(buffer), end - begin))
            if data:
                buffer[: len(data)] = data
                self._parts[0] = (begin + len(data), end)
                return len(data)
            self._parts.pop(0)
        data = self._end.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
