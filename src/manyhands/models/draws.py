"""Cheap choices that follow from a text alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_SIZE: int = 1 << 512


class Draws:
    """A stream of choices, the same for the same parts. A fraction of the cost of ``random.Random``, which matters where
    millions of calls each make a few choices."""

    __slots__ = ("_digest", "_pool", "_size")

    def __init__(self, *parts: str | int) -> None:
        text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
        self._digest = hashlib.blake2b(text, person=b"draws").digest()
        self._pool = int.from_bytes(self._digest)
        self._size = _SIZE

    @property
    def name(self) -> str:
        """128 hexadecimal digits that identify where the stream stands."""
        return self._digest.hex()

    def below(self, bound: int) -> int:
        """A whole number from 0 up to, but not including, ``bound`` (at most 2**32)."""
        if self._size < 1 << 64:
            self._digest = hashlib.blake2b(self._digest, person=b"draws").digest()
            self._pool = int.from_bytes(self._digest)
            self._size = _SIZE
        self._pool, value = divmod(self._pool, bound)
        self._size //= bound
        return value

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]
