"""How a table is laid out, found by looking at its beginning (whole lines, about 64 thousand characters).

**The delimiter**, where none is given, is the one that a first line ``sep=;`` names (as spreadsheet programs write and read it), else it is
found. Of comma, semicolon, tab and bar, those come into question that split the header into two cells or more and more than half of the
rows into as many. Of these, the one is taken that does so with the largest share of the rows; where equal, one that leaves numbers with
decimal commas whole (``1,5;2,3``), else the comma, else the one with the most columns, else the first in this order. If none comes into
question, it is one that splits the header and more than half of the rows in any way; if none does that, the comma. So a table that is
well-formed with commas is not split at anything else, unless every comma in it stands in a number.

**A single column**, a header of one name, is not split at all: its rows are most likely text with commas in it. Only quotes count.

**Titles** are rows above the header with at most half as many filled cells as it has, such as a report's name, and further ones with fewer
than it has. They are taken for titles only if what follows looks like a header (two filled cells or more, all different, none a number)
with rows below it, and is set apart: by a blank line right above it, by numbers under its names, or because the title is filled up with
empty cells to the table's width. Below a title that no delimiter follows, which may be the name of a single column, all rows must have as
many cells as the header; and where a blank follows every delimiter, as in prose, both a blank line and numbers must set it apart.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from manyhands.io.tables.base import MAX_LENGTH

SAMPLE = 1 << 16
"""Characters of a table's beginning that are looked at, about."""
CUT_OFF = "unexpected end of data"
"""The beginning of the csv module's error for a quote that is never closed."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""The delimiters that are found, with their names."""
UNSPLIT = "\ud800"
"""In place of a delimiter, what no text has: half a character that no decoder leaves."""
MAX_TITLES = 20
_SEPARATOR_LINE = re.compile(r'(?:"sep=([^"\r\n])"|sep=([^"\r\n]))\r?\n?', re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[$€£]?\d[\d.,' \u00a0]*[%€]?|\d{4}-\d\d-\d\d.*")
_YEAR = re.compile(r"(?:19|20)\d\d")
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+")
_MAYBE_WITH_COMMA = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?")
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+")
_RULE, _RULE_WITHIN = frozenset("|+-: "), 3
_NO_FIT: tuple[Any, ...] = (False, 0.0, False, True, 1)


class SampleRow(NamedTuple):
    """A row at the beginning of a table that is not blank."""

    line: int
    """Where it begins, from 1."""
    cells: Sequence[str]
    apart: bool = False
    """A blank line is before it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV table is laid out."""

    delimiter: str
    header_line: int
    """The line where the header begins, from 1; 1 if there is none."""
    stated: bool = False
    """Whether the table itself names its delimiter."""
    titles: tuple[str, ...] = ()
    """What the rows above the header say."""
    decimal_comma: bool = False
    """Whether numbers have decimal commas."""
    is_whole: bool = False
    """Whether the rows are those of a single column, and not split."""
    has_commas: bool = False
    """Whether rows would be split if they were not whole."""


def find_dialect(sample: Sequence[str], delimiter: str | None = None, header_line: int | None = None) -> Dialect:
    """The layout of a table from the lines at its beginning; what is given is not looked for."""
    stated = _SEPARATOR_LINE.fullmatch(sample[0]) if sample else None
    skipped = 1 if header_line is None and stated else (header_line or 1) - 1
    named = (stated[1] or stated[2]) if stated else None
    known = delimiter or named
    chosen = known or find_delimiter(sample[skipped:], titled=header_line is None)
    rows = list(sample_rows(sample[skipped:], chosen))
    titles = title_rows(rows) if header_line is None else 0
    below = rows[titles:]
    is_whole = known is None and bool(below) and len(below[0].cells) == 1
    return Dialect(
        delimiter=chosen,
        header_line=header_line or (below[0].line + skipped if below else 1),
        stated=named is not None and delimiter is None,
        titles=tuple(" ".join(cell for cell in row.cells if cell.strip()) for row in rows[:titles]),
        decimal_comma=chosen != "," and _has_decimal_commas(below[1:]),
        is_whole=is_whole,
        has_commas=is_whole and any(len(row.cells) > 1 for row in below[1:]),
    )


def line_of_dashes(sample: Sequence[str]) -> int | None:
    """The line, from 1, of a rule below or above the header, as tables have that are laid out for reading: Markdown's, or what psql and
    mysql print."""
    begun = [(number, text.strip()) for number, text in enumerate(sample, 1) if text.strip()]
    for number, text in begun[:_RULE_WITHIN]:
        if "---" in text and {"|", "+"} & set(text) and set(text) <= _RULE:
            return number
    return None


def find_delimiter(sample: Sequence[str], *, titled: bool = True) -> str:
    """The delimiter of a table, from the lines at its beginning. ``titled``: whether there may be titles."""
    best, chosen = _NO_FIT, ","
    for delimiter in SEPARATORS:
        rows = list(sample_rows(sample, delimiter))
        fit = _fit(rows[title_rows(rows) if titled else 0 :], delimiter)
        if fit > best:
            best, chosen = fit, delimiter
    return chosen


def _fit(rows: Sequence[SampleRow], delimiter: str) -> tuple[Any, ...]:
    """How well a delimiter fits a table that it splits into these rows: the larger, the better."""
    width = len(rows[0].cells) if rows else 0
    widths = [len(row.cells) for row in rows[1:]]
    if width < 2:
        return _NO_FIT
    share = widths.count(width) / len(widths) if widths else 1.0
    if share > 0.5:
        return (True, share, delimiter != "," and _only_decimal_commas(rows[1:]), delimiter == ",", width)
    split = sum(found > 1 for found in widths) / len(widths)
    return (False, split, False, delimiter == ",", width) if split > 0.5 else _NO_FIT


def csv_reader(lines: Iterable[str], delimiter: str) -> Any:
    """The csv module's reader, strict and for cells of any length that is allowed here."""
    # The limit is the csv module's own, for the whole process; it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LENGTH))
    return csv.reader(lines, delimiter=delimiter, strict=True)


def csv_rows(reader: Any, skipped: int = 0) -> Iterator[tuple[int, list[str], str | None]]:
    """All records, each with the line where it begins. Those with broken quoting have no cells, but the csv module's error. ``skipped``:
    lines before the reader's first."""
    line = reader.line_num + skipped
    while True:
        try:
            for cells in reader:
                first, line = line + 1, reader.line_num + skipped
                yield first, cells, None
            return
        except csv.Error as error:
            first, line = line + 1, reader.line_num + skipped
            yield first, [], str(error)


def sample_rows(sample: Iterable[str], delimiter: str) -> Iterator[SampleRow]:
    """The rows that are not blank; those with broken quoting without cells. One that the sample cuts off is left out."""
    apart, width = False, 0
    for line, cells, error in csv_rows(csv_reader(sample, delimiter)):
        if error is not None and error.startswith(CUT_OFF):
            continue
        if any(cells) or error is not None:
            yield SampleRow(line, cells, apart)
            apart, width = False, len(cells)
        elif not cells or min(len(cells), width) > 1:  # of a single column, "" is an empty cell
            apart = True


def title_rows(rows: Sequence[SampleRow]) -> int:
    """How many titles are above the header."""
    for index in range(1, min(len(rows), MAX_TITLES + 1)):
        if _is_header_below_titles(rows, index):
            return index
    return 0


def _is_header_below_titles(rows: Sequence[SampleRow], index: int) -> bool:
    header, titles, body = rows[index], rows[:index], rows[index + 1 :]
    names = _filled(header)
    if len(names) < 2 or len(set(names)) < len(names) or not all(map(_may_be_name, names)):
        return False
    if sum(len(row.cells) > 1 for row in body) * 2 <= len(body):
        return False
    if len(titles[0].cells) == 1 and _may_be_prose(header, body):
        return False
    few = max(1, len(names) // 2)
    counts = [len(_filled(row)) for row in titles]
    if min(counts) < 1 or counts[0] > few or max(counts) >= len(names):
        return False
    if header.apart:
        return True
    if max(counts) > few or any(not "".join(row.cells[:1]).strip() and len(names) == 2 for row in titles):
        return False  # a header whose first column, such as an index, has no name
    return _numbers_below(header, body) or (
        len(names) > 2 and all(_fills_up(row, len(header.cells)) for row in titles)
    )  # of two columns, the second may have no name


def _may_be_prose(header: SampleRow, body: Sequence[SampleRow]) -> bool:
    """Whether what looks like a header and rows may be lines of text with delimiters in it."""
    if header.apart and _numbers_below(header, body):
        return False
    ragged = any(len(row.cells) != len(header.cells) for row in body if row.cells)
    return ragged or all(cell.startswith(" ") for row in (header, *body) for cell in row.cells[1:])


def _fills_up(title: SampleRow, width: int) -> bool:
    """Whether nothing but the first cell of a row as wide as the table is filled."""
    return len(title.cells) == width and len(_filled(title)) == 1 and bool(title.cells[0].strip())


def _numbers_below(header: SampleRow, body: Sequence[SampleRow]) -> bool:
    """Whether there is a column of nothing but numbers under a name."""
    columns = [[row.cells[index] for row in body if index < len(row.cells)] for index in range(len(header.cells))]
    return any(
        name.strip() and cells and all(_NUMBER.fullmatch(cell.strip()) for cell in cells)
        for name, cells in zip(header.cells, columns, strict=True)
    )


def _may_be_name(cell: str) -> bool:
    text = cell.strip()
    return _NUMBER.fullmatch(text) is None or _YEAR.fullmatch(text) is not None


def _filled(row: SampleRow) -> list[str]:
    return [cell for cell in row.cells if cell.strip()]


def _only_decimal_commas(rows: Sequence[SampleRow]) -> bool:
    """Whether there are commas in these rows, all of them in numbers."""
    found = [cell for row in rows for cell in row.cells if "," in cell]
    return bool(found) and all(_DECIMAL_COMMA.fullmatch(cell.strip()) for cell in found)


def _has_decimal_commas(rows: Sequence[SampleRow]) -> bool:
    """Whether more numbers have one than a point, and most cells of a column are such numbers, some of them with one."""
    columns = [
        [cell.strip() for cell in column if cell.strip()]
        for column in zip_longest(*(row.cells for row in rows), fillvalue="")
    ]
    commas = [sum(_DECIMAL_COMMA.fullmatch(cell) is not None for cell in column) for column in columns]
    points = sum(_DECIMAL_POINT.fullmatch(cell) is not None for column in columns for cell in column)
    return sum(commas) > points and any(
        found and sum(_MAYBE_WITH_COMMA.fullmatch(cell) is not None for cell in column) * 2 > len(column)
        for found, column in zip(commas, columns, strict=True)
    )
