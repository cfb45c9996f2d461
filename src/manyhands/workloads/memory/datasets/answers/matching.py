"""How answers are compared with what was expected: whole words, numbers as people write them, and alike sentences.

Alike are sentences by ROUGE-L, the F measure of their longest common subsequence of stemmed words, as in C.-Y. Lin, "ROUGE: A Package for
Automatic Evaluation of Summaries" (2004), with Porter's stemmer on words of more than three letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import snowballstemmer

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
_MAX_CHARACTERS = 100
"""Characters of a quantity that are looked at."""


def quantity_in(value: Any) -> int | None:
    """The whole number that a value of an answer means; None if it means none, or several."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) <= LARGEST else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= LARGEST else None
    return _in_words(value) if isinstance(value, str) and len(value) <= _MAX_CHARACTERS else None


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


def mentions(text: str, word: str) -> bool:
    """Whether a text holds a word, or several in a row, as whole words, in capitals or not."""
    return re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", text.lower()) is not None


_OTHER = re.compile(r"[^a-z0-9]+")
_MAX_WORDS = 4000
"""Of each text; a longer answer is not the sentence that is looked for."""


@lru_cache(maxsize=1 << 15)
def stem(word: str) -> str:
    """The stem of a word in lower case; short words are their own."""
    return str(snowballstemmer.stemmer("porter").stemWord(word)) if len(word) > 3 else word


def stems(text: str) -> list[str]:
    """The stems of the words of a text, in order."""
    return [stem(word) for word in _OTHER.sub(" ", text.lower()).split()]


def rouge_l(expected: str, given: str) -> float:
    """From 0 (no word in common) to 1 (the same words in the same order)."""
    one, other = stems(expected)[:_MAX_WORDS], stems(given)[:_MAX_WORDS]
    common = _common(one, other)
    if not common:
        return 0.0
    precision, recall = common / len(other), common / len(one)
    return 2 * precision * recall / (precision + recall)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    # By bits, a row of the table at a time: H. Hyyrö, "Bit-parallel LCS-length computation revisited" (2004).
    places: dict[str, int] = {}
    for at, word in enumerate(other):
        places[word] = places.get(word, 0) | 1 << at
    everywhere = row = (1 << len(other)) - 1
    for word in one:
        here = row & places.get(word, 0)
        row = (row + here | row - here) & everywhere
    return (everywhere ^ row).bit_count()
