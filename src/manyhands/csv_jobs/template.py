"""Instructions with places for a row's cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.csv_jobs.table_base import known_columns, shown

_MARKS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """An instruction, read once: texts and, between them, places for cells.

    ``{column}`` stands for the cell of the column of exactly that name, which may hold anything but braces. ``{{`` and
    ``}}`` are braces that mean themselves, and so is a single brace without its counterpart. All is read once, from the left:
    ``{{{x}}}`` is a cell in braces, and what is in a cell is never looked at.
    """

    texts: tuple[str, ...]
    """One more than there are places."""
    places: tuple[int, ...]
    """Numbers of columns, from 0."""

    @classmethod
    def parse(cls, text: str, headers: Sequence[str]) -> Self:
        """Raises UserError for a blank instruction, and for a name in braces that no column has, with its line in the instruction."""
        if not text.strip():
            raise UserError("instruction must be non-empty")
        columns = {name: place for place, name in enumerate(headers)}
        texts, places, end = [""], [], 0
        for mark in _MARKS.finditer(text):
            texts[-1] += text[end : mark.start()]
            end = mark.end()
            name = mark[1]
            if name is None:
                texts[-1] += mark[0][0]
            elif name in columns:
                places.append(columns[name])
                texts.append("")
            else:
                raise _unknown(name, text.count("\n", 0, mark.start()) + 1, headers)
        texts[-1] += text[end:]
        return cls(tuple(texts), tuple(places))

    def fill(self, cells: Sequence[Json]) -> str:
        """The instruction for a row: text as it is, null as nothing, other values as compact JSON."""
        parts = [self.texts[0]]
        for place, text in zip(self.places, self.texts[1:], strict=True):
            parts += _text(cells[place]), text
        return "".join(parts)


def _text(cell: Json) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else dumps(cell).decode()


def _unknown(name: str, line: int, headers: Sequence[str]) -> UserError:
    known = known_columns(name, headers)
    doubled = "braces that mean themselves are doubled: {{ and }}"
    return UserError(f"instruction, line {line}: {{{shown(name) if name else ''}}} names no column{known}; {doubled}")
