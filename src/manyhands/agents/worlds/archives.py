"""Folders of this machine into sandboxes whose files lie elsewhere, and back."""

from __future__ import annotations

import asyncio
import os
import tarfile
import tempfile
from pathlib import Path
from typing import BinaryIO

from manyhands.agents.worlds.templates import MAX_BYTES, pack
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError, ToolError
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

SENT = "sent"
"""The kind of a step that copies a folder into a world."""
FETCHED = "fetched"
"""The kind of a step that copies a world's workspace out of it."""


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
        said = f"{left_out} entries of the workspace are no files, folders or links, and were not copied"
        return Effect({"notices": [said]} if left_out else {})

    output = await scope.step(FETCHED, {}, effect)
    return list(output.get("notices") or ())


def _in_place_of(archive: BinaryIO, folder: Path) -> int:
    remove_tree(folder)
    folder.mkdir(parents=True)
    return unpack(archive, folder)


def unpack(archive: BinaryIO, folder: Path) -> int:
    """Put what is in a tar archive into a folder, without the first part of all names, and without ever following a link. Returns how many
    entries were left out: what is no file, folder or link, or would lie elsewhere. Raises OSError, tarfile.TarError."""
    left_out = 0
    with tarfile.open(fileobj=archive, mode="r:", errors="surrogateescape") as found:
        for member in found:
            parts = [part for part in member.name.split("/") if part not in ("", ".")][1:]
            if not parts:
                continue
            try:
                taken = ".." not in parts and _unpacked(found, member, folder, parts)
            except OSError as error:
                if is_full(error):
                    raise
                taken = False  # a name that can't be there, or is there already as something else
            left_out += not taken
    return left_out


def _unpacked(found: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, parts: list[str]) -> bool:
    *above, name = parts
    with open_folder(folder, above, make=True) as inside:
        if member.isdir():
            os.close(make_folder(inside, name))
        elif member.issym():
            make_link(inside, name, member.linkname)
        else:
            content = found.extractfile(member) if member.isreg() or member.islnk() else None
            if content is None:
                return False
            replace_file(inside, name, content.read())
            descriptor = open_regular(inside, name)
            try:
                set_mode(descriptor, member.mode & 0o777)
            finally:
                os.close(descriptor)
    return True
