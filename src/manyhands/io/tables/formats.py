"""The formats of tables, each by its name and by the endings of its files, and the opening of tables and datasets of every format.

A package brings further ones by entry points of the group ``manyhands.table_formats``, each of them a ``TableFormat``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.io.plugins import plugins
from manyhands.io.tables.base import (
    OTHER_HEADER,
    Record,
    Records,
    Table,
    Unit,
    Values,
    check_file,
    check_regular_file,
    column_names,
    reading,
)
from manyhands.io.tables.csv import CsvFile, CsvTable, csv_records, write_csv
from manyhands.io.tables.json import (
    JsonLinesTable,
    ObjectsTable,
    holds_json_lines,
    json_records,
    line_records,
    write_jsonl,
)
from manyhands.io.tables.parquet import ParquetTable, check_parquet, dataset_batches, parquet_records
from manyhands.io.tables.text import Damaged
from manyhands.io.tables.xlsx import XlsxTable, write_xlsx

PLUGINS = "manyhands.table_formats"


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A format of tables."""

    name: str
    """What options call it."""
    title: str
    """What messages call it."""
    suffixes: tuple[str, ...]
    """Endings of its files in lower case, the usual one first."""
    read: Callable[[Path], Iterable[Mapping[str, Json]]] | None = None
    """Gives the rows of a file in order, each as an object; it is called once for each reading. What it raises as OSError or ValueError is
    shown to the person. None: a format of another package can't be read."""
    write: Callable[[BinaryIO, Sequence[str], Iterable[Values]], int] | None = None
    """Writes rows under the names of their columns to a file; returns how many rows. None: a format of another package can't be
    written."""
    text: bool = False
    """Whether its files may be packed with gzip and then end in ``.gz`` besides."""

    @property
    def writable(self) -> bool:
        """Whether results can be written in it."""
        return self.write is not None or self is PARQUET


CSV = TableFormat("csv", "CSV", (".csv", ".tsv"), write=write_csv, text=True)
JSON_LINES = TableFormat("jsonl", "JSON Lines", (".jsonl", ".ndjson"), write=write_jsonl, text=True)
PARQUET = TableFormat("parquet", "Parquet", (".parquet",))
"""Its writer, ``parquet_writer``, needs the types of the columns, too."""
XLSX = TableFormat("xlsx", "a spreadsheet", (".xlsx",), write=write_xlsx)
JSON = TableFormat("json", "JSON", (".json",), text=True)
"""For datasets only, and not written."""
BUILTIN = {format.name: format for format in (CSV, JSON_LINES, PARQUET, XLSX)}
"""By name, in the order in which people read them."""
_NO_TABLES = {
    ".json": "write one JSON object a line, in a .jsonl file",
    ".xlsm": "save the sheet as .xlsx or CSV",
    ".xls": "save the sheet as .xlsx or CSV",
    ".ods": "save the sheet as .xlsx or CSV",
}
_NEVER_WRITTEN = frozenset(
    (
        *(".json", ".yaml", ".yml", ".toml", ".xml", ".html", ".htm", ".md", ".pdf"),
        *(".xlsm", ".xls", ".ods", ".db", ".sqlite", ".arrow", ".feather", ".orc", ".avro"),
        *(".zip", ".bz2", ".xz", ".zst", ".tar", ".tgz", ".7z"),
    )
)
"""Endings that promise what is not written, unless another package writes it."""


def formats() -> dict[str, TableFormat]:
    """All formats of tables by name. Raises UserError for one of another package that can't be loaded."""
    return {**BUILTIN, **{name: format for name, format in _plugins().items() if name not in BUILTIN}}


def format_named(name: str) -> TableFormat:
    """The format of a name. Raises UserError for an unknown one."""
    found = BUILTIN.get(name) or _plugins().get(name)
    if found is None:
        raise UserError(f"unknown table format {name!r}: choose {', '.join(formats())}")
    return found


def format_in_name(path: Path) -> TableFormat | None:
    """The format that a file's name stands for, if it says one; also with ``.gz`` behind."""
    suffix = suffix_of(path)
    return _with_suffix(BUILTIN, suffix) or (_with_suffix(_plugins(), suffix) if suffix else None)


def suffix_of(path: Path) -> str:
    """The ending of a file's name in lower case, that for gzip left out: ``.csv`` of ``T.CSV.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _with_suffix(known: Mapping[str, TableFormat], suffix: str) -> TableFormat | None:
    return next((format for format in known.values() if suffix in format.suffixes), None)


@cache
def _plugins() -> dict[str, TableFormat]:
    found: dict[str, TableFormat] = {}
    for entry in plugins(PLUGINS).values():
        try:
            format = entry.load()
        except Exception as error:
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise UserError(f"table format {entry.name!r} ({entry.value}) can't be loaded: {problem}") from error
        if not isinstance(format, TableFormat):
            raise UserError(
                f"table format {entry.name!r} ({entry.value}) is not a manyhands.io.tables.formats.TableFormat"
            )
        found[format.name] = format
    return found


# --- Tables


def open_table(
    path: Path,
    *,
    format: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    header_row: int | None = None,
    sheet: str | None = None,
) -> Table:
    """Open a table and read its header. What is not given is found out: the format, by its name, from the file's (CSV where that says
    none), the encoding from the byte order mark (else UTF-8), the delimiter (a ``.tsv`` has tabs) and the header from the first rows; the
    sheet is the first one.

    Raises UserError, in one line that names the file and the location, if the table or its header can't be used.
    """
    chosen = format_of_table(path) if format is None else format_named(format)
    check_file(path)
    _check_settings(chosen, encoding=encoding, delimiter=delimiter, header_row=header_row, sheet=sheet)
    if chosen is PARQUET:
        return ParquetTable(path)
    if chosen is XLSX:
        return XlsxTable(path, sheet, header_row)
    if chosen is JSON_LINES:
        return JsonLinesTable(path, encoding)
    if chosen is not CSV:
        return _PluginTable(path, chosen)
    return CsvTable(path, encoding, _delimiter_of(path, delimiter), header_row)


def _check_settings(format: TableFormat, **given: object) -> None:
    """Raises UserError for a setting that a format has no use for."""
    fitting = {
        "encoding": ("an encoding is for tables that are text", format.text),
        "delimiter": ("a delimiter is for csv tables", format is CSV),
        "header_row": ("a header row is for csv tables and spreadsheets", format in (CSV, XLSX)),
        "sheet": ("a sheet is for spreadsheets", format is XLSX),
    }
    for name, (rule, fits) in fitting.items():
        if given[name] is not None and not fits:
            raise UserError(f"{rule}; this one is read as {format.name}")


def _delimiter_of(path: Path, given: str | None) -> str | None:
    return "tab" if given is None and suffix_of(path) == ".tsv" else given


def format_of_table(path: Path) -> TableFormat:
    """The format that a table's name stands for: CSV unless it says another. Raises UserError for names of what is no table."""
    found = format_in_name(path)
    suffix = suffix_of(path)
    if found is None and suffix in _NO_TABLES:
        raise UserError(f"{path}: a {suffix} file is not a table that can be read here; {_NO_TABLES[suffix]}")
    return found or CSV


class _PluginTable(ObjectsTable):
    """A table of another package's format."""

    unit: Unit = "row"

    def __init__(self, path: Path, format: TableFormat) -> None:
        self._format = format
        super().__init__(path, format.name)

    def objects(self) -> Iterator[Record]:
        with reading(self.path):
            yield from _plugin_records(self.path, self._format)


def _plugin_records(path: Path, format: TableFormat) -> Iterator[Record]:
    if format.read is None:
        raise UserError(f"{path}: {format.title} is written here but not read")
    try:
        for number, row in enumerate(format.read(path), 1):
            yield Record(number, dict(row))
    except ValueError as error:
        raise UserError(f"{path}: not readable as {format.title}: {error}") from error


# --- Datasets


def open_records(
    path: Path,
    required: str | None = None,
    split: str | None = None,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    header_row: int | None = None,
    sheet: str | None = None,
) -> Records:
    """The records of a dataset file or folder.

    ``.json``, ``.csv``, ``.tsv``, ``.parquet``, ``.xlsx`` and formats of other packages are read as such, a folder as a Hugging Face
    dataset, anything else as JSON Lines; text also with ``.gz`` behind. ``required``: a column that a CSV file must have, or reading
    raises MissingColumn; ``split``: of a Hugging Face dataset with several. The others are as for ``open_table``; an encoding is for CSV
    only.

    Raises UserError, naming the path, if there is nothing to read.
    """
    if path.is_dir():
        return Records("row", _guarded(path, dataset_batches(path, split)))
    check_regular_file(path)
    if split is not None:
        raise UserError(f"{path}: --split is for a Hugging Face dataset folder, and this is a file")
    format = _format_of_dataset(path)
    text = format if format is CSV or encoding is None else replace(format, text=False)
    _check_settings(text, encoding=encoding, delimiter=delimiter, header_row=header_row, sheet=sheet)
    if format is PARQUET:
        check_parquet(path)
        return Records("row", _guarded(path, lambda: parquet_records(path)))
    if format is CSV:
        file = CsvFile(path, encoding, _delimiter_of(path, delimiter), header_row)
        return Records("line", _guarded(path, lambda: csv_records(file, required)))
    if format is XLSX:
        return Records("row", _guarded(path, lambda: _table_records(XlsxTable(path, sheet, header_row))))
    if format is JSON:
        return Records("row", _guarded(path, lambda: json_records(path)))
    if format is JSON_LINES:
        return Records("line", _guarded(path, lambda: line_records(path)))
    return Records("row", _guarded(path, lambda: _plugin_records(path, format)))


def dataset_notices(path: Path, **settings: Any) -> Sequence[str]:
    """What is decided by looking at a dataset, a line each. ``settings``: as for ``open_records``."""
    if not path.is_file() or (format := _format_of_dataset(path)) not in (CSV, XLSX):
        return ()
    try:
        return open_table(path, format=format.name, **settings).notices
    except Damaged:  # a bad row, where its rows are read
        delimiter = _delimiter_of(path, settings.get("delimiter"))
        return CsvFile(path, settings.get("encoding"), delimiter, settings.get("header_row")).notices


def _table_records(table: Table) -> Iterator[Record]:
    names = column_names(str(table.path), [name.strip() for name in table.info.headers], OTHER_HEADER)
    for row in table.rows():
        yield Record(row.line, dict(zip(names, row.cells, strict=True)))


def _format_of_dataset(path: Path) -> TableFormat:
    suffix, packed = suffix_of(path), path.suffix.lower() == ".gz"
    found = JSON if suffix in JSON.suffixes else format_in_name(path)
    if found is None or (packed and not found.text):
        return JSON_LINES
    return JSON_LINES if found is JSON and holds_json_lines(path) else found


def _guarded(path: Path, read: Callable[[], Iterator[Record]]) -> Callable[[], Iterator[Record]]:
    def guarded() -> Iterator[Record]:
        try:
            yield from read()
        except OSError as error:
            raise UserError(f"dataset file can't be read: {path}: {error.strerror or error}") from error

    return guarded


# --- Results


def format_of_results(path: Path) -> TableFormat:
    """What a file of this name holds where nobody says; CSV unless its name says otherwise."""
    return format_in_name(path) or CSV


def check_name(path: Path, format: str | None = None) -> None:
    """Raises UserError for a name that promises another format than those that are written, unless the person named one (``format``), for
    a format that is only read, and for a name that says that a format is packed which is not."""
    suffix = suffix_of(path)
    if format is None and suffix in _NEVER_WRITTEN and format_in_name(path) is None:
        written = [each.suffixes for each in formats().values() if each.writable]
        known = ", ".join([*(first for first, *_ in written), *(more for _, *others in written for more in others)])
        raise UserError(
            f"{path}: results are not written as {suffix}; let it end in one of {known}, or name the format"
        )
    chosen = format_of_results(path) if format is None else format_named(format)
    if not chosen.writable:
        raise UserError(f"{path}: results are not written as {chosen.title}, which is read only")
    if not chosen.text and path.suffix.lower() == ".gz":
        raise UserError(f"{path}: {chosen.title} is compressed in itself; leave out .gz")
