"""Archives go into sandboxes and come out of them in pieces."""

from __future__ import annotations

import io
import tarfile
import tempfile
import tracemalloc
from pathlib import Path
from typing import BinaryIO

import pytest

from manyhands.core.errors import ToolError
from manyhands.sandboxes.protocol import SandboxRequest
from manyhands.sandboxes.selection import choose_backend

SIZE = 8 << 20


def _pack(archive: BinaryIO) -> None:
    with tarfile.open(fileobj=archive, mode="w") as packed, Path("/dev/zero").open("rb") as zeros:
        entry = tarfile.TarInfo("large")
        entry.size = SIZE
        packed.addfile(entry, zeros)
    archive.seek(0)


@pytest.mark.parametrize("kind", ["local", "bubblewrap"])
async def test_a_large_archive_is_not_held_in_memory(kind: str, tmp_path: Path) -> None:
    sandbox = await choose_backend(kind).create(SandboxRequest(tmp_path / "box", "mark"))
    try:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as got:
            _pack(given)
            tracemalloc.start()
            try:
                await sandbox.put(given, "folder")
                await sandbox.get("folder", got, max_bytes=2 * SIZE)
                with pytest.raises(ToolError, match="more than"):  # the headers are more
                    await sandbox.get("folder", got, max_bytes=SIZE)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            got.seek(0)
            with tarfile.open(fileobj=got) as unpacked:
                assert {entry.name.rstrip("/"): entry.size for entry in unpacked}["folder/large"] == SIZE
    finally:
        await sandbox.close()
    assert most < SIZE // 2


@pytest.mark.parametrize("kind", ["local", "bubblewrap"])
async def test_no_more_is_read_than_is_taken(kind: str, tmp_path: Path) -> None:
    sandbox = await choose_backend(kind).create(SandboxRequest(tmp_path / "box", "mark"))
    try:
        made = await sandbox.shell("mkdir sparse; seq -f sparse/%g 1000 | xargs truncate -s 1G", timeout=20)
        assert made.exit_code == 0, made
        with pytest.raises(ToolError, match="more than 1,000 bytes"):  # all of it would take too long
            await sandbox.get("sparse", io.BytesIO(), max_bytes=1000)
        assert (await sandbox.shell("echo ok", timeout=20)).output == b"ok\n"
    finally:
        await sandbox.close()
