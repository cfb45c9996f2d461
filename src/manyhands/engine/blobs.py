"""JSON as the journal stores it: small values as they are, large ones compressed."""

from __future__ import annotations

import zlib

from manyhands.core.jsonio import Json, dumps, loads

COMPRESS_FROM = 1024
"""Bytes of JSON from which compression pays."""


def pack(value: Json) -> bytes:
    """A value as a blob: ``j`` + JSON, or ``z`` + zlib of JSON where that is shorter."""
    data = dumps(value)
    if len(data) >= COMPRESS_FROM:
        compressed = zlib.compress(data, 1)
        if len(compressed) < len(data):
            return b"z" + compressed
    return b"j" + data


def unpack(blob: bytes) -> Json:
    """The reverse of ``pack``. Raises ValueError for anything else."""
    if blob[:1] == b"j":
        return loads(blob[1:])
    if blob[:1] == b"z":
        return loads(_decompressed(blob[1:]))
    raise ValueError("not a journal blob")


def _decompressed(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(f"a damaged journal blob: {error}") from error
