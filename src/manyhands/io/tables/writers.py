"""Exports as CSV: RFC 4180 in UTF-8 without a byte order mark, lines ended by LF, quotes only where they are needed.

Exports as JSON Lines: one object for each row, its values as they are.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO

from manyhands.core.jsonio import Json, as_text, exact_line, without_surrogates
from manyhands.io.tables.base import Values

_FORMULA = re.compile(r"[=+\-@\t\r\n\0＝＋－＠]")
"""What makes spreadsheet programs take a cell for a formula where it comes first: the characters that OWASP names under "CSV Injection"."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WRITTEN_AS_THEY_ARE = frozenset({str, int, type(None)})
_BOM = codecs.BOM_UTF8


def write_csv(
    handle: BinaryIO, names: Sequence[str], rows: Iterable[Values], *, delimiter: str = ",", excel_safe: bool = False
) -> int:
    """Write the header and the rows; returns how many rows. ``excel_safe``: no cell is taken for a formula (see ``harmless``)."""
    write = _line_writer(delimiter)
    header = [harmless(name) for name in names] if excel_safe else list(names)
    handle.write(_guarded(write(header), header[0]))
    written = 0
    for row in rows:
        cells = [value if type(value) in _WRITTEN_AS_THEY_ARE else cell_text(value) for value in row]
        handle.write(write([_harmless_value(cell) for cell in cells] if excel_safe else cells))
        written += 1
    return written


def cell_text(value: Json) -> str:
    """A value as a cell: text as it is, null as nothing, anything else as compact JSON."""
    return "" if value is None else as_text(value)


def harmless(cell: str) -> str:
    """The cell with an apostrophe before it if a spreadsheet program might take it for a formula; numbers stay as they are.

    Who reads the file back gets the apostrophe with it.
    """
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def _harmless_value(value: Json) -> Json:
    return harmless(value) if isinstance(value, str) else value


class _Echo:
    """What ``csv.writer`` writes to, so that it gives the line back."""

    def write(self, text: str) -> str:
        return text


def _line_writer(delimiter: str) -> Callable[[Sequence[Json]], bytes]:
    """What makes a line of cells."""
    # Lines end in CR LF at first, because before Python 3.13 only then a lone CR is put in quotes; LF takes its place.
    line_of: Callable[[Sequence[Json]], Any] = csv.writer(_Echo(), delimiter=delimiter, lineterminator="\r\n").writerow

    def write(cells: Sequence[Json]) -> bytes:
        line = f"{line_of(cells)[:-2]}\n"
        try:
            return line.encode()
        except UnicodeEncodeError:
            return without_surrogates(line).encode()

    return write


def _guarded(line: bytes, first: str) -> bytes:
    """The header's line, with quotes around its first name if that begins as a byte order mark does, which readers drop."""
    size = len(first.encode())
    return b'"' + line[:size] + b'"' + line[size:] if line.startswith(_BOM) else line


def write_jsonl(handle: BinaryIO, names: Sequence[str], rows: Iterable[Values]) -> int:
    """Write the rows as objects with the columns' names; returns how many."""
    written = 0
    for row in rows:
        handle.write(exact_line(dict(zip(names, row, strict=True))))
        written += 1
    return written
