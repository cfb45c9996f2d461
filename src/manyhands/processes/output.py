"""What processes print: bounded in memory, bounded in a file, and without secrets.

``Capture`` keeps the head and the tail of a stream, ``KeptStream`` writes it to a file as it comes. ``safe_streams`` sees to this process's
own output: no secret goes through it, and nothing that a terminal would obey.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from manyhands.core.errors import StorageError
from manyhands.core.redaction import KNOWN, Redactor
from manyhands.core.text import printable

MAX_KEPT = 64 << 20
"""Maximum bytes of a stream in its file."""
TAIL = 2000
"""Bytes of a stream's end that are at hand for messages."""
_MAX_HELD = 1 << 16
"""Maximum bytes without a line break that are held back, so that no secret is written in two halves."""
_OVERLAP = 1 << 12


class Capture:
    """Takes any number of bytes and holds at most ``limit``: the first half of the limit from the start of the stream, the rest from
    its end."""

    def __init__(self, limit: int) -> None:
        self._head_size = limit // 2
        self._tail_size = limit - self._head_size
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    @property
    def limit(self) -> int:
        return self._head_size + self._tail_size

    @property
    def omitted(self) -> int:
        """Bytes left out between head and tail."""
        return self.total - len(self._head) - len(self._tail)

    def feed(self, data: bytes) -> None:
        """Add what came next."""
        self.total += len(data)
        capacity = self._head_size - len(self._head)
        if capacity > 0:
            self._head += data[:capacity]
            data = data[capacity:]
        if data:
            self._tail += data
            if len(self._tail) > self._tail_size:
                del self._tail[: len(self._tail) - self._tail_size]

    def joined(self) -> bytes:
        """Head and tail, joined. Where ``omitted`` is not 0, the gap is after the first ``limit // 2`` bytes."""
        if not self.omitted:
            return bytes(self._head + self._tail)
        return KNOWN.cut(bytes(self._head), end=True) + KNOWN.cut(bytes(self._tail), start=True)

    def read(self, start: int, limit: int) -> bytes:
        """The stream from byte ``start`` on, at most ``limit`` bytes. Where something is left out, a line in its place says how much."""
        start = max(0, start)
        tail_start = self.total - len(self._tail)
        head = bytes(self._head[start:])
        tail = bytes(self._tail[max(0, start - tail_start) :])
        lost = max(0, tail_start - max(start, len(self._head)))
        if lost:
            head, tail = KNOWN.cut(head, end=True), KNOWN.cut(tail, start=start < tail_start)
        if lost == 0 and len(head) + len(tail) <= limit:
            return head + tail
        return _shortened(head, tail, lost, limit)


class ToFile:
    """Takes any number of bytes, and writes the first ``limit`` of them to a file."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._capacity = limit
        self._tail = b""
        self.total = 0
        self.problem: OSError | None = None
        """Why not all of it could be written."""
        self.on_full: Callable[[], object] | None = None
        """Called, maybe several times, with what comes beyond the limit."""

    @property
    def omitted(self) -> int:
        """Bytes beyond the limit."""
        return max(0, -self._capacity)

    def feed(self, data: bytes) -> None:
        """Add what came next."""
        self.total += len(data)
        try:
            if self._capacity > 0 and self.problem is None:
                self._file.write(data[: self._capacity])
        except OSError as error:
            self.problem = error
        self._capacity -= len(data)
        self._tail = (self._tail + data[-TAIL:])[-TAIL:]
        if self._capacity < 0 and self.on_full is not None:
            self.on_full()

    def joined(self) -> bytes:
        """The last that came, for messages."""
        return self._tail


def _shortened(head: bytes, tail: bytes, lost: int, limit: int) -> bytes:
    if lost == 0:
        joined = head + tail
        head, tail = joined[: len(joined) // 2], joined[len(joined) // 2 :]
    widest = len(_gap(lost + len(head) + len(tail)))
    capacity = max(0, limit - widest)
    kept_head = head[: max(capacity // 2, capacity - len(tail))]
    kept_tail = tail[len(tail) - min(len(tail), capacity - len(kept_head)) :]
    if len(kept_head) < len(head) or len(kept_tail) < len(tail):
        kept_head, kept_tail = KNOWN.cut(kept_head, end=True), KNOWN.cut(kept_tail, start=True)
    left_out = lost + len(head) + len(tail) - len(kept_head) - len(kept_tail)
    return (kept_head + _gap(left_out) + kept_tail)[:limit] if left_out else kept_head + kept_tail


def _gap(count: int) -> bytes:
    return b"\n[%d bytes left out]\n" % count


class KeptStream:
    """Takes a stream's bytes. Where there is more than the limit, or no space on the disk, the rest is left out and the command goes
    on."""

    def __init__(self, path: Path, redactor: Redactor, *, limit: int = MAX_KEPT, append: bool = False) -> None:
        """``append``: whether what the file holds already stays. Raises StorageError if the file can't be made."""
        self._redactor = redactor
        self._limit = limit
        self._held = bytearray()
        self._tail = b""
        self._written = 0
        try:
            kept = os.O_APPEND if append else os.O_TRUNC
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | kept, 0o644)
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
        if not end and len(self._held) > _MAX_HELD:
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
        capacity = self._limit - self._written
        self._put(data[: max(0, capacity)])
        if capacity >= 0 and len(data) > capacity:
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


class SafeStream:
    """A text stream whose texts are made safe. ``raw``: the stream as it is, for what makes its texts safe itself."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        self.raw.write(printable(KNOWN.text(text)))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: TextIO) -> TextIO:
    """What is behind a stream of this process."""
    return stream.raw if isinstance(stream, SafeStream) else stream


@contextmanager
def safe_streams() -> Iterator[None]:
    """While inside, whatever is printed is made safe."""
    output, errors = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _safe(output), _safe(errors)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors


def _safe(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, SafeStream) else SafeStream(stream)
