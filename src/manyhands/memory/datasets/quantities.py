"""Whole numbers as people and models write them: 2, "2", "two", "2x", "two cartons", "a dozen"."""

from __future__ import annotations

import re
from typing import Any

LARGEST = 1_000_000
"""No quantity of a test comes near it."""
_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_NUMBERS = {
    **{word: number for number, word in enumerate(_WORDS)},
    "a": 1,
    "an": 1,
    "single": 1,
    "once": 1,
    "twice": 2,
    "pair": 2,
    "couple": 2,
    "both": 2,
    "dozen": 12,
    "no": 0,
    "none": 0,
    "nothing": 0,
}
_GROUPS = {"pair": 2, "couple": 2, "dozen": 12}
_DIGITS = re.compile(r"(?:x|×)?(\d{1,9})(?:\.0{1,9})?(?:x|×|[a-z]{1,12})?")
_SEVERAL = re.compile(r"\d\s*[-–—/]\s*\d|\d[.,]\d*[1-9]|^\s*[-–−]\s*\d")
_LONGEST = 100
"""Characters of a quantity that are looked at."""


def quantity_in(value: Any) -> int | None:
    """The whole number that a value of an answer means; None if it means none, or several."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) <= LARGEST else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= LARGEST else None
    return _in_words(value) if isinstance(value, str) and len(value) <= _LONGEST else None


def _in_words(text: str) -> int | None:
    if _SEVERAL.search(text):
        return None
    text = text.lower().replace("half a dozen", "six")
    words = [word.strip(".,;:!?()[]*\"'") for word in text.replace("-", " ").split()]
    if "or" in words or "to" in words or "half" in words:
        return None
    digits = [found for word in words if (found := _DIGITS.fullmatch(word))]
    if digits:
        groups = [_GROUPS[word] for word in words if word in _GROUPS] or [1]
        return int(digits[0][1]) * groups[0] if len(digits) == 1 and len(groups) == 1 else None
    named = [word for word in words if word in _NUMBERS]
    if len(named) > 1 and named[0] != named[-1] and named[-1] in _GROUPS:
        return _NUMBERS[named[0]] * _GROUPS[named[-1]]  # a dozen, two pairs
    return _NUMBERS[named[0]] if len(named) == 1 else None
