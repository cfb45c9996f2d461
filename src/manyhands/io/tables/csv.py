"""CSV tables and datasets, streamed through the standard ``csv`` module.

The format is RFC 4180's with the freedoms that files in use take: lines end in LF, CRLF or a lone CR (kept as they are inside quotes),
cells are never trimmed, a quote counts only at the beginning of a cell, NUL characters are text. Blank lines and rows whose
cells are all empty are left out, before the header too; a row of spaces is a row. What separates the cells and where the header is, is
found by looking (``dialects``).

**Ragged rows** keep their cells: one with more cells than the header goes on in columns that are called by their numbers (``column_7``),
one with fewer has empty cells at its end. Empty cells behind the header's last name are no columns. A row with too many cells
(``MAX_EXTRA`` more than the header) is a bad row.

**Broken quoting** (text behind a closing quote) makes a bad row, and reading goes on with the next line. Where the broken cell was
meant to end can't be known: lines that were meant to be inside it come out as rows of their own, good or bad. A quote that is never
closed takes everything behind it: all of that is one bad row, which ends the table.

**In datasets**, names are taken without the blanks around them, and a short row lacks its last fields.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, as_text, without_surrogates
from manyhands.core.text import counted
from manyhands.io.tables.base import (
    MAX_LENGTH,
    OTHER_HEADER,
    MissingColumn,
    RawRow,
    Record,
    TableInfo,
    Unit,
    Values,
    at,
    column_names,
    nameless_notice,
    numbered_name,
    reading,
    titles_notice,
)
from manyhands.io.tables.dialects import (
    CUT_OFF,
    SAMPLE,
    SEPARATORS,
    UNSPLIT,
    csv_reader,
    csv_rows,
    find_dialect,
    line_of_dashes,
)
from manyhands.io.tables.text import Damaged, choose_encoding, text_lines, undecoded

MAX_EXTRA = 1000
"""Cells that a row may have beyond the header's last."""
_NAMED_DELIMITERS = {"tab": "\t", "\\t": "\t"}
_SHOWN_LINES = 5
_TOO_LONG = "field larger than field limit"
"""The beginning of the csv module's own error."""
_LAID_OUT = "a line of dashes, as in a table laid out for reading: write it as CSV (psql --csv, mysql --batch), or give --delimiter"


class CsvFile:
    """A CSV file whose header has been read. Its rows have as many cells as they have in the file."""

    def __init__(
        self, path: Path, encoding: str | None = None, delimiter: str | None = None, header_row: int | None = None
    ) -> None:
        """``encoding``: None to find it from the byte order mark; ``delimiter``: a character, ``tab`` or ``\\t``, ``header_row``: the line
        of the header, from 1; None to find these by looking.

        Raises UserError if the file can't be read or has no usable header.
        """
        self.path = path
        given = None if delimiter is None else given_delimiter(delimiter)
        with reading(path):
            self.encoding = choose_encoding(path, encoding)
            sample = self._sample()
            if given is None and header_row is None and (rule := line_of_dashes(sample)) is not None:
                raise UserError(at(path, rule, _LAID_OUT))
            self.dialect = find_dialect(sample, given, header_row)
            self._is_delimiter_given = given is not None
            with closing(self._records()) as records:
                self._header_line, self.header = self._read_header(records)

    @property
    def where(self) -> str:
        """The header's place, for messages."""
        return f"{self.path}, line {self._header_line}"

    def rows(self) -> Iterator[RawRow]:
        """The rows below the header that are not blank. Raises UserError if the rest of the file can't be read."""
        most = len(self.header) + MAX_EXTRA
        with reading(self.path), closing(self._records()) as records:
            line, header = self._read_header(records)
            if header != self.header:
                raise UserError(at(self.path, line, "the header changed since the table was opened"))
            for row in records:
                if len(row.cells) > most and _extent(row.cells) > most:
                    problem = f"{len(row.cells):,} cells, but the header has {len(self.header):,}"
                    yield RawRow(row.line, row.cells, problem)
                else:
                    yield row

    def _sample(self) -> list[str]:
        size: int = 0
        sample: list[str] = []
        with closing(text_lines(self.path, self.encoding)) as lines, suppress(Damaged):
            for line in lines:
                sample.append(line)
                if (size := size + len(line)) >= SAMPLE:
                    break
        return sample

    def _records(self) -> Generator[RawRow, None, None]:
        """The header and the rows below it, without blank ones."""
        skipped, encoding = self.dialect.header_line - 1, self.encoding
        delimiter = UNSPLIT if self.dialect.is_whole else self.dialect.delimiter
        with closing(text_lines(self.path, encoding)) as lines:
            reader = csv_reader(islice(lines, skipped, None), delimiter)
            for line, cells, error in csv_rows(reader, skipped):
                if error is not None:
                    yield RawRow(line, (), self._quoting(line, reader.line_num + skipped, error))
                elif not any(cells):
                    continue
                elif (text := "".join(cells)).isascii() or (problem := undecoded(text, encoding)) is None:
                    yield RawRow(line, cells)
                else:
                    yield RawRow(line, [None if undecoded(cell, encoding) else cell for cell in cells], problem)

    def _read_header(self, records: Iterator[RawRow]) -> tuple[int, tuple[str, ...]]:
        row = next(records, None)
        if row is None:
            below = f" in or below line {self.dialect.header_line}" if self.dialect.header_line > 1 else ""
            raise UserError(f"{self.path}: csv input must include a header row{below}")
        if row.problem is not None:
            raise UserError(at(self.path, row.line, row.problem))
        return row.line, tuple(map(str, row.cells))

    def _quoting(self, line: int, last: int, error: str) -> str:
        """What is wrong with the quoting of a record, in a sentence. Raises UserError if nothing behind it can be read."""
        if error.startswith(_TOO_LONG):
            problem = f"a cell is longer than {MAX_LENGTH >> 20} MiB; is a quote left open?"
            raise UserError(at(self.path, line, f"{problem} Nothing behind it can be read"))
        if error.startswith(CUT_OFF):
            taken = f"; everything from here to the end, line {last}, is inside it" if last > line else ""
            return f"a quote in this row is never closed{taken}"
        error = error.replace(f"'{UNSPLIT}'", "the end of the row")
        return f"broken quoting{f' on line {last}' if last > line else ''}: {error}"

    @property
    def notices(self) -> list[str]:
        """What was decided by looking at the beginning."""
        dialect, found = self.dialect, []
        if not self._is_delimiter_given and (dialect.delimiter != "," or dialect.stated):
            separator = SEPARATORS.get(dialect.delimiter, repr(dialect.delimiter))
            how = ", as its first line says" if dialect.stated else "; --delimiter sets another separator"
            decimals = ", and numbers have decimal commas" if dialect.decimal_comma else ""
            found.append(f"{self.path}: the cells are separated by {separator}{decimals}{how}")
        elif dialect.decimal_comma:
            found.append(f"{self.path}: numbers are taken to have decimal commas (1,5 is 1.5)")
        if dialect.has_commas:
            found.append(f"{self.where}: one column, so its rows are read whole; --delimiter=, splits them at commas")
        if dialect.titles:
            found.append(f"{self.where}: {titles_notice(dialect.titles)}")
        return found


class CsvTable:
    """A CSV table whose columns are known, also those of longer rows: to learn them, it is read once through when it is opened."""

    unit: Unit = "line"

    def __init__(
        self, path: Path, encoding: str | None = None, delimiter: str | None = None, header_row: int | None = None
    ) -> None:
        """As for ``CsvFile``. Raises UserError for names that come twice, too."""
        self.path = path
        self._file = file = CsvFile(path, encoding, delimiter, header_row)
        names = column_names(file.where, file.header, OTHER_HEADER)
        ragged = _Ragged(len(names), file.rows())
        beyond = [numbered_name(position, names) for position in range(len(names) + 1, ragged.width + 1)]
        self.info = TableInfo(
            str(path.absolute()),
            "csv",
            (*names, *beyond),
            file.encoding,
            None if file.dialect.is_whole else file.dialect.delimiter,
            header_row=header_row,
            decimal_comma=file.dialect.decimal_comma,
        )
        self.notices = (
            *file.notices,
            *nameless_notice(file.where, file.header, names),
            *ragged.notices(path, beyond),
        )

    def rows(self) -> Iterator[RawRow]:
        width = len(self.info.headers)
        for row in self._file.rows():
            missing = width - len(row.cells)
            if not missing or row.problem is not None:
                yield row
            else:
                yield RawRow(row.line, [*row.cells[:width], *[""] * missing])


class _Ragged:
    """The rows that have not as many cells as the header. ``width``: cells of the longest one, empty ones at its end apart."""

    def __init__(self, width: int, rows: Iterable[RawRow]) -> None:
        self.width = self._header = width
        self._longer: list[int] = []
        self._shorter: list[int] = []
        self._counts = [0, 0]
        for row in rows:
            if row.problem is None and len(row.cells) != width:
                self._add(row)

    def _add(self, row: RawRow) -> None:
        shorter = len(row.cells) < self._header
        extent = 0 if shorter else _extent(row.cells)
        if shorter or extent > self._header:
            self._counts[shorter] += 1
            lines = self._shorter if shorter else self._longer
            lines += [row.line] * (len(lines) < _SHOWN_LINES)
        self.width = max(self.width, extent)

    def notices(self, path: Path, beyond: Sequence[str]) -> list[str]:
        """What to say of them. ``beyond``: the names of the columns behind the header's."""
        longer, shorter = self._counts
        found = []
        if longer:
            columns = beyond[0] if len(beyond) == 1 else f"{beyond[0]} to {beyond[-1]}"
            kept = "the others are" if len(beyond) > 1 else "the other is"
            found.append(f"{path}: {_rows_in(longer, self._longer, 'more')}: {kept} kept in {columns}")
        if shorter:
            found.append(f"{path}: {_rows_in(shorter, self._shorter, 'fewer')}: empty ones are added")
        return found


def _rows_in(count: int, lines: Sequence[int], how: str) -> str:
    where = ", ".join(map(str, lines)) + (", …" if count > len(lines) else "")
    have = "has" if count == 1 else "have"
    return f"{counted(count, 'row')} (line{'s' if count > 1 else ''} {where}) {have} {how} cells than the header"


def _extent(cells: Sequence[Json]) -> int:
    """The number of cells without empty ones at the end."""
    return next((index for index in range(len(cells), 0, -1) if cells[index - 1]), 0)


def csv_records(file: CsvFile, required: str | None = None) -> Iterator[Record]:
    """The rows of a dataset as objects; one that is damaged from some point on ends with a problem. ``required``: a column that must be
    there.

    Raises UserError if the header can't be used.
    """
    names = list(column_names(file.where, [name.strip() for name in file.header], OTHER_HEADER))
    if required is not None and required not in names:
        raise MissingColumn(f'{file.path}: the header has no "{required}" column', names)
    try:
        for line, cells, problem in file.rows():
            yield Record(line, None, problem) if problem is not None else Record(line, _fields(cells, names, file))
    except Damaged as error:
        yield Record(error.line, None, error.problem)


def _fields(cells: Sequence[Json], names: list[str], file: CsvFile) -> dict[str, Json]:
    """A row by the names of its columns; those of cells beyond the header are added to ``names``."""
    extent = len(cells) if len(cells) <= len(file.header) else max(_extent(cells), len(file.header))
    for position in range(len(names) + 1, extent + 1):
        names.append(numbered_name(position, names))
    return dict(zip(names, cells[:extent], strict=False))


def given_delimiter(text: str) -> str:
    """The delimiter that a person named: a character, ``tab`` or ``\\t``. Raises UserError for what can't be one."""
    delimiter = _NAMED_DELIMITERS.get(text.lower(), text)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise UserError(f"the delimiter {text!r} can't be used; give one character (not a quote or a line end), or tab")
    return delimiter


# --- Exports: RFC 4180 in UTF-8, lines ended by LF, quotes only where they are needed; a byte order mark only for spreadsheet programs

_FORMULA = re.compile(r"[=+\-@\t\r\n\0＝＋－＠]")
"""What makes spreadsheet programs take a cell for a formula where it comes first: the characters that OWASP names under "CSV Injection"."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WRITTEN_AS_THEY_ARE = frozenset({str, int, type(None)})
_BOM = codecs.BOM_UTF8


def write_csv(
    handle: BinaryIO,
    names: Sequence[str],
    rows: Iterable[Values],
    *,
    delimiter: str = ",",
    decimal_comma: bool = False,
    excel_safe: bool = False,
) -> int:
    """Write the header and the rows; returns how many rows. As ``csv_lines`` makes them."""
    lines = csv_lines(names, rows, delimiter=delimiter, decimal_comma=decimal_comma, excel_safe=excel_safe)
    handle.write(next(lines))
    written = 0
    for line in lines:
        handle.write(line)
        written += 1
    return written


def csv_lines(
    names: Sequence[str],
    rows: Iterable[Values],
    *,
    delimiter: str = ",",
    decimal_comma: bool = False,
    excel_safe: bool = False,
) -> Iterator[bytes]:
    """The header, then each row. ``decimal_comma``: numbers have one. ``excel_safe``: spreadsheet programs read it as UTF-8, by its byte
    order mark, and take no cell for a formula (see ``harmless``)."""
    write = line_writer(delimiter)
    text_of = _cell_text_with_comma if decimal_comma else cell_text
    header = [harmless(name) for name in names] if excel_safe else list(names)
    yield (_BOM if excel_safe else b"") + _guarded(write(header), header[0] if header else "")
    for row in rows:
        cells = [value if type(value) in _WRITTEN_AS_THEY_ARE else text_of(value) for value in row]
        yield write([_harmless_value(cell, decimal_comma) for cell in cells] if excel_safe else cells)


def cell_text(value: Json) -> str:
    """A value as a cell: text as it is, null as nothing, anything else as compact JSON."""
    return "" if value is None else as_text(value)


def _cell_text_with_comma(value: Json) -> str:
    return cell_text(value).replace(".", ",") if isinstance(value, float) else cell_text(value)


def harmless(cell: str, *, decimal_comma: bool = False) -> str:
    """The cell with an apostrophe before it if a spreadsheet program might take it for a formula; numbers stay as they are.

    Who reads the file back gets the apostrophe with it.
    """
    number = cell.replace(",", ".", 1) if decimal_comma else cell
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(number) else cell


def _harmless_value(value: Json, decimal_comma: bool) -> Json:
    return harmless(value, decimal_comma=decimal_comma) if isinstance(value, str) else value


class _Echo:
    """What ``csv.writer`` writes to, so that it gives the line back."""

    def write(self, text: str) -> str:
        return text


def line_writer(delimiter: str = ",") -> Callable[[Sequence[Json]], bytes]:
    """What makes a line of cells, with its end. Numbers are written as Python does."""
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
