"""What goes into the journal and comes out of it: steps, claimed items, and JSON as blobs with a checksum."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from manyhands.core.errors import RunError
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import Item


@dataclass(slots=True)  # not frozen: see Outcome
class StepRow:
    """A step on its way to the journal; requests and outputs packed."""

    item: int
    attempt: int
    scope: str
    seq: int
    kind: str
    digest: bytes
    request: bytes
    output: bytes
    usage: Usage
    started_at: float
    finished_at: float
    account: str = ""

    def columns(self) -> tuple[Any, ...]:
        """In the order of the ``add_steps`` query."""
        usage = None if self.usage is ZERO else pack(self.usage.to_json())
        return (
            self.item,
            self.attempt,
            self.scope,
            self.seq,
            self.kind,
            self.digest,
            self.request,
            self.output,
            usage,
            self.started_at,
            self.finished_at,
            self.account or None,
        )


@dataclass(slots=True)
class Claimed:
    """An item in hand, with what the journal knows of earlier executions."""

    item: Item
    attempt: int
    performances: int
    failures: int
    position: int
    restarts: int = 0
    """Fresh attempts begun since it was claimed."""


RecordedOutput = tuple[str, int, str, bytes, bytes]
"""What a replay needs of a step: scope, number, kind, digest, packed output. A plain tuple, as a worker process is sent thousands."""


COMPRESS_FROM = 1024
"""Bytes of JSON from which compression pays."""


def pack(value: Json) -> bytes:
    """A value as a blob: ``c`` + CRC-32 of JSON (4 bytes) + JSON, or ``z`` + zlib of JSON where that is shorter."""
    data = dumps(value)
    if len(data) >= COMPRESS_FROM:
        compressed = zlib.compress(data, 1)
        if len(compressed) < len(data):
            return b"z" + compressed
    return b"c" + zlib.crc32(data).to_bytes(4, "big") + data


def unpack(blob: bytes) -> Json:
    """The reverse of ``pack``; also takes ``j`` + JSON, as journals had it before. Raises DamagedBlob for anything else."""
    try:
        return loads(_content(blob))
    except (ValueError, TypeError, zlib.error) as error:
        raise DamagedBlob(f"a record in run.db is damaged ({error}); restore the file from a copy") from error


def unpack_within(blob: bytes, most: int) -> tuple[Json, int]:
    """The same, and how many bytes of JSON it is. Raises DamagedBlob also for more than so many: a few bytes in a file may be very many."""
    try:
        if blob[:1] == b"z" and len(blob) * _LONGER > most:
            opened = zlib.decompressobj()
            content = opened.decompress(blob[1:], most + 1)
            if len(content) <= most and not opened.eof:
                raise ValueError("it is cut off")
        else:
            content = _content(blob)
        if len(content) <= most:
            return loads(content), len(content)
    except (ValueError, TypeError, zlib.error) as error:
        raise DamagedBlob(f"a record in run.db is damaged ({error}); restore the file from a copy") from error
    raise DamagedBlob(f"a record in run.db holds more than {most:,} bytes")


_LONGER = 1100
"""How many times as long as its compressed bytes a text may be at most, and some more."""


class DamagedBlob(RunError, ValueError):
    """A record of the journal is not what was written."""


def _content(blob: bytes) -> bytes:
    if blob[:1] == b"c":
        if zlib.crc32(blob[5:]).to_bytes(4, "big") != blob[1:5]:
            raise ValueError("its checksum differs")
        return blob[5:]
    if blob[:1] == b"z":
        return zlib.decompress(blob[1:])
    if blob[:1] == b"j":
        return blob[1:]
    raise ValueError("it is no journal blob")
