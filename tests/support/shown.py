"""What blocks hold, taken apart for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from manyhands.runs.shown.blocks import Columns, Fold, Link, Section, block_json

_Block = TypeVar("_Block")


def strings(value: Any) -> Iterator[str]:
    """All texts in JSON, each on one line."""
    if isinstance(value, dict):
        yield from (text for each in value.values() for text in strings(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in strings(each))
    elif isinstance(value, str):
        yield " ".join(value.split())


def text_of_blocks(value: Any) -> str:
    """All texts in blocks, one behind the other."""
    return " ".join(strings(block_json(value)))


def blocks_of(sections: Iterable[Any], kind: type[_Block]) -> list[_Block]:
    """All blocks of a kind, those inside of sections, folds and columns too."""
    found: list[_Block] = []
    for block in sections:
        if isinstance(block, kind):
            found.append(block)
        if isinstance(block, (Section, Fold)):
            found += blocks_of(block.blocks, kind)
        elif isinstance(block, Columns):
            found += [each for part in block.blocks for each in blocks_of(part, kind)]
    return found


def links_of(value: Any) -> Iterator[Link]:
    """All links in blocks."""
    if isinstance(value, dict):
        if value.get("block") == "link":
            yield Link(**{name: each for name, each in value.items() if name != "block"})
        else:
            yield from (link for each in value.values() for link in links_of(each))
    elif isinstance(value, list):
        yield from (link for each in value for link in links_of(each))
