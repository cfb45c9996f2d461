"""A batch command's output file, read while it is written.

JSON Lines are followed as they grow. A file may also be replaced or written anew meanwhile; then what was read of it before is void.
One JSON array, UTF-16 and gzip are read when they are whole: they are turned into lines once the command has ended.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from manyhands.io.wide_text import may_be_wide, wide_encoding
from manyhands.sandboxes.files.trees import NotPlain, open_folder, open_regular
from manyhands.workloads.evals.batch.output_lines import GZIP, Unwound, unwind
from manyhands.workloads.evals.batch.records import BYTE_ORDER_MARK, Event, LineScanner

CHUNK = 1 << 20
"""Bytes that are read at once."""
_SEAL = 64
"""Bytes before the present place that show whether the file is still the same one."""
_HEAD = 4096
_BLOCK = 1 << 14
"""Bytes that are kept of what was read last: records are mostly asked for in their order."""


@dataclass(slots=True)
class Progress:
    """What reading on has brought. ``anew``: all that was found before is void; ``more``: there is more to read at once."""

    events: list[Event] = field(default_factory=list)
    anew: bool = False
    more: bool = False


class OutputFile:
    """Follows one file. ``read`` may be called at any time; the others may take a moment, and are called one after the other."""

    _block: tuple[LineScanner, int, bytes]

    def __init__(self, path: Path, aside: Path) -> None:
        """``aside``: where its lines go if it has to be turned into lines first."""
        self.path = path
        self.aside = aside
        self.problem: str | None = None
        """Why nothing, or not all of it, could be read; known at the end."""
        self.note: str | None = None
        self.unit = "line"
        self._descriptor = -1
        self._turn = threading.Lock()
        self._identity: tuple[int, int] | None = None
        self._begin()

    def read_on(self) -> Progress:
        """What has come since the last time."""
        progress = Progress()
        size = self._look(progress)
        if size is None or not self._known_to_be_lines(size):
            return progress
        self._take(size, progress)
        return progress

    def read_to_the_end(self) -> Progress:
        """The rest, of a file that nobody writes to any more."""
        progress = self.read_on()
        progress.more = False
        if self._descriptor < 0 or self.problem is not None:
            self.problem = self.problem or "the output file was not written"
        elif self._lines is None and self._empty():
            self.problem = "the output file is empty"
        elif self._lines is None:
            self._unwind()
        if self._descriptor >= 0 and self._lines is not None:
            self._take_all(progress)
        return progress

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of what was read; shorter if they are not there any more."""
        scanner = self._scanner
        of, begin, block = self._block
        if of is not scanner or not begin <= offset <= offset + length <= begin + len(block):
            begin, block = offset, self._read(offset, max(length, min(_BLOCK, scanner.offset - offset)))
            self._block = scanner, begin, block  # void once the file is found to be another one
        return block[offset - begin : offset - begin + length]

    def sync(self) -> None:
        """Have what was written reach the disk."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Idempotent."""
        self._use(-1)

    def _read(self, offset: int, length: int) -> bytes:
        with self._turn:
            try:
                return os.pread(self._descriptor, length, offset)
            except OSError:
                return b""

    def _use(self, descriptor: int) -> None:
        with self._turn:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = descriptor

    def _begin(self) -> None:
        self._lines: bool | None = None
        self._seal = b""
        self._scanner = LineScanner()
        self._block = self._scanner, 0, b""

    def _look(self, progress: Progress) -> int | None:
        """The file's size, None if there is nothing to be read. Notices that it is another file than before."""
        try:
            status = self.path.lstat()  # a link would show what is not the command's own
        except OSError:
            status = None
        identity = None if status is None else (status.st_dev, status.st_ino)
        if identity != self._identity:
            self._turn_to(identity, progress)
        if status is None or not self._opened(status):
            return None
        if status.st_size < self._scanner.offset or self._broken_seal():
            progress.anew = True
            self._begin()
        return status.st_size

    def _turn_to(self, identity: tuple[int, int] | None, progress: Progress) -> None:
        progress.anew = self._identity is not None
        self.close()
        self._identity = identity
        self.problem = None
        self._begin()

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
        place = self._scanner.offset - len(self._seal)
        return self._read(place, len(self._seal)) != self._seal

    def _known_to_be_lines(self, size: int) -> bool:
        """Whether the file's beginning shows that it holds lines in UTF-8: not an array of objects, nor compressed."""
        if self._lines is None and size:
            head = self._read(0, _HEAD)
            text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
            inner = text[1:].lstrip()
            array = text.startswith(b"[") and (not inner or inner[:1] in b"{]")
            undecided = not text and size < _HEAD
            wide = wide_encoding(head) is not None or may_be_wide(head)
            if not array and not undecided and not wide and not GZIP.startswith(head[:2]):
                self._lines = True
        return self._lines is True

    def _empty(self) -> bool:
        head = self._read(0, _HEAD)
        return not head.decode(wide_encoding(head) or "utf-8-sig", "replace").strip()

    def _take(self, size: int, progress: Progress) -> None:
        data = self._read(self._scanner.offset, CHUNK)
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

    def _unwind(self) -> None:
        found: Unwound = unwind(
            Path(f"/proc/self/fd/{self._descriptor}"), self.aside
        )  # the file that is open, whatever its name is now
        self.note, self.unit = found.note, found.unit
        self._lines = True
        if not found.as_it_is:
            self._use(os.open(self.aside, os.O_RDONLY | os.O_CLOEXEC))
