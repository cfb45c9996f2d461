"""Tables of every format, opened and streamed: CSV, JSON Lines, Parquet.

What names of files say of the format that results are written in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.io.tables.base import RawRow, Table, TableFormat, Unit, at, check_file, known_columns, shown
from manyhands.io.tables.csv import CsvTable
from manyhands.io.tables.json_lines import JsonLinesTable
from manyhands.io.tables.parquet import ParquetTable

__all__ = ["RawRow", "Table", "Unit", "at", "format_of_table", "known_columns", "open_table", "shown"]

_FORMATS: dict[str, TableFormat] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_NO_TABLES = {
    ".json": "write one JSON object a line, in a .jsonl file",
    ".xlsx": "save the sheet as CSV",
    ".xls": "save the sheet as CSV",
    ".ods": "save the sheet as CSV",
}


def open_table(
    path: Path, *, format: TableFormat | None = None, encoding: str | None = None, delimiter: str | None = None
) -> Table:
    """Open a table and read its header. What is not given is found out: the format from the name (``.jsonl`` and
    ``.ndjson``, ``.parquet``, anything else is CSV; text also with ``.gz`` behind), the encoding from the byte order mark
    (else UTF-8), the delimiter as ``table_csv`` describes (a ``.tsv`` has tabs).

    Raises UserError, in one line that names the file and the place, if the table or its header can't be used.
    """
    chosen = format or format_of_table(path)
    check_file(path)
    _check_settings(chosen, encoding, delimiter)
    if chosen == "parquet":
        return ParquetTable(path)
    if chosen == "jsonl":
        return JsonLinesTable(path, encoding)
    if delimiter is None and _suffix(path) == ".tsv":
        delimiter = "tab"
    return CsvTable(path, encoding, delimiter)


def format_of_table(path: Path) -> TableFormat:
    """The format that a file's name stands for. Raises UserError for names of what is no table."""
    suffix = _suffix(path)
    if suffix in _NO_TABLES:
        raise UserError(f"{path}: a {suffix} file is not a table that can be read here; {_NO_TABLES[suffix]}")
    return _FORMATS.get(suffix, "csv")


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _check_settings(format: TableFormat, encoding: str | None, delimiter: str | None) -> None:
    if delimiter is not None and format != "csv":
        raise UserError(f"a delimiter is for csv tables; this one is read as {format}")
    if encoding is not None and format == "parquet":
        raise UserError("an encoding is for tables that are text; this one is read as parquet")


SUFFIXES: Mapping[TableFormat, str] = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet"}
NAMES: Mapping[str, str] = {"csv": "CSV", "jsonl": "JSON Lines", "parquet": "Parquet"}
"""What formats are called in messages."""
_NAMED: Mapping[str, TableFormat] = {**{end: name for name, end in SUFFIXES.items()}, ".tsv": "csv", ".ndjson": "jsonl"}
_OTHER_FORMATS = frozenset(
    (
        *(".json", ".yaml", ".yml", ".toml", ".xml", ".html", ".htm", ".md", ".pdf"),
        *(".xlsx", ".xls", ".ods", ".db", ".sqlite", ".arrow", ".feather", ".orc", ".avro"),
        *(".zip", ".bz2", ".xz", ".zst", ".tar", ".tgz", ".7z"),
    )
)
"""Endings that promise what is not written."""


def format_in_name(path: Path) -> TableFormat | None:
    """The format that a file's name stands for, if it says one; text also with ``.gz`` behind."""
    return _NAMED.get(_ending(path))


def format_of(path: Path) -> TableFormat:
    """What a file of this name holds where nobody says; CSV unless its name says otherwise."""
    return format_in_name(path) or "csv"


def check_name(path: Path, format: TableFormat | None = None) -> None:
    """Raises UserError for a name that promises another format than those that are written, unless the person named one (``format``),
    and for one that says that Parquet is packed."""
    ending = _ending(path)
    if format is None and ending in _OTHER_FORMATS:
        known = ", ".join(_NAMED)
        raise UserError(
            f"{path}: results are not written as {ending}; let it end in one of {known}, or name the format"
        )
    if (format or format_of(path)) == "parquet" and path.suffix.lower() == ".gz":
        raise UserError(f"{path}: Parquet is compressed in itself; leave out .gz")


def _ending(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix
