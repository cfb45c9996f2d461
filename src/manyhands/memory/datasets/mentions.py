"""Whether a text names something."""

from __future__ import annotations

import re


def mentions(text: str, word: str) -> bool:
    """Whether a text holds a word, or several in a row, as whole words, in capitals or not."""
    return re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", text.lower()) is not None
