"""What a snapshot has beyond its image, out of the archive that an engine writes of all of it.

Engines have no call for single layers, and their lists of changes can't tell all names. So the whole is read as it comes, and the layers
that are wanted are kept; they are known by the digests of their content, whatever they are called in there.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import tarfile
import tempfile
import zlib
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from pathlib import Path
from typing import IO

from manyhands.sandboxes.images.extraction import BadArchive, open_archive

_CHUNK = 1 << 20
_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


async def keep_layers(
    saved: AsyncIterator[bytes], wanted: Collection[str], folder: Path, *, max_bytes: int
) -> dict[str, Path]:
    """Layers of an image by their digests (``sha256:…``, of their content as archives that are not compressed), each a file in ``folder``.
    ``saved``: an archive of the image as engines write it. Raises BadArchive if it lacks one, ValueError for more than ``max_bytes``
    bytes, and OSError."""
    read_end, write_end = os.pipe()
    reading = asyncio.create_task(asyncio.to_thread(_read, read_end, frozenset(wanted), folder, max_bytes))
    try:
        with suppress(BrokenPipeError), os.fdopen(write_end, "wb", buffering=0) as pipe:
            async for data in saved:
                await asyncio.to_thread(_write_all, pipe, data)
    finally:
        await asyncio.wait([reading])
    return reading.result()


def _write_all(pipe: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[pipe.write(rest) :]


def _read(descriptor: int, wanted: frozenset[str], folder: Path, max_bytes: int) -> dict[str, Path]:
    found: dict[str, Path] = {}
    left = max_bytes
    with os.fdopen(descriptor, "rb", buffering=_CHUNK) as pipe:
        try:
            archive = open_archive(pipe, stream=True)
            for entry in archive:
                archive.members = []  # type: ignore[attr-defined] # else it keeps all of them
                if len(found) == len(wanted):
                    continue
                file = archive.extractfile(entry) if entry.isreg() else None
                if file is None:
                    continue
                handle, name = tempfile.mkstemp(suffix=".tar", dir=folder)
                path = Path(name)
                with os.fdopen(handle, "wb") as kept:
                    digest, size = _copied(file, kept, left)
                if digest in wanted and digest not in found:
                    found[digest] = path
                    left -= size
                else:
                    path.unlink()
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BadArchive(f"is damaged: {error}") from error
    if lacking := wanted - found.keys():
        raise BadArchive(f"lacks the layer {min(lacking)}")
    return found


def _copied(file: IO[bytes], target: IO[bytes], max_bytes: int) -> tuple[str, int]:
    """Write a file as it is when not compressed; its digest and size."""
    data = file.read(_CHUNK)
    if data.startswith(_ZSTANDARD):
        raise BadArchive("is compressed by zstd, which can't be read here")
    unpacking = zlib.decompressobj(31) if data.startswith(_GZIP) else None
    content, size = hashlib.sha256(), 0
    while data:
        plain = unpacking.decompress(data) if unpacking is not None else data
        size += len(plain)
        if size > max_bytes:
            raise ValueError(f"more than {max_bytes:,} bytes")
        content.update(plain)
        target.write(plain)
        data = file.read(_CHUNK)
    if unpacking is not None:
        plain = unpacking.flush()
        size += len(plain)
        content.update(plain)
        target.write(plain)
    return f"sha256:{content.hexdigest()}", size
