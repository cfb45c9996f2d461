"""Which of some things a text names, and whether it settles on one of them."""

from __future__ import annotations

import re
from collections.abc import Collection

_SENTENCES = re.compile(r"(?:(?<![\d.!?])|(?<=\d[.!?]))[.!?]++(?=\s|$)|[()]")
"""What ends a sentence. The number of an item in a list, or the end of a line, does not: a list is one sentence."""


def mentions(text: str, word: str) -> bool:
    """Whether a text holds a word, or several in a row, as whole words, in capitals or not."""
    return re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", text.lower()) is not None


def settles_on(text: str, wanted: str, others: Collection[str]) -> bool:
    """Whether some sentence of a text names what is wanted and none of the others."""
    rivals = [other for other in others if other.lower() != wanted.lower()]
    return any(
        mentions(sentence, wanted) and not any(mentions(sentence, rival) for rival in rivals)
        for sentence in _SENTENCES.split(text)
    )
