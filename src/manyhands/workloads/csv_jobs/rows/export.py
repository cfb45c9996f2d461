"""Writing a job's table with what became of its rows: at any time, also while the job runs, and never half."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from typing import Any, BinaryIO, cast

from manyhands.core.errors import StorageError, UserError
from manyhands.engine.contract import RunReader
from manyhands.engine.journal.lock import LOCK
from manyhands.engine.journal.reader import JOURNAL
from manyhands.io.files import bytes_written_aside
from manyhands.io.tables.base import TableInfo
from manyhands.io.tables.formats import CSV, PARQUET, format_named, formats, suffix_of
from manyhands.io.tables.writers import write_csv
from manyhands.processes.strays import remove_asides
from manyhands.workloads.csv_jobs.rows.export_columns import Columns, read_results, read_rows, rfc3339
from manyhands.workloads.csv_jobs.rows.export_parquet import write_parquet
from manyhands.workloads.csv_jobs.rows.flatten import Leaf, leaves_of

_OWN_FILES = (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", LOCK)
_MAX_KEYS = 4096


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """``flatten``: a column for each property of the results besides. ``excel_safe``: no cell of a CSV file is taken for a formula by
    spreadsheet programs; such a file does not read back unchanged."""

    format: str = CSV.name
    flatten: bool = False
    excel_safe: bool = False


def write_export(
    reader: RunReader,
    headers: Sequence[str],
    schema: Mapping[str, Any] | None,
    table: TableInfo,
    target: Path,
    options: ExportOptions,
) -> int:
    """Write all rows in order, each with its cells and what became of it (``export_columns`` names the columns); returns how many.

    What is written is of one moment, and takes the place of ``target`` only when it is whole. Folders are made.
    A name that ends in ``.tsv`` gets tabs for commas, one that ends in ``.gz`` is packed: as a table of that name is read.

    Raises UserError for a target that must not be replaced, for an unknown format and where a library is missing,
    StorageError if it can't be written.
    """
    writable = [name for name, format in formats().items() if format.writable]
    if options.format not in writable:
        raise UserError(f"unknown export format {options.format!r}: choose {', '.join(writable)}")
    path = _usable(target, reader, table)
    with reader.snapshot():
        leaves = _leaves(reader, schema) if options.flatten else ()
        columns = Columns.of(headers, leaves)
        with bytes_written_aside(path) as handle, _packed(handle, path, options) as stream:
            return _write(stream, path, reader, columns, table, options)


def _write(
    handle: BinaryIO, path: Path, reader: RunReader, columns: Columns, table: TableInfo, options: ExportOptions
) -> int:
    format = format_named(options.format)
    if format is PARQUET:
        return write_parquet(handle, reader, columns, table)
    rows = read_rows(reader, columns, rfc3339)
    if format is CSV:
        delimiter = "\t" if suffix_of(path) == ".tsv" else ","
        return write_csv(handle, columns.names, rows, delimiter=delimiter, excel_safe=options.excel_safe)
    assert format.write is not None
    return format.write(handle, columns.names, rows)


@contextmanager
def _packed(handle: BinaryIO, path: Path, options: ExportOptions) -> Iterator[BinaryIO]:
    """What to write to: text is packed where the name says that it is."""
    if path.suffix.lower() != ".gz" or not format_named(options.format).text:
        yield handle
    else:
        with GzipFile(filename="", mode="wb", compresslevel=6, fileobj=handle, mtime=0) as packed:
            yield cast(BinaryIO, packed)


def _leaves(reader: RunReader, schema: Mapping[str, Any] | None) -> Sequence[Leaf]:
    """The properties to spread: those that the schema names, or else the keys of all results in the order in which they first appear."""
    if leaves := leaves_of(schema or {}):
        return leaves
    keys: dict[str, None] = {}
    for result in read_results(reader):
        keys.update(dict.fromkeys(result))
        if len(keys) > _MAX_KEYS:
            raise UserError(f"the results have more than {_MAX_KEYS} different keys: export without --flatten")
    return [Leaf((key,), None) for key in keys]


def _usable(target: Path, reader: RunReader, table: TableInfo) -> Path:
    """Where to write, symbolic links followed, its folder made. Raises UserError if what is there is not to be replaced."""
    path = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        raise UserError(f"{target}: not a regular file, so that an export can't take its place")
    if path == Path(os.path.realpath(table.path)):
        raise UserError(f"{target}: the job's own table; an export does not take its place")
    if path in {Path(os.path.realpath(reader.folder)) / name for name in _OWN_FILES}:
        raise UserError(f"{target}: the job's own journal; an export does not take its place")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_asides(path.parent, path.name)
    except OSError as error:
        raise StorageError(f"{path.parent}: the folder can't be written ({error.strerror or error})") from error
    return path
