"""The ids of rows: from a column, or by number; made different where they are equal."""

from __future__ import annotations

import hashlib
from types import TracebackType
from typing import Self

from manyhands.core.digest_table import DigestTable
from manyhands.core.jsonio import Json, dumps, without_surrogates

_CACHE_KIB = 16 * 1024


def source_id_of(value: Json) -> str | None:
    """The id that a cell holds, as it is; None for a blank one. Of values that are no text, their JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else dumps(value).decode()
    return text if text.strip() else None


class ItemIds:
    """Gives every row an id that no row before it has: its source id, else ``row-<row_index + 1>``, and behind one that is
    taken the first of ``-2``, ``-3``, … that is free.

    What is taken is kept on disk, so that memory does not grow with the rows. The work for a row does not grow either,
    however many are equal.
    """

    def __init__(self, *, from_column: bool) -> None:
        """``from_column``: whether there are source ids at all; numbers alone are always different."""
        self._taken = DigestTable(cache_kib=_CACHE_KIB) if from_column else None

    def next(self, source_id: str | None, row_index: int) -> str:
        """The id of the next row. Raises StorageError if the folder for temporary files is full."""
        # The journal's keys can't hold lone surrogates, so two ids that differ in nothing else are equal.
        base = f"row-{row_index + 1}" if source_id is None else without_surrogates(source_id)
        if self._taken is None:
            return base
        # The number of an id counts how often a suffix was looked for behind it, so that none is tried twice.
        tried = self._taken.count(_mark(base))
        if not tried:
            return base
        while not self._taken.add(_mark(f"{base}-{tried + 1}")):
            tried = self._taken.count(_mark(base))
        return f"{base}-{tried + 1}"

    def close(self) -> None:
        """Forget everything. Idempotent."""
        if self._taken is not None:
            self._taken.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _mark(text: str) -> bytes:
    """What stands for an id: itself, because ascending ids are entered fastest so; for a long one a digest, which is longer than
    those that stand for themselves."""
    data = text.encode()
    return data if len(data) < hashlib.blake2b.MAX_DIGEST_SIZE else hashlib.blake2b(data).digest()
