"""Spreadsheets (.xlsx), streamed through openpyxl (the extra ``xlsx``), which reads XML by defusedxml: no entities, no other files.

A sheet's rows are counted as spreadsheet programs count them. Its cells are JSON values: text, numbers and booleans as they are, dates and
times of day as ISO 8601 text, durations as ISO 8601 seconds (``PT90S``), nothing as null. Of a formula, it is the value that the program
which saved the file calculated; a formula that was never calculated is its text (``=A1+1``). Where the header is, is found by looking
(``dialects``); columns without a name and without a cell are left out.

Sheets are written with texts as texts, whatever they begin with, so that no cell becomes a formula; columns that held dates or times of day
throughout hold these again. Integers that a spreadsheet can't hold exactly become text.

A file may not unpack to much more than it could hold honestly: see ``_check_archive``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import date, datetime, time, timedelta
from importlib.util import find_spec
from itertools import islice, zip_longest
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, as_text, without_surrogates
from manyhands.core.text import counted, suggestion
from manyhands.io.tables.base import (
    OTHER_HEADER,
    RawRow,
    TableInfo,
    Unit,
    Values,
    at,
    column_names,
    first_line,
    missing_extra,
    nameless_notice,
    reading,
    titles_notice,
)
from manyhands.io.tables.dialects import SampleRow, title_rows

MAX_ROWS, MAX_COLUMNS, MAX_CELL = 1_048_576, 16_384, 32_767
"""The largest sheet, and the characters of a cell: Excel's specifications and limits."""
_OLD_OR_ENCRYPTED = b"\xd0\xcf\x11\xe0"
_SAMPLE_ROWS = 200
_MAX_MEMBERS = 10_000
_MAX_BYTES = 4 << 30
_MAX_TEXTS = 512 << 20
_MAX_OTHER = 64 << 20
"""Bytes that a file unpacks to: in all, the texts of cells (held in memory), any part that is neither these nor a sheet."""
_MAX_DIFFERENT = 2_000_000
"""Different texts of cells."""
_MAX_PARTS = 200_000
"""Elements of one text, which are held in memory together. A cell has at most 32,767 characters, each of which may be formatted alone."""
_MAX_RATIO, _SMALL = 200, 64 << 20
_FAULTS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, SyntaxError, TypeError, ValueError),
)
"""What openpyxl raises for files that are made up, besides what reading an archive does."""
_WITHIN = range(-(1 << 53), (1 << 53) + 1)
"""Integers that a cell holds exactly."""
_FORMULA_TAG, _OVERLAP = re.compile(rb"<(?:\w{1,40}:)?f[\s/>]"), 64
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_UNWRITABLE = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
"""What XML can't hold, and underscores that would be read as the beginning of an escape (ECMA-376, part 1, 22.9.2.19)."""
_ERRORS = frozenset(("#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A"))
_TIMES = {"date": date.fromisoformat, "datetime": datetime.fromisoformat, "time": time.fromisoformat}


class _Cell(NamedTuple):
    value: Json
    kind: str = ""
    """``date``, ``datetime`` or ``time`` where it is one, ``formula`` of one that was never calculated."""


_NOTHING = _Cell(None)
_CALCULATED_TO_NOTHING = _Cell("")
"""Of a formula whose value is empty text."""
_NO_ROW: tuple[int, list[_Cell]] = (0, [])
_FORMULA = "formula"


class XlsxTable:
    """A sheet whose columns are known. It is read once through when it is opened, to learn which have cells."""

    unit: Unit = "row"

    def __init__(self, path: Path, sheet: str | None = None, header_row: int | None = None) -> None:
        """``sheet``: None for the first one that is not hidden; ``header_row``: the number of the header's row, None to find it.

        Raises UserError if the file can't be read, has no such sheet or no usable header, or openpyxl is not installed.
        """
        self.path = path
        self._texts = _Texts(path)
        found: list[str] = []
        with _opened(path, self._texts) as book:
            self._sheet = _sheet_name(path, book, sheet, found)
            self._has_formulas = _holds_formulas(path)
        self._header_row, titles = self._find_header(header_row)
        where = f"{path}, sheet {self._sheet}, row {self._header_row}"
        if titles:
            found.append(f"{where}: {titles_notice(titles)}")
        survey = _Survey(self._rows())
        headers = survey.headers
        names = column_names(where, headers, OTHER_HEADER)
        self._columns = [index for index, name in enumerate(headers) if name.strip() or survey.kinds[index]]
        found += nameless_notice(where, [headers[n] for n in self._columns], [names[n] for n in self._columns])
        if survey.formulas:
            advice = "open and save the file in a spreadsheet program to have their values"
            found.append(f"{where}: {counted(survey.formulas, 'formula')} never calculated, read as text; {advice}")
        self.notices = tuple(found)
        times = tuple(survey.time_of(index) for index in self._columns)
        self.info = TableInfo(
            str(path.absolute()),
            "xlsx",
            tuple(names[index] for index in self._columns),
            header_row=header_row,
            sheet=self._sheet,
            times=times if any(times) else None,
        )

    def rows(self) -> Iterator[RawRow]:
        rows = self._rows()
        next(rows)
        for number, cells in rows:
            count = len(cells)
            yield RawRow(number, [cells[index].value if index < count else None for index in self._columns])

    def _rows(self, first: int | None = None) -> Iterator[tuple[int, list[_Cell]]]:
        """The rows that are not blank, from the header or the row with the number ``first`` on, without empty cells at their end."""
        start = first or self._header_row
        with ExitStack() as stack:
            values = _sheet_rows(self.path, stack.enter_context(_opened(self.path, self._texts))[self._sheet])
            formulas: Iterator[tuple[int, list[_Cell]]] = iter(())
            if self._has_formulas:
                book = stack.enter_context(_opened(self.path, self._texts, formulas=True))
                formulas = _sheet_rows(self.path, book[self._sheet])
            for (number, cells), (_, texts) in zip_longest(values, formulas, fillvalue=_NO_ROW):
                row = _with_formulas(cells, texts)
                while row and row[-1].value in (None, ""):
                    row.pop()
                if number >= start and row:
                    yield number, row

    def _find_header(self, given: int | None) -> tuple[int, list[str]]:
        """The number of the header's row, and what the rows above it say."""
        rows = list(islice(self._rows(given or 1), 1 if given else _SAMPLE_ROWS))
        if not rows:
            below = f" in or below row {given}" if given else ""
            raise UserError(
                f"{self.path}, sheet {self._sheet}: csv input must include a header row{below}; --sheet names another sheet"
            )
        width = max(len(cells) for _, cells in rows)
        sample, last = [], 0
        for number, cells in rows:
            texts = [_text(cell) for cell in cells] + [""] * (width - len(cells))
            sample.append(SampleRow(number, texts, apart=number > last + 1))
            last = number
        titles = title_rows(sample)
        return sample[titles].line, [" ".join(filter(None, row.cells)) for row in sample[:titles]]


class _Survey:
    """What a sheet's columns are."""

    def __init__(self, rows: Iterator[tuple[int, list[_Cell]]]) -> None:
        _, header = next(rows)
        self.headers = [_text(cell) for cell in header]
        self.kinds: list[set[str]] = [set() for _ in header]
        """The kinds of the cells that each column has; "" for what is no date and no time."""
        self.formulas = 0
        """Cells with a formula that was never calculated."""
        for _, cells in rows:
            for index, cell in enumerate(cells):
                if cell.value not in (None, ""):
                    self._add(index, cell.kind)

    def time_of(self, index: int) -> str:
        """The kind of all its cells, if they are dates or times."""
        kinds = self.kinds[index]
        return next(iter(kinds)) if len(kinds) == 1 and kinds <= _TIMES.keys() else ""

    def _add(self, index: int, kind: str) -> None:
        while index >= len(self.kinds):
            self.kinds.append(set())
            self.headers.append("")
        self.kinds[index].add(kind)
        self.formulas += kind == _FORMULA


def _sheet_name(path: Path, book: Any, wanted: str | None, notices: list[str]) -> str:
    """The title of the sheet to read."""
    titles: list[str] = [sheet.title for sheet in book.worksheets]
    listed = ", ".join(titles)
    if wanted is not None:
        if wanted not in titles:
            raise UserError(
                f"{path}: there is no sheet {wanted!r}{suggestion(wanted, titles)}; the sheets are: {listed}"
            )
        return wanted
    shown = [sheet.title for sheet in book.worksheets if sheet.sheet_state == "visible"] or titles
    if not shown:
        raise UserError(f"{path}: the file has no sheet with rows")
    if len(titles) > 1:
        notices.append(
            f"{path}: {shown[0]} is read, the first of {len(titles)} sheets ({listed}); --sheet names another"
        )
    return shown[0]


def _sheet_rows(path: Path, sheet: Any) -> Iterator[tuple[int, list[_Cell]]]:
    sheet.reset_dimensions()  # what the file says of its size may be wrong, and would cut it off
    for number, row in enumerate(sheet.iter_rows(), 1):
        if not row and number <= MAX_ROWS:  # one that the file leaves out, quickly
            continue
        if number > MAX_ROWS or len(row) > MAX_COLUMNS:
            raise UserError(
                at(path, number, f"a sheet has at most {MAX_ROWS:,} rows and {MAX_COLUMNS:,} columns", "row")
            )
        cells = [_cell(cell) if cell.value is not None else _nothing(cell) for cell in row]
        while cells and cells[-1].value is None:
            cells.pop()
        yield number, cells


def _nothing(cell: Any) -> _Cell:
    return _CALCULATED_TO_NOTHING if cell.data_type == "str" else _NOTHING


def _with_formulas(cells: list[_Cell], texts: list[_Cell]) -> list[_Cell]:
    """The cells of a row, with the texts of formulas where these have no value. ``texts``: the cells with formulas in place of values."""
    if all(cell.value is not None for cell in cells) and len(texts) <= len(cells):
        return cells
    return [
        _Cell(text.value, _FORMULA) if cell.value is None and text.value is not None else cell
        for cell, text in zip_longest(cells, texts, fillvalue=_NOTHING)
    ]


def _cell(cell: Any) -> _Cell:
    value = getattr(cell.value, "text", cell.value)  # of a formula over several cells
    if isinstance(value, str):
        return _Cell(_ESCAPED.sub(lambda found: chr(int(found[1], 16)), value))
    if isinstance(value, datetime):
        if value.time() == time.min and _is_date_format(cell.number_format):
            return _Cell(value.date().isoformat(), "date")
        return _Cell(value.isoformat(), "datetime")
    if isinstance(value, time):
        return _Cell(value.isoformat(), "time")
    if isinstance(value, timedelta):
        return _Cell(f"PT{value.total_seconds():.15g}S")
    is_json = isinstance(value, (bool, int)) or (isinstance(value, float) and isfinite(value))
    return _Cell(value if is_json else str(value))


def _is_date_format(format: str) -> bool:
    """Whether a number format shows a day without a time of day."""
    from openpyxl.styles.numbers import is_datetime

    return str(is_datetime(format)) == "date"


def _text(cell: _Cell) -> str:
    return "" if cell.value is None else as_text(cell.value)


@contextmanager
def _opened(path: Path, texts: _Texts, *, formulas: bool = False) -> Iterator[Any]:
    """A workbook. ``texts``: of this file. ``formulas``: cells hold these, not their values."""
    if find_spec("openpyxl") is None or find_spec("defusedxml") is None:
        raise missing_extra(path, "a spreadsheet", "xlsx")
    import zlib
    from zipfile import BadZipFile

    warnings.filterwarnings("ignore", module="openpyxl")  # of what it leaves out: pictures, checks of typed values
    with reading(path):
        _check_archive(path)
        try:
            book = _loaded(path, texts, formulas)
            try:
                yield book
            finally:
                book.close()
        except (*_FAULTS, EOFError, BadZipFile, zlib.error) as error:
            raise UserError(f"{path}: not a readable spreadsheet: {first_line(error)}") from error


def _loaded(path: Path, texts: _Texts, formulas: bool) -> Any:
    from openpyxl.reader.excel import SHARED_STRINGS, ExcelReader

    class Reader(ExcelReader):  # type: ignore[misc]
        """Reads the texts of cells as they are: openpyxl's own drops escapes, and reads as many as there are."""

        def read_strings(self) -> None:
            part = self.package.find(SHARED_STRINGS)
            if part is not None:
                with self.archive.open(part.PartName[1:]) as stream:
                    self.shared_strings = texts.read(stream)

    reader = Reader(path, read_only=True, data_only=not formulas, keep_links=False)
    reader.read()
    return reader.wb


class _Texts:
    """The texts that the cells of a file refer to: which takes most of the time, so that they are read again only if it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[tuple[int, ...], list[str]] | None = None

    def read(self, stream: Any) -> list[str]:
        """``stream``: the part of the file that has them."""
        status = self._path.stat()
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._known is None or self._known[0] != now:
            self._known = now, _read_texts(self._path, stream)
        return self._known[1]


def _read_texts(path: Path, stream: Any) -> list[str]:
    """All of them, without what is said of their pronunciation."""
    from openpyxl.xml.constants import SHEET_MAIN_NS
    from openpyxl.xml.functions import iterparse

    whole, plain, run = (f"{{{SHEET_MAIN_NS}}}{name}" for name in ("si", "t", "r"))
    texts: list[str] = []
    parts_held = 0
    for _, node in iterparse(stream):
        parts_held += 1
        if parts_held > _MAX_PARTS:
            raise UserError(f"{path}: a text of more than {_MAX_PARTS:,} parts; save the sheet as CSV")
        if node.tag == whole:
            parts = [part.find(plain) if part.tag == run else part for part in node if part.tag in (plain, run)]
            texts.append("".join(part.text or "" for part in parts if part is not None))
            node.clear()
            parts_held = 0
            if len(texts) > _MAX_DIFFERENT:
                raise UserError(f"{path}: more than {_MAX_DIFFERENT:,} different texts; save the sheet as CSV")
    return texts


def _check_archive(path: Path) -> None:
    """Raises UserError for a file that is no archive, or one that unpacks to more than a spreadsheet does."""
    from zipfile import BadZipFile, ZipFile

    with path.open("rb") as stream:
        if stream.read(4) == _OLD_OR_ENCRYPTED:
            problem = "an old workbook, or one with a password; save it as .xlsx without a password"
            raise UserError(f"{path}: {problem}")
    try:
        with ZipFile(path) as archive:
            members = archive.infolist()
    except (BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise UserError(f"{path}: not a readable spreadsheet: {first_line(error)}") from error
    total = sum(member.file_size for member in members)
    packed = path.stat().st_size
    if len(members) > _MAX_MEMBERS or total > _MAX_BYTES or (total > _SMALL and total > packed * _MAX_RATIO):
        raise UserError(f"{path}: unpacks to {total:,} bytes in {len(members):,} parts, which is no honest spreadsheet")
    for member in members:
        name = member.filename.lower()
        limit = _MAX_TEXTS if "sharedstrings" in name else _MAX_BYTES if "/worksheets/" in name else _MAX_OTHER
        if member.file_size > limit:
            raise UserError(f"{path}: its part {member.filename!r:.100} unpacks to more than {limit >> 20} MiB")


def _holds_formulas(path: Path) -> bool:
    """Whether a formula is in any sheet."""
    from zipfile import ZipFile

    with ZipFile(path) as archive:
        for member in archive.infolist():
            if "/worksheets/" in member.filename.lower():
                with archive.open(member) as part:
                    end = b""
                    while block := part.read(1 << 20):
                        if _FORMULA_TAG.search(end + block):
                            return True
                        end = block[-_OVERLAP:]
    return False


# --- Writing


def need_xlsx() -> Any:
    """openpyxl. Raises UserError if it is not installed."""
    try:
        import openpyxl
    except ImportError:
        raise UserError("writing .xlsx needs more libraries: pip install 'manyhands[xlsx]'") from None
    return openpyxl


def write_xlsx(
    handle: BinaryIO, names: Sequence[str], rows: Iterable[Values], *, times: Sequence[str] | None = None
) -> int:
    """Write the header and the rows as the only sheet of a workbook; returns how many rows. ``times``: what the first columns hold, as
    ``TableInfo`` has it.

    Raises UserError, naming the row and the column, for what a sheet can't hold.
    """
    openpyxl = need_xlsx()
    if len(names) > MAX_COLUMNS:
        raise UserError(f"a sheet has at most {MAX_COLUMNS:,} columns, and there are {len(names):,}; export as .csv")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Results")
    sheet.freeze_panes = "A2"
    writer = _SheetWriter(sheet, names, times or ())
    written = 0
    try:
        writer.write(names)
        for row in rows:
            writer.write(row)
            written += 1
        book.save(handle)
    except BaseException:
        for end in (
            sheet.close,
            lambda: sheet._writer.cleanup(),
        ):  # else its temporary file stays until this process ends
            with suppress(Exception):
                end()
        raise
    return written


class _SheetWriter:
    def __init__(self, sheet: Any, names: Sequence[str], times: Sequence[str]) -> None:
        self._sheet = sheet
        self._names = names
        self._times = {index: _TIMES[kind] for index, kind in enumerate(times) if kind}
        self._number = 0

    def write(self, row: Sequence[Json]) -> None:
        self._number += 1
        if self._number > MAX_ROWS:
            raise UserError(f"a sheet has at most {MAX_ROWS:,} rows; export as .csv")
        cells = [self._cell(index, value) for index, value in enumerate(row)]
        self._sheet.append(cells)

    def _cell(self, index: int, value: Json) -> Any:
        if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and value in _WITHIN):
            return value
        text = without_surrogates(as_text(value))
        if len(text.encode("utf-16-le")) > 2 * MAX_CELL:
            where = f"row {self._number}, column {self._names[index]!r:.80}"
            raise UserError(
                f"{where}: {len(text):,} characters, and a cell of a spreadsheet holds {MAX_CELL:,}; export as .csv"
            )
        if index in self._times and self._number > 1:
            return _restored(text, self._times[index])
        return self._text_cell(_UNWRITABLE.sub(lambda found: f"_x{ord(found[0]):04X}_", text))

    def _text_cell(self, text: str) -> Any:
        if not text.startswith("=") and text not in _ERRORS:
            return text
        from openpyxl.cell import WriteOnlyCell

        cell = WriteOnlyCell(self._sheet, text)
        cell.data_type = "s"  # else it were a formula, or an error
        return cell


def _restored(text: str, read: Any) -> Any:
    try:
        return read(text)
    except ValueError:
        return text
