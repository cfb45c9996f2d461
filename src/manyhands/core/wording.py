"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A number with its noun, whose plural ends in s: ``1 test``, ``1,000 tests``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def are(count: int) -> str:
    """``is`` for one thing, else ``are``."""
    return "is" if count == 1 else "are"


def have(count: int) -> str:
    """``has`` for one thing, else ``have``."""
    return "has" if count == 1 else "have"
