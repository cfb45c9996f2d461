"""Mending the names of tools that a model got slightly wrong."""

from __future__ import annotations

from collections.abc import Collection

from manyhands.core.likeness import LONGEST, closest

SIMILARITY = 0.7
"""How alike two names must be (difflib's ratio, 0 to 1) for one to be taken for the other."""


def repair_name(name: str, known: Collection[str]) -> str | None:
    """The known name that was meant, or None.

    Tried in order: the name itself; in lower case; with hyphens and spaces as underscores; the same, ignoring the case
    of known names too; the most similar known name.
    """
    if name in known:
        return name
    if len(name) > LONGEST:
        return None
    plain = _plain(name)
    for candidate in (name.strip().lower(), plain):
        if candidate in known:
            return candidate
    by_plain = {_plain(each): each for each in sorted(known, reverse=True)}
    if plain in by_plain:
        return by_plain[plain]
    found = closest(plain, sorted(by_plain), cutoff=SIMILARITY)
    return by_plain[found[0]] if found else None


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
