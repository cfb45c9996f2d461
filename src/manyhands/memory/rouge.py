"""How alike two sentences are: ROUGE-L, the F measure of their longest common subsequence of stemmed words.

As in C.-Y. Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004), with Porter's stemmer on words of more than three letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import snowballstemmer

_OTHER = re.compile(r"[^a-z0-9]+")
_MOST_WORDS = 4000
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
    one, other = stems(expected)[:_MOST_WORDS], stems(given)[:_MOST_WORDS]
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
