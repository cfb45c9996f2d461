"""What a command prints, kept in a file as it comes: with a bound, and without the secrets of its environment."""

from __future__ import annotations

import os
from pathlib import Path

from manyhands.core.errors import StorageError
from manyhands.core.redaction import Redactor

MAX_KEPT = 64 << 20
"""Bytes of a stream that its file holds at most."""
TAIL = 2000
"""Bytes of its end that are at hand for messages."""
_LONGEST_WAIT = 1 << 16
"""Bytes without a line break that are held back, so that no secret is written in two halves."""
_OVERLAP = 1 << 12


class KeptStream:
    """Takes a stream's bytes. Where there is more than the limit, or no room on the disk, the rest is left out and the command goes
    on."""

    def __init__(self, path: Path, redactor: Redactor, *, limit: int = MAX_KEPT) -> None:
        """Raises StorageError if the file can't be made."""
        self._redactor = redactor
        self._limit = limit
        self._held = bytearray()
        self._tail = b""
        self._written = 0
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"{path}: can't be written ({error.strerror})") from error

    @property
    def tail(self) -> str:
        """The end of what came."""
        return self._tail.decode("utf-8", "replace")

    def feed(self, data: bytes) -> None:
        """Add what came next."""
        self._held += data
        end = self._held.rfind(b"\n") + 1
        if not end and len(self._held) > _LONGEST_WAIT:
            self._held = bytearray(self._redactor.data(bytes(self._held)))  # now only the end can hold a part of one
            end = max(0, len(self._held) - _OVERLAP)
        self._write(end)

    def close(self) -> None:
        """Write what is held back. Idempotent."""
        self._write(len(self._held))
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, end: int) -> None:
        if not end:
            return
        text = bytes(self._held[:end]).decode("utf-8", "surrogateescape")
        del self._held[:end]
        data = self._redactor.text(text).encode("utf-8", "surrogateescape")
        self._tail = (self._tail + data)[-TAIL:]
        room = self._limit - self._written
        self._put(data[: max(0, room)])
        if room >= 0 and len(data) > room:
            self._put(b"\n[more than %d bytes: the rest was left out]\n" % self._limit)
        self._written += len(data)

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and self._descriptor >= 0:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:  # a full disk: what the command prints is not worth its end
            os.close(self._descriptor)
            self._descriptor = -1
