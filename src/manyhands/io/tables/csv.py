"""CSV tables and datasets, streamed through the standard ``csv`` module.

The format is RFC 4180's with the freedoms that files in use take: lines end in LF, CRLF or a lone CR (kept as they are inside quotes),
cells are never trimmed, a quote counts only at the beginning of a cell, NUL characters are text. Blank lines and rows whose
cells are all empty are left out, before the header too; a row of spaces is a row.

**Broken quoting** (text behind a closing quote) makes a bad row, and reading goes on with the next line. Where the broken cell was
meant to end can't be known: lines that were meant to be inside it come out as rows of their own, good or bad. A quote that is never
closed takes everything behind it: all of that is one bad row, which ends the table.

**The delimiter**, where none is given, is found from the beginning of the file (whole lines, about 64 thousand characters). Of comma,
semicolon, tab and bar, those come into question that split the header into two cells or more and more than half of the sample's rows
into as many. Of these, the one is taken that does so with the largest share of the rows; where equal, the comma, else the one with
the most columns, else the first in this order. If none comes into question, it is the comma. So a table that is well-formed with
commas is never split at anything else, and neither is a single column, unless its name and most of its rows hold the same
number of semicolons, tabs or bars.

**Datasets** are read by simpler rules: in UTF-8, split at commas, with lines ended by LF or CRLF. Names are taken without the blanks around
them, and one that is blank is called by its number (``column_3``). A short row lacks its last fields; a row of empty cells is a row.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, as_text, without_surrogates
from manyhands.io.tables.base import (
    MAX_LENGTH,
    MAX_VALUE,
    RawRow,
    Record,
    TableInfo,
    Unit,
    Values,
    at,
    check_headers,
    reading,
)
from manyhands.io.tables.text import choose_encoding, numbered_lines, text_lines, undecoded

_DELIMITERS = ",;\t|"
_NAMED_DELIMITERS = {"tab": "\t", "\\t": "\t"}
_SAMPLE = 1 << 16
_CUT_OFF = "unexpected end of data"
_TOO_LONG = "field larger than field limit"
"""Beginnings of the csv module's own errors."""


class CsvTable:
    """A CSV file whose header has been read."""

    unit: Unit = "line"

    def __init__(self, path: Path, encoding: str | None = None, delimiter: str | None = None) -> None:
        """``encoding``: None to find it from the byte order mark; ``delimiter``: a character, ``tab`` or ``\\t``, None to find it.

        Raises UserError if the file can't be read or has no usable header.
        """
        self.path = path
        given = None if delimiter is None else _given_delimiter(delimiter)
        with reading(path):
            self._encoding = choose_encoding(path, encoding)
            self._delimiter = given or self._find_delimiter()
            with closing(self._lines()) as lines:
                _, headers = self._header(_reader(lines, self._delimiter))
        self.info = TableInfo(str(path.absolute()), "csv", headers, self._encoding, self._delimiter)

    def rows(self) -> Iterator[RawRow]:
        with reading(self.path), closing(self._lines()) as lines:
            reader = _reader(lines, self._delimiter)
            number, headers = self._header(reader)
            if headers != self.info.headers:
                raise UserError(at(self.path, number, "the header changed since the table was opened"))
            yield from self._rows(reader, len(headers))

    def _lines(self) -> Generator[str, None, None]:
        return text_lines(self.path, self._encoding)

    def _find_delimiter(self) -> str:
        size, sample = 0, []
        with closing(self._lines()) as lines:
            for line in lines:
                sample.append(line)
                if (size := size + len(line)) >= _SAMPLE:
                    break
        return find_delimiter(sample)

    def _header(self, reader: Any) -> tuple[int, tuple[str, ...]]:
        """The number of the header's line, and the names of the columns."""
        for line, cells, error in _filled(reader):
            problem = undecoded("".join(cells), self._encoding) if error is None else self._quoting(line, reader, error)
            if problem is not None:
                raise UserError(at(self.path, line, problem))
            check_headers(f"{self.path}, line {line}", cells)
            return line, tuple(cells)
        raise UserError(f"{self.path}: csv input must include a header row")

    def _rows(self, reader: Any, width: int) -> Iterator[RawRow]:
        encoding = self._encoding
        for line, cells, error in _filled(reader):
            if error is not None:
                yield RawRow(line, (), self._quoting(line, reader, error))
            elif len(cells) != width:
                yield RawRow(line, self._readable(cells), _ragged(len(cells), width))
            elif (text := "".join(cells)).isascii() or (problem := undecoded(text, encoding)) is None:
                yield RawRow(line, cells)
            else:
                yield RawRow(line, self._readable(cells), problem)

    def _readable(self, cells: Sequence[str]) -> list[str | None]:
        return [None if undecoded(cell, self._encoding) else cell for cell in cells]

    def _quoting(self, line: int, reader: Any, error: str) -> str:
        """What is wrong with the quoting of a record, in a sentence. Raises UserError if nothing behind it can be read."""
        if error.startswith(_TOO_LONG):
            problem = f"a cell is longer than {MAX_LENGTH >> 20} MiB; is a quote left open?"
            raise UserError(at(self.path, line, f"{problem} Nothing behind it can be read"))
        last = reader.line_num
        if error.startswith(_CUT_OFF):
            taken = f"; everything from here to the end, line {last}, is inside it" if last > line else ""
            return f"a quote in this row is never closed{taken}"
        return f"broken quoting{f' on line {last}' if last > line else ''}: {error}"


def find_delimiter(sample: Sequence[str]) -> str:
    """The delimiter of a table, from the lines at its beginning (see the module's docstring for the rule)."""
    best, chosen = (0.5, False, 1), ","
    for delimiter in _DELIMITERS:
        widths = _widths(sample, delimiter)
        width, rows = widths[0] if widths else 0, widths[1:]
        share = rows.count(width) / len(rows) if rows else 1.0
        fit = (share, delimiter == ",", width)
        if width > 1 and share > 0.5 and fit > best:
            best, chosen = fit, delimiter
    return chosen


def _widths(sample: Iterable[str], delimiter: str) -> list[int]:
    """How many cells each row of a sample has: 0 where the quoting is broken. One that the sample cuts off is left out."""
    records = _filled(_reader(sample, delimiter))
    return [len(cells) for _, cells, error in records if error is None or not error.startswith(_CUT_OFF)]


def csv_records(path: Path, required: str | None = None) -> Iterator[Record]:
    """The rows of a dataset as objects. ``required``: a column that must be there. Raises UserError if the header can't be used."""
    text = _Utf8Lines(path)
    reader = _reader(text, ",")
    names = _dataset_header(path, reader, required)
    text.damage = None
    for number, cells, error in _records(reader):
        damage, text.damage = text.damage, None
        if error is not None:
            yield Record(number, None, f"invalid CSV: {error}")
        elif damage is not None:
            yield Record(number, None, damage)
        elif len(cells) > len(names):
            yield Record(number, None, f"{len(cells)} cells, but the header has {len(names)}")
        elif cells:
            yield Record(number, dict(zip(names, cells, strict=False)))


class _Utf8Lines:
    """The text lines of a file. ``damage``: what was wrong with one of those given since it was last cleared."""

    def __init__(self, path: Path) -> None:
        self._lines = numbered_lines(path, MAX_VALUE)
        self.damage: str | None = None

    def __iter__(self) -> Iterator[str]:
        for _, line, problem in self._lines:
            text = "\n"
            if problem is None:
                text = line.decode(errors="replace")
                problem = "invalid UTF-8" if "\ufffd" in text and not _is_utf8(line) else None
            self.damage = problem or self.damage
            yield text


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _dataset_header(path: Path, reader: Any, required: str | None) -> list[str]:
    header = next((record for record in _records(reader) if record[1] or record[2] is not None), None)
    if header is None:
        raise UserError(f"the dataset file is empty: {path}")
    _, cells, error = header
    if error is not None:
        raise UserError(f"{path}: line {reader.line_num}: invalid CSV: {error}")
    names = [cell.strip() or f"column_{number}" for number, cell in enumerate(cells, 1)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: the header names the column {twice!r} twice")
    if required is not None and required not in names:
        raise UserError(f'{path}: the header has no "{required}" column')
    return names


def _filled(reader: Any) -> Iterator[tuple[int, list[str], str | None]]:
    """All records that are not blank."""
    return (record for record in _records(reader) if record[2] is not None or any(record[1]))


def _records(reader: Any) -> Iterator[tuple[int, list[str], str | None]]:
    """All records, each with the line where it begins. Those with broken quoting have no cells, but the csv module's error."""
    line = reader.line_num
    while True:
        try:
            for cells in reader:
                first, line = line + 1, reader.line_num
                yield first, cells, None
            return
        except csv.Error as error:
            first, line = line + 1, reader.line_num
            yield first, [], str(error)


def _reader(lines: Iterable[str], delimiter: str) -> Any:
    # The limit is the csv module's own, for the whole process; it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LENGTH))
    return csv.reader(lines, delimiter=delimiter, strict=True)


def _ragged(count: int, width: int) -> str:
    return f"row has {count} field{'s' if count > 1 else ''} but the header has {width}"


def _given_delimiter(text: str) -> str:
    delimiter = _NAMED_DELIMITERS.get(text.lower(), text)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise UserError(f"the delimiter {text!r} can't be used; give one character (not a quote or a line end), or tab")
    return delimiter


# --- Exports: RFC 4180 in UTF-8 without a byte order mark, lines ended by LF, quotes only where they are needed

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
