"""Which session has a node's folder: a copy of a run has its id, and may have its path's last names, but its workspaces are not the run's.

Each worker holds a shared lock on a file in the folder for as long as it lives, whose content names its session. Nobody waits for good: a
session whose owner is gone loses its workers within seconds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.core.text import one_line

CLAIM = "session"
"""The file's name."""
SECONDS = 15.0
"""How long the workers of another session are waited for: three times as long as they live without their owner."""
_PAUSE = 0.1
_MAX_BYTES = 5000
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""Of file systems without locks."""


def claim(folder: Path, session: str, seconds: float = SECONDS, *, again: Callable[[], object] = lambda: None) -> int:
    """Have a folder for the workers of a session; the descriptor of a file, which is to be kept open as long as the folder is used.
    ``session``: a name that no other has, and behind a blank where its owner is, for people. ``again`` makes the folder once more where
    the last worker of another session has removed it. Raises UserError if workers of another one have it, OSError."""
    end = time.monotonic() + seconds
    while True:
        try:
            descriptor = os.open(folder / CLAIM, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)
            again()
            continue
        try:
            if (holder := _holder(descriptor, session)) == session and _is_there(folder / CLAIM, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() > end:
            where = one_line(holder.partition(" ")[2])
            raise UserError(f"another copy of this run is being executed there ({where}), and both would use {folder}")
        time.sleep(_PAUSE)


def _holder(descriptor: int, session: str) -> str:
    """The session that has the file, which is this one if no other has."""
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, session.encode(errors="surrogateescape"), 0)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # it is held otherwise only for the moment that it takes to write
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return session
    return os.pread(descriptor, _MAX_BYTES, 0).decode(errors="surrogateescape")


def is_alone(descriptor: int) -> bool:
    """Whether no other worker holds the claim. Then nobody can get it until the descriptor is closed. Else this one is given up, so that of
    several workers that ask, one is alone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether nobody has removed the file, as the last worker of a run does."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
