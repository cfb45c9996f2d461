"""Who owns a run: a lock on a file of its folder, held as long as the owner lives."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path

from manyhands.core.errors import RunError, StorageError
from manyhands.engine.journal.commits import RECORD
from manyhands.processes.strays import lock_holders

LOCK = "run.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.0)


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
        """Of the lock file. What it holds besides the owner's name is told by ``Commits``."""
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
            return f"{folder}: this run is being performed by {said or 'another process'}; one process at a time can do that"
        return f"{self._path}: held by process {holders[0]}, which does not perform the run; end that process, or remove the file"

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
    except PermissionError:  # somebody else's run: what the kernel tells everybody must do
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
