"""Identities by content."""

from __future__ import annotations

import hashlib
from random import Random

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
