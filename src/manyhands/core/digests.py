"""Identities by content.

Cheap choices that follow from a text alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from random import Random
from typing import TypeVar

from manyhands.core.jsonio import Json, canonical


def digest(kind: str, request: Json) -> bytes:
    """16 bytes that identify a step's kind and request (BLAKE2b over canonical JSON)."""
    return hashlib.blake2b(canonical(request), digest_size=16, person=kind.encode()[:16]).digest()


def content_key(value: Json) -> str:
    """The identity of an item by its content: 32 hexadecimal digits."""
    return hashlib.blake2b(canonical(value), digest_size=16, person=b"item").hexdigest()


def derive_seed(*parts: str | int) -> int:
    """A seed in 0 … 2**31 - 1, the same for the same parts. (31 bits, because several model servers take no more.)"""
    text = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4, person=b"seed").digest()) >> 1


def derived_random(*parts: str | int) -> Random:
    """A random source that depends on the parts alone."""
    text = "\x1f".join(str(part) for part in parts).encode()
    return Random(hashlib.blake2b(text, digest_size=16, person=b"random").digest())


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
