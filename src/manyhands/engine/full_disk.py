"""A disk that is full. If a sandbox has just filled it, whoever watches that sandbox is about to end it and to remove its files."""

from __future__ import annotations

import errno
import sqlite3
import time
from pathlib import Path

SECONDS = 10.0
"""How long a run waits for room on a disk, at most."""
WATCHED = "workspaces/*/disk_use"
"""Files that are there while a run's sandboxes are watched (``sandboxes.disk_watch``)."""


class Patience:
    """Whether to try a write of a run's own files again. ``folder``: the run's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._since: float | None = None

    def worth_waiting(self, error: Exception) -> bool:
        """Whether a write that failed may succeed soon. To be asked at each failure, and ``over`` to be called at each success."""
        if not is_full(error) or next(self._folder.glob(WATCHED), None) is None:
            return False
        if self._since is None:
            self._since = time.monotonic()
        return time.monotonic() - self._since < SECONDS

    def over(self) -> None:
        self._since = None


def is_full(error: BaseException | None) -> bool:
    """Whether an error says that no room is left, or no quota."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
