"""The lock file of a run: who owns the run, by a lock held as long as the owner lives, and how many commits its journal must hold.

By that number a journal that went back in time is known: SQLite takes a write-ahead log that is gone, cut off, damaged or another one for
one that ends earlier, and goes on without a word. The number is written, without a sync, after each commit is on disk: so it is never
ahead of a sound journal, whatever is killed. When a run is closed and its log is empty, the lock file also holds a checksum of the
journal.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
import stat
import time
import zlib
from contextlib import closing, suppress
from pathlib import Path

from manyhands.core.errors import RunError, StorageError
from manyhands.engine.journal.database import connect, schema_version, storage_errors
from manyhands.processes.system import lock_holders

META = "commits"
"""The fact in the journal that the number is compared with."""
RECORD = 64
"""Bytes at the beginning of the lock file."""
_BLOCK = 1 << 20
_HINT = "Put back what is missing, or remove {} to go on from what is left (what is missing is then paid for again)"
LOCK = "run.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.0)


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


class RunLock:
    """The right to execute a run: an operating system lock that ends with the process, however it ends. Nobody else can take it: who may
    only read the folder can't open the file."""

    def __init__(self, folder: Path) -> None:
        """Raises RunError, naming the owner, if another process has it."""
        self._path = folder / LOCK
        try:
            self._descriptor = os.open(self._path, _FLAGS, 0o600)
        except OSError as error:
            raise StorageError(f"{self._path}: the folder can't be written ({error.strerror})") from error
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise RunError(f"{self._path}: not a plain file; remove it")
        with suppress(OSError):  # of somebody else, who lets us write it
            os.fchmod(self._descriptor, 0o600)
        if not self._locked():
            message = self._refusal(folder)
            os.close(self._descriptor)
            raise RunError(message)
        try:
            os.ftruncate(self._descriptor, RECORD)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), RECORD)
        except OSError:
            pass  # a full disk: the name is for people, the lock holds without it

    @property
    def descriptor(self) -> int:
        """Of the lock file. What it holds besides the owner's name, ``Commits`` reads and writes."""
        return self._descriptor

    def _locked(self) -> bool:
        """Take the lock. Whoever only looks whether a run is owned holds it for an instant, which is waited out."""
        for pause in _PAUSES:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError:
                time.sleep(pause)
        return False

    def _refusal(self, folder: Path) -> str:
        said = os.pread(self._descriptor, 300, RECORD).decode(errors="replace").strip()
        holders = lock_holders(os.fstat(self._descriptor))
        words = said.split()
        if holders and len(words) > 1 and words[1].isdecimal() and words[-1] == socket.gethostname():
            said = said if int(words[1]) in holders else ""
        if said or not holders:
            return f"{folder}: this run is being executed by {said or 'another process'}; one process at a time can do that"
        return f"{self._path}: held by process {holders[0]}, which does not execute the run; end that process, or remove the file"

    def release(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, RECORD)
            os.close(self._descriptor)
            self._descriptor = -1


def is_owned(folder: Path) -> bool:
    """Whether some process owns the run."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:  # somebody else's run: what the kernel shows everybody must do
        with suppress(OSError):
            return bool(lock_holders(os.stat(folder / LOCK)))
        return False
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
