"""Folders of this machine into sandboxes whose files lie elsewhere, and back."""

from __future__ import annotations

import asyncio
import os
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from manyhands.agents.worlds.templates import MAX_BYTES, MAX_ENTRIES, pack
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError, StorageError, ToolError
from manyhands.core.failures import Cause
from manyhands.engine.contract import Context, Effect
from manyhands.io.files import is_full
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.files.trees import (
    make_folder,
    make_link,
    open_folder,
    open_regular,
    replace_file,
    set_mode,
)
from manyhands.sandboxes.images.extraction import open_archive

SENT = "sent"
"""The kind of a step that copies a folder into a world."""
FETCHED = "fetched"
"""The kind of a step that copies a world's workspace out of it."""
_MAX_NAME = 4096


async def send(scope: Context, world: World, folder: Path) -> None:
    """Copy what is in a folder into the workspace of the sandbox, as the next step of ``scope``. Raises UserError for a folder that can't
    be read, ItemError(INVALID_INPUT) for one that the sandbox can't take."""
    address, ran = scope.address, False

    async def effect() -> Effect:
        nonlocal ran
        ran = True
        await world.begin_step(address)
        sandbox = await world.sandbox()
        with tempfile.TemporaryFile(prefix="manyhands-") as archive:
            await asyncio.to_thread(pack, folder, archive, "workspace")
            archive.seek(0)
            try:
                await sandbox.put(archive, sandbox.workspace)
            except ToolError as error:
                raise ItemError(Cause.INVALID_INPUT, f"the workspace can't be filled: {error}") from error
        return Effect({})

    await scope.step(SENT, {}, effect)
    if not ran:
        world.replayed(address)


async def fetch(scope: Context, world: World, folder: Path) -> list[str]:
    """Have a folder hold what is in the workspace of the sandbox, and nothing else, as the next step of ``scope``. Notices on what could
    not be copied."""

    async def effect() -> Effect:
        sandbox = await world.sandbox()
        with tempfile.TemporaryFile(prefix="manyhands-") as archive:
            try:
                await sandbox.get(sandbox.workspace, archive, max_bytes=MAX_BYTES)
            except ToolError as error:
                return Effect({"notices": [f"the workspace can't be copied out of the sandbox: {error}"]})
            archive.seek(0)
            try:
                left_out = await asyncio.to_thread(_in_place_of, archive, folder)
            except tarfile.TarError as error:
                raise ItemError(Cause.SANDBOX_LOST, f"the sandbox sent no archive: {error}") from error
            except OSError as error:
                raise StorageError(f"can't keep the workspace of a sandbox in {folder}: {error.strerror}") from error
        said = f"{left_out} entries of the workspace are no files, folders or links, or too much, and were not copied"
        return Effect({"notices": [said]} if left_out else {})

    output = await scope.step(FETCHED, {}, effect)
    return list(output.get("notices") or ())


def _in_place_of(archive: BinaryIO, folder: Path) -> int:
    remove_tree(folder)
    folder.mkdir(parents=True)
    return unpack(archive, folder)


@dataclass(frozen=True, slots=True)
class Entry:
    """What an archive says of one entry, and its content."""

    parts: tuple[str, ...]
    """Of its name."""
    member: tarfile.TarInfo
    content: BinaryIO | None
    """Of a file, or a further name of one; None for anything else."""

    @property
    def size(self) -> int:
        return 0 if self.content is None else self.member.size


def entries(archive: BinaryIO, *, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> Iterator[Entry | None]:
    """The entries of a tar archive, whoever wrote it; None for each that is not to be taken: its name leads upwards, or it is a link to
    what was not there. An archive can mean far more than it holds, by further names of a file and by files with holes: at the entry that
    comes to more than ``max_bytes`` in all, or at that after ``max_entries``, it ends with a None. Raises tarfile.TarError, for anything
    that is wrong with it."""
    files: dict[tuple[str, ...], tarfile.TarInfo] = {}
    try:
        with open_archive(archive, stream=False) as found:
            count = left = 0
            while (member := found.next()) is not None:
                found.members = []  # type: ignore[attr-defined] # else it would keep all of them, and look through them for each link
                count, parts = count + 1, _parts(member.name)
                if member.size < 0:
                    raise tarfile.ReadError("an entry has a negative size")
                if ".." in parts or "\0" in member.name or len(member.name) > _MAX_NAME:
                    yield None
                    continue
                if member.isreg():
                    files[parts] = member
                elif member.islnk():
                    original = files.get(_parts(member.linkname))
                    if original is None:
                        yield None
                        continue
                    member = files[parts] = original.replace(name=member.name, deep=False)
                left += member.size if member.isreg() else 0
                if left > max_bytes or count > max_entries:
                    yield None
                    return
                yield Entry(parts, member, cast(BinaryIO, found.extractfile(member)) if member.isreg() else None)
    except (ValueError, LookupError, ArithmeticError, EOFError, RecursionError) as error:
        raise tarfile.ReadError(f"it is damaged: {error}") from error


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split("/") if part not in ("", "."))


def unpack(archive: BinaryIO, folder: Path, *, max_bytes: int = MAX_BYTES) -> int:
    """Put what is in a tar archive into a folder, without the first part of all names, and without ever following a link. Returns how many
    entries were left out: what is no file, folder or link, would lie elsewhere, or is more than ``max_bytes`` in all (see ``entries``).
    Raises OSError if the disk is full, tarfile.TarError."""
    left_out = 0
    for entry in entries(archive, max_bytes=max_bytes):
        if entry is None:
            left_out += 1
        elif len(entry.parts) > 1:
            try:
                left_out += not _unpacked(entry, folder, list(entry.parts[1:]))
            except OSError as error:
                if is_full(error):
                    raise
                left_out += 1  # a name that can't be there, or is there already as something else
    return left_out


def _unpacked(entry: Entry, folder: Path, parts: list[str]) -> bool:
    *above, name = parts
    member = entry.member
    with open_folder(folder, above, make=True) as inside:
        if member.isdir():
            os.close(make_folder(inside, name))
        elif member.issym():
            if "\0" in member.linkname:
                return False
            make_link(inside, name, member.linkname)
        elif entry.content is None:
            return False
        else:
            replace_file(inside, name, entry.content)
            descriptor = open_regular(inside, name)
            try:
                set_mode(descriptor, member.mode & 0o777)
            finally:
                os.close(descriptor)
    return True
