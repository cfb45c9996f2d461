"""Which of some names is most like a given one, in time that no name can stretch; and what messages have in common.

difflib compares two texts in quadratic time and worse, so texts are cut before they are compared, and only a few are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from heapq import nlargest

LONGEST = 120
"""Characters of a text that are compared."""
_MOST_NAMES = 5000
_MOST_COMPARED = 10
"""Texts that are compared in full: those that have most characters in common with the one that was given."""

_ID = re.compile(r"(?<![\w-])(?=[\w-]*[0-9])[\w-]{12,}|\b(?=[a-f]*[0-9])[0-9a-f]{6,}\b|\b0x[0-9a-f]+", re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]+")


def shape(text: str) -> str:
    """What stays the same in a message from one time to the next: the text with ``#`` for each id (long, or hexadecimal, with digits) and
    each number."""
    return _DIGITS.sub("#", _ID.sub("#", text))


def closest(name: str, names: Iterable[str], n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Up to ``n`` of the names whose likeness (difflib's ratio, 0 to 1) is at least ``cutoff``, the most alike first.

    As ``difflib.get_close_matches``, for names of up to 120 characters. Longer ones are compared by their first 120.
    """
    matcher = SequenceMatcher(None, b=name[:LONGEST])
    rough: list[tuple[float, str]] = []
    for _, each in zip(range(_MOST_NAMES), names, strict=False):
        matcher.set_seq1(each[:LONGEST])
        if matcher.real_quick_ratio() >= cutoff and (bound := matcher.quick_ratio()) >= cutoff:
            rough.append((bound, each))
    scored: list[tuple[float, str]] = []
    for _, each in nlargest(_MOST_COMPARED, rough):
        matcher.set_seq1(each[:LONGEST])
        if (ratio := matcher.ratio()) >= cutoff:
            scored.append((ratio, each))
    return [each for _, each in nlargest(n, scored)]
