"""Tables of every format, opened and streamed: CSV, JSON Lines, Parquet."""

from __future__ import annotations

from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.csv_jobs.rows import TableFormat
from manyhands.csv_jobs.table_base import RawRow, Table, Unit, at, check_file, known_columns, shown
from manyhands.csv_jobs.table_csv import CsvTable
from manyhands.csv_jobs.table_jsonl import JsonLinesTable
from manyhands.csv_jobs.table_parquet import ParquetTable

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
