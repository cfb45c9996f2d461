"""A batch command's output file, read while it is written.

JSON Lines are followed as they grow. A file may also be replaced or written anew meanwhile; then what was read of it before is void.
One JSON array, UTF-16 and gzip are read when they are whole: they are turned into lines once the command has ended.
"""

from __future__ import annotations

import codecs
import os
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from manyhands.core.jsonio import unbroken
from manyhands.core.text import wide_encoding
from manyhands.io.files import bytes_written_aside
from manyhands.io.tables.json import JsonArray, JsonArrayError
from manyhands.io.tables.text import UTF_16, may_be_wide
from manyhands.sandboxes.files.trees import NotPlain, open_folder, open_regular
from manyhands.workloads.evals.batch.records import BYTE_ORDER_MARK, Event, LineScanner

CHUNK = 1 << 20
"""Bytes that are read at once."""
MAX_UNPACKED = 16 << 30
"""Bytes that a compressed output may come to."""
GZIP = b"\x1f\x8b"
"""What compressed outputs begin with."""
_GZIP = 16 + zlib.MAX_WBITS
"""The ``wbits`` by which zlib expects gzip's header."""
_SEAL = 64
"""Bytes before the present offset that show whether the file is still the same one."""
_HEAD = 4096


@dataclass(slots=True)
class Progress:
    """What reading on has brought."""

    events: list[Event] = field(default_factory=list)
    """What the lines hold that have ended, in order."""
    anew: bool = False
    """Whether all that was found before is void."""
    more: bool = False
    """Whether there is more to read at once."""


class OutputFile:
    """Follows one file. ``read`` may be called at any time; the others may take a moment, and are called one after the other."""

    def __init__(self, path: Path, aside: Path) -> None:
        """``aside``: where its lines go if it has to be turned into lines first."""
        self.path = path
        self.aside = aside
        self.problem: str | None = None
        """Why nothing, or not all of it, could be read; known at the end."""
        self.note: str | None = None
        """What had to be done to read it, for the person."""
        self.unit = "line"
        """What a line is in the file: a line, or an element of an array."""
        self._descriptor = -1
        self._turn = threading.Lock()
        """Held while the descriptor is used or exchanged."""
        self._identity: tuple[int, int] | None = None
        self._begin()

    def read_on(self) -> Progress:
        """What has come since the last time."""
        progress = Progress()
        size = self._look(progress)
        if size is not None and self._known_to_be_lines(size):
            self._take(size, progress)
        return progress

    def read_to_the_end(self) -> Progress:
        """The rest, of a file that nobody writes to any more. Raises StorageError, OSError."""
        progress = self.read_on()
        progress.more = False
        if self._descriptor < 0 or self.problem is not None:
            self.problem = self.problem or "the output file was not written"
        elif self._lines is None and self._empty():
            self.problem = "the output file is empty"
        elif self._lines is None:
            self._convert()
        if self._descriptor >= 0 and self._lines is not None:
            self._take_all(progress)
        return progress

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of what was read; shorter if they are not there any more."""
        with self._turn:
            try:
                return os.pread(self._descriptor, length, offset)
            except OSError:
                return b""

    def sync(self) -> None:
        """Have what was written reach the disk."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Idempotent."""
        self._use(-1)

    def _use(self, descriptor: int) -> None:
        with self._turn:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = descriptor

    def _begin(self) -> None:
        self._lines: bool | None = None
        self._seal = b""
        self._scanner = LineScanner()

    def _look(self, progress: Progress) -> int | None:
        """The file's size, None if there is nothing to be read. Notices that it is another file than before."""
        try:
            status = self.path.lstat()  # a link would show what is not the command's own
        except OSError:
            status = None
        identity = None if status is None else (status.st_dev, status.st_ino)
        if identity != self._identity:
            progress.anew = self._identity is not None
            self.close()
            self._identity = identity
            self.problem = None
            self._begin()
        if status is None or not self._opened(status):
            return None
        if status.st_size < self._scanner.offset or self._broken_seal():
            progress.anew = True
            self._begin()
        return status.st_size

    def _opened(self, status: os.stat_result) -> bool:
        if not stat.S_ISREG(status.st_mode):
            self.problem = "the output file is not a regular file"
            return False
        if self._descriptor < 0:
            try:
                with open_folder(self.path.parent, ()) as folder:
                    self._use(open_regular(folder, self.path.name))
            except NotPlain:
                self.problem = "the output file is not a regular file"
                return False
            except OSError as error:
                self.problem = f"the output file can't be read ({error.strerror})"
                return False
        self.problem = None
        return True

    def _broken_seal(self) -> bool:
        return self.read(self._scanner.offset - len(self._seal), len(self._seal)) != self._seal

    def _known_to_be_lines(self, size: int) -> bool:
        """Whether the file's beginning shows that it holds lines in UTF-8: not an array of objects, nor compressed."""
        if self._lines is None and size:
            head = self.read(0, _HEAD)
            undecided = not head.removeprefix(BYTE_ORDER_MARK).strip() and size < _HEAD
            wide = wide_encoding(head) is not None or may_be_wide(head)
            if not _is_array(head) and not undecided and not wide and not GZIP.startswith(head[:2]):
                self._lines = True
        return self._lines is True

    def _empty(self) -> bool:
        head = self.read(0, _HEAD)
        return not head.decode(wide_encoding(head) or "utf-8-sig", "replace").strip()

    def _take(self, size: int, progress: Progress) -> None:
        data = self.read(self._scanner.offset, CHUNK)
        if data:
            progress.events += self._scanner.feed(data)
            self._seal = (self._seal + data)[-_SEAL:]
        progress.more = bool(data) and self._scanner.offset < size

    def _take_all(self, progress: Progress) -> None:
        before = -1
        while self._scanner.offset != before:
            before = self._scanner.offset
            self._take(before, progress)
        progress.events += self._scanner.finish()

    def _convert(self) -> None:
        with self._turn:
            source = os.dup(self._descriptor)  # the file that is open, whatever its name is now
        with open(source, "rb") as opened:
            opened.seek(0)
            found = convert(opened, self.aside)
        self.note, self.unit = found.note, found.unit
        self._lines = True
        if found.written:
            self._use(os.open(self.aside, os.O_RDONLY | os.O_CLOEXEC))


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was done to have an output as JSON Lines in UTF-8."""

    written: bool
    """Whether the lines are in a new file; False: the output itself is lines after all."""
    unit: str = "line"
    """What a line of the new file was in the output."""
    note: str | None = None
    """What was done, for the person."""


def convert(source: BinaryIO, target: Path) -> Conversion:
    """Write an output that is one JSON array, in UTF-16 or compressed as lines, in place of ``target`` and all at once. Raises
    StorageError, OSError."""
    plain = target.with_name(f"{target.name}.plain")
    notes: list[str] = []
    try:
        pieces = _plain_text(source, notes)
        if pieces is None:
            return _array_as_lines(source, target)
        with bytes_written_aside(plain) as text:
            text.writelines(pieces)
        with plain.open("rb") as text:
            found = _array_as_lines(text, target)
        if not found.written:
            plain.replace(target)
    finally:
        plain.unlink(missing_ok=True)
    return Conversion(True, found.unit, "; ".join([*notes, *([found.note] if found.note else [])]))


def _plain_text(source: BinaryIO, notes: list[str]) -> Iterator[bytes] | None:
    """The text of an output, unpacked and in UTF-8; None if it is that already. ``notes``: what is done, for the person."""
    head, pieces = _peeked(iter(partial(source.read, CHUNK), b""))
    packed = head.startswith(GZIP)
    if packed:
        notes.append("the output was unpacked with gzip")
        head, pieces = _peeked(_unpacked(pieces, notes))
    encoding = wide_encoding(head)
    if encoding is not None:
        notes.append(
            f"the output is {UTF_16} and was read as such, when it was whole; UTF-8 is read while it is written"
        )
        return (text.encode() for text in codecs.iterdecode(pieces, encoding, "replace"))
    if packed:
        return pieces
    source.seek(0)
    return None


def _peeked(pieces: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, two at least if there are as many, and all of the pieces."""
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= 2:
            break
    return head, chain((head,), pieces)


def _unpacked(pieces: Iterable[bytes], notes: list[str]) -> Iterator[bytes]:
    """What can be had of a gzip file's content; ``notes`` says why it is not all."""
    size = 0
    try:
        for piece in _inflated(pieces):
            yield piece
            size += len(piece)
            if size > MAX_UNPACKED:
                notes.append(f"it was cut at {MAX_UNPACKED >> 30} GiB")
                return
    except zlib.error:
        notes.append("its end is missing or damaged")


def _inflated(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The content of a gzip file (RFC 1952), also of several that follow each other. Raises zlib.error, after all that can be had."""
    decoder = zlib.decompressobj(_GZIP)
    begun = False
    for data in pieces:
        while data:
            begun = True
            yield decoder.decompress(data, CHUNK)
            data = decoder.unconsumed_tail
            if decoder.eof:
                data, decoder, begun = decoder.unused_data.lstrip(b"\0"), zlib.decompressobj(_GZIP), False
    if begun:
        yield decoder.flush()
        raise zlib.error("cut off")


def _is_array(head: bytes) -> bool:
    """Whether a text begins like an array of objects."""
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    return text.startswith(b"[") and text[1:].lstrip()[:1] in b"{]"


def _array_as_lines(source: BinaryIO, target: Path) -> Conversion:
    """An array's elements as lines; nothing is written of what is none. What comes after an array makes it the first of several lines."""
    array = _is_array(source.read(CHUNK))
    source.seek(0)
    if not array:
        return Conversion(False)
    elements, count, problem = JsonArray(source, "surrogateescape"), 0, None
    with bytes_written_aside(target) as lines:
        try:
            for text in elements.texts():
                # A line break is never part of a JSON text, but between its parts.
                one = text.replace("\r", " ").replace("\n", " ").encode("utf-8", "surrogateescape")
                lines.write(unbroken(one) + b"\n")
                count += 1
        except JsonArrayError:
            problem = f"it can't be read beyond element {count}"
    if elements.followed:
        target.unlink(missing_ok=True)
        return Conversion(False)
    note = "one JSON array was read as lines"
    return Conversion(True, "element", note if problem is None else f"{note}; {problem}")
