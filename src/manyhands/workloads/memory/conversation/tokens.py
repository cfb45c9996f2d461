"""Counting tokens: by tiktoken where it is installed with a local file, by lengths that were counted before, or by an estimate.

Every way has a name, which results keep. Nothing is ever downloaded.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from manyhands.core.errors import UserError


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts the tokens of a text; an empty one has 0."""

    name: str
    """The tokenizer, as results name it."""
    count: Callable[[str], int]
    exact: bool = True
    """Whether the count is right for any text, and not an estimate."""

    def __call__(self, text: str) -> int:
        return self.count(text) if text else 0


_PIECES = re.compile(
    r" ?[A-Z][a-z]{1,5}| ?[a-z]{1,9}| ?[A-Z]{1,3}|\d{1,3}| ?[!-/:-@\[-`{-~]{1,2}|\n+| {2,}|[^\x00-\x7f]|[\x00-\x7f]"
)
"""Runs of characters that most tokenizers of today hold in one token each, more or less. Each has at least one byte."""


def estimate() -> TokenCounter:
    """An estimate from the text alone, for where there is no tokenizer. On English conversation it is within a tenth of cl100k_base."""
    return TokenCounter("estimate", lambda text: len(_PIECES.findall(text)), exact=False)


_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""How cl100k_base splits a text before it looks up the pieces; a property of the encoding."""


@lru_cache(maxsize=4)
def tiktoken_counter(ranks: Path) -> TokenCounter:
    """cl100k_base by the package tiktoken. ``ranks``: the encoding's file, as the package itself keeps it. Raises UserError where the
    package isn't installed or the file can't be read."""
    try:
        from tiktoken import Encoding
        from tiktoken.load import load_tiktoken_bpe
    except ImportError:
        raise UserError("counting tokens by cl100k needs one more library: pip install 'manyhands[tokens]'") from None
    if not ranks.is_file():
        raise UserError(f"{ranks}: there is no such file")
    try:
        mergeable = load_tiktoken_bpe(str(ranks))
        encoding = Encoding("cl100k_base", pat_str=_CL100K, mergeable_ranks=mergeable, special_tokens={})
    except (ValueError, OSError) as error:
        raise UserError(f"{ranks}: not a tiktoken encoding: {error}") from None
    return TokenCounter("cl100k_base", lambda text: len(encoding.encode_ordinary(text)))


_CL100K_FILE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
"""What tiktoken calls the file of cl100k_base in its cache."""


def cl100k_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where tiktoken keeps cl100k_base on this machine; None if it doesn't."""
    folders = [environ.get("TIKTOKEN_CACHE_DIR"), environ.get("DATA_GYM_CACHE_DIR")]
    default = str(Path(tempfile.gettempdir()) / "data-gym-cache")
    file = Path(next((folder for folder in folders if folder), default)) / _CL100K_FILE
    return file if file.is_file() else None


def counter_named(name: str) -> TokenCounter:
    """A counter by name: ``estimate``; ``cl100k``; ``auto``, which is the latter where it can be had and else the former; or the file of
    cl100k_base. Raises UserError where that can't be had."""
    if name == "estimate":
        return estimate()
    if name == "auto":
        try:
            return counter_named("cl100k")
        except UserError:
            return estimate()
    file = cl100k_file() if name == "cl100k" else Path(name)
    if file is None:
        raise UserError(
            f"tokenizer {name!r}: tiktoken's file for it is not on this machine (TIKTOKEN_CACHE_DIR says where)"
        )
    if name != "cl100k" and not file.is_file():
        raise UserError(f"tokenizer {name!r}: give auto, cl100k, estimate, or the file of cl100k_base")
    return tiktoken_counter(file)
