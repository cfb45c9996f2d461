"""Finds, for the rows of a dataset, the prompts that the original program has finished already."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from manyhands.core.jsonio import Json
from manyhands.trajectories.dataset import prompt_digest
from manyhands.trajectories.original import OriginalEntry, OriginalProblem, read_entry, read_original

_SETUP = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA cache_size = -2048",
    """CREATE TABLE place (
        digest BLOB NOT NULL,
        tombstone INTEGER NOT NULL,
        file TEXT NOT NULL,
        line INTEGER NOT NULL,
        start INTEGER NOT NULL,
        length INTEGER NOT NULL,
        used INTEGER NOT NULL DEFAULT 0
    )""",
    "CREATE INDEX by_digest ON place (digest)",
    "BEGIN",
)
# A prompt that has a trajectory is finished with it: a tombstone only counts where there is nothing better.
_FIND = """
    SELECT rowid, file, line, start, length FROM place
    WHERE digest = ? ORDER BY tombstone, rowid LIMIT 1 OFFSET ?
"""
_UNUSED = "SELECT file, line, start, length FROM place WHERE NOT used ORDER BY rowid"


class OriginalMatches:
    """The finished lines of a folder, by prompt: the k-th copy of a prompt gets the k-th line with that prompt.

    Only places are kept, in a private temporary database; a line itself is read again when it is asked for. ``entries`` and
    ``tombstones`` count the lines; ``problems`` holds the first lines that are no finished prompts, of ``problem_count``.
    """

    def __init__(self, folder: Path, problem_limit: int = 100) -> None:
        """Scan the folder. Raises UserError if a file can't be read."""
        self._folder = folder
        self.entries = 0
        self.tombstones = 0
        self.problems: list[OriginalProblem] = []
        self.problem_count = 0
        self._problem_limit = problem_limit
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in _SETUP:
            self._database.execute(statement)
        for found in read_original(folder):
            self._add(found)

    def find(self, prompt: Json, copy: int) -> OriginalEntry | None:
        """The line for the ``copy``-th (from 0) item with this prompt, or None if it was not finished.

        Raises UserError if the file changed since it was scanned.
        """
        found = self._database.execute(_FIND, (prompt_digest(prompt), copy)).fetchall()
        if not found:
            return None
        ((number, *place),) = found
        self._database.execute("UPDATE place SET used = 1 WHERE rowid = ?", (number,))
        return read_entry(self._folder, *place)

    def unused(self) -> Iterator[OriginalEntry]:
        """Lines that nothing asked for: prompts that are no longer in the dataset, and copies beyond those it has."""
        for place in self._database.execute(_UNUSED):
            yield read_entry(self._folder, *place)

    def close(self) -> None:
        """Forget everything. Idempotent."""
        self._database.close()

    def _add(self, found: OriginalEntry | OriginalProblem) -> None:
        if isinstance(found, OriginalProblem):
            self.problem_count += 1
            if len(self.problems) < self._problem_limit:
                self.problems.append(found)
            return
        tombstone = found.entry is None
        self.entries += not tombstone
        self.tombstones += tombstone
        self._database.execute(
            "INSERT INTO place (digest, tombstone, file, line, start, length) VALUES (?, ?, ?, ?, ?, ?)",
            (prompt_digest(found.prompt), tombstone, found.file, found.line, found.offset, found.length),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
