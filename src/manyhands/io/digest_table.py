"""Numbers by digest, kept on disk so that a million rows cost no more memory than ten.

SQLite's private temporary database does the work: the file has no name, grows only when the page cache is full, and is
gone when the table is closed or the process ends, however it ends.
"""

from __future__ import annotations

import sqlite3

from manyhands.core.errors import StorageError

_SETTINGS = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA temp_store = FILE",
)
_TABLE = "CREATE TABLE seen (digest BLOB PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID"
_INSERT = "INSERT OR IGNORE INTO seen VALUES (?, ?)"
_COUNT = "UPDATE seen SET number = number + 1 WHERE digest = ? RETURNING number"
_FIRST = "SELECT number FROM seen WHERE digest = ?"


class DigestTable:
    """A number for each digest. Use one table for one purpose: ``count`` (and ``add``), or ``first``."""

    def __init__(self, *, cache_kib: int = 2048) -> None:
        """``cache_kib``: memory for the part of the table that is used most."""
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (*_SETTINGS, f"PRAGMA cache_size = -{cache_kib}", _TABLE, "BEGIN"):
            self._database.execute(statement)

    def add(self, digest: bytes) -> bool:
        """Count the digest if it is new, and say whether it is.

        Raises StorageError if the folder for temporary files is full.
        """
        return self._insert(digest, 0)

    def count(self, digest: bytes) -> int:
        """How often the digest was counted before this time: 0 for the first.

        Raises StorageError if the folder for temporary files is full.
        """
        return 0 if self._insert(digest, 0) else self._number(_COUNT, digest)

    def first(self, digest: bytes, number: int) -> int:
        """The number that came with the digest the first time (``number`` itself if this is the first).

        Raises StorageError if the folder for temporary files is full.
        """
        return number if self._insert(digest, number) else self._number(_FIRST, digest)

    def close(self) -> None:
        """Forget everything. Idempotent."""
        self._database.close()

    def _insert(self, digest: bytes, number: int) -> bool:
        """Whether the digest is new."""
        try:
            return self._database.execute(_INSERT, (digest, number)).rowcount == 1
        except sqlite3.OperationalError as error:
            raise StorageError(f"the temporary table of rows can't be written: {error}") from error

    def _number(self, statement: str, digest: bytes) -> int:
        # All rows are fetched: RETURNING leaves the statement open until then.
        ((number,),) = self._database.execute(statement, (digest,)).fetchall()
        return int(number)
