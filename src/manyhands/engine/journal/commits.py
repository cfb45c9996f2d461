"""Beside the journal, in the lock file: how many commits it must hold. So a journal that went back in time is known.

SQLite takes a write-ahead log that is gone, cut off, damaged or another one for one that ends earlier, and goes on without a word. The
number is written, without a sync, after each commit is on disk: so it is never ahead of a sound journal, whatever is killed. When a run
is closed and its log is empty, the lock file also holds a checksum of the journal.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from contextlib import closing, suppress
from pathlib import Path

from manyhands.core.errors import RunError, StorageError
from manyhands.engine.journal.database import connect, schema_version, storage_errors

META = "commits"
"""The fact in the journal that the number is compared with."""
RECORD = 64
"""Bytes at the beginning of the lock file."""
_BLOCK = 1 << 20
_HINT = "Put back what is missing, or remove {} to go on from what is left (what is missing is then paid for again)"


class Commits:
    """What the lock file of one run says, held by the run's owner. ``count``: commits so far, by the file until ``compare``."""

    def __init__(self, journal: Path, lock: Path, descriptor: int) -> None:
        """``descriptor``: of the lock file, open. Call before the journal is opened. Raises RunError if the journal was changed since its
        last session ended, StorageError if it can't be read."""
        self._journal = journal
        self._path = lock
        self._descriptor = descriptor
        self.count = 0
        self.sound = False
        """Whether the journal is known to be what its last session left."""
        self.copied = False
        """Whether the file came from another folder, that of a run which was being executed perhaps."""
        if journal.exists():
            self._read()

    def compare(self, recorded: int) -> int:
        """How many commits are missing from the journal of a copied run; ``recorded``: those in the journal.

        Raises RunError where they are missing from the run itself, or where more than a commit is not accounted for.
        """
        missing = max(0, self.count - recorded)
        if missing and not self.copied:
            raise RunError(
                f"{self._journal}: the journal's last {missing} commits are missing (its -wal file was removed, cut off, damaged or "
                f"replaced). {_HINT.format(self._path)}"
            )
        self.count = recorded
        self._write("-")
        with suppress(
            OSError
        ):  # after a power failure, no old checksum must stand beside a journal that was changed since
            os.fsync(self._descriptor)
        return missing

    def note(self, count: int) -> None:
        """So many commits are on disk."""
        self.count = count
        self._write("-")

    def seal(self) -> None:
        """The journal was closed: note its checksum, if all of it is in its one file."""
        if not _has_data(_log_of(self._journal)):
            with suppress(OSError):
                self._write(_checksum(self._journal))

    def _read(self) -> None:
        fields = os.pread(self._descriptor, RECORD, 0).decode("ascii", "replace").split()
        if len(fields) != 3 or not (fields[0].isdigit() and fields[1].isdigit()):
            return
        self.count = int(fields[0])
        self.copied = int(fields[1]) != os.fstat(self._descriptor).st_ino
        if fields[2] == "-":
            return
        if _has_data(_log_of(self._journal)):
            raise RunError(
                f"{_log_of(self._journal)}: not of this journal, which was closed without a log. Remove it, or remove {self._path} if "
                "another program wrote it"
            )
        try:
            self.sound = _checksum(self._journal) == fields[2]
        except OSError as error:
            raise StorageError(f"{self._journal}: can't be read ({error.strerror})") from error
        if not self.sound:
            with closing(connect(self._journal, read_only=True)) as connection:
                schema_version(connection, self._journal)  # a newer version may seal its journals in another way
            raise RunError(
                f"{self._journal}: damaged, or changed by another program, since its last session ended (its checksum differs). "
                f"Restore it, or remove {self._path} to go on with it as it is"
            )

    def _write(self, seal: str) -> None:
        """Overwrites bytes that are there already, but for the first time: a full disk does no harm."""
        inode = os.fstat(self._descriptor).st_ino
        with suppress(OSError):
            os.pwrite(self._descriptor, f"{self.count:020d} {inode:020d} {seal}".ljust(RECORD - 1).encode() + b"\n", 0)


def check_pages(connection: sqlite3.Connection, journal: Path) -> None:
    """Look through a journal whose last session did not end. Raises RunError if it is damaged."""
    with storage_errors(journal):
        found = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
    if found != ["ok"]:
        text = " ".join(" ".join(map(str, found)).split())[:200]
        raise RunError(f"{journal}: damaged ({text}). Restore it from a copy, or make the run again")


def _log_of(journal: Path) -> Path:
    return journal.with_name(f"{journal.name}-wal")


def _has_data(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:
        return False


def _checksum(file: Path) -> str:
    """CRC-32 of a file, as eight digits."""
    value = 0
    with file.open("rb", buffering=0) as handle:
        while block := handle.read(_BLOCK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
