"""Exports as Parquet: the types of their columns.

The columns of a Parquet table have its types, those of a CSV table are text. A column of a JSON Lines table, or of the results, is boolean,
64-bit integer, 64-bit float or text where all its values are that, and else text that holds JSON. Times are timestamps in UTC.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import BinaryIO

from manyhands.engine.contract import RunReader
from manyhands.io.tables import parquet_writer
from manyhands.io.tables.arrow import castable, restorer, storage_of
from manyhands.io.tables.base import Kind, TableInfo
from manyhands.io.tables.parquet_writer import ParquetColumn, column_of_kind, need_parquet, survey
from manyhands.workloads.csv_jobs.rows.export_columns import (
    ATTEMPTS,
    COMPLETED,
    REPORTED,
    RESULT,
    ROW_INDEX,
    Columns,
    read_rows,
)


def write_parquet(handle: BinaryIO, reader: RunReader, columns: Columns, table: TableInfo) -> int:
    """Write all rows; returns how many. Raises UserError if pyarrow is not installed."""
    need_parquet()
    return parquet_writer.write_parquet(handle, _describe(reader, columns, table), read_rows(reader, columns, int))


# --- What the columns are


def _describe(reader: RunReader, columns: Columns, table: TableInfo) -> list[ParquetColumn]:
    """The columns in order; those of which nothing else is known as their values are, which takes a look at all rows."""
    width = len(columns.headers)
    settled = dict(enumerate(_ours(columns), start=width))
    if table.format == "csv":
        settled |= {place: column_of_kind("string", name) for place, name in enumerate(columns.headers)}
    elif table.arrow_schema is not None:
        settled |= _of_source(columns.headers, table.arrow_schema)
    stated: dict[int, Kind | None] = {place: None for place in range(width) if place not in settled}
    stated |= {place: leaf.kind for place, leaf in enumerate(columns.leaves, start=width + len(columns.ours))}
    kinds = survey(read_rows(reader, columns, int), stated)
    return [settled.get(place) or column_of_kind(kinds[place], name) for place, name in enumerate(columns.names)]


def _ours(columns: Columns) -> list[ParquetColumn]:
    import pyarrow

    kinds: dict[int, Kind] = {ROW_INDEX: "integer", ATTEMPTS: "integer", RESULT: "json"}
    described = [column_of_kind(kinds.get(place, "string"), name) for place, name in enumerate(columns.ours)]
    for place in (REPORTED, COMPLETED):
        described[place] = ParquetColumn(columns.ours[place], pyarrow.timestamp("s", "UTC"), None)
    return described


def _of_source(headers: Sequence[str], serialised: str) -> dict[int, ParquetColumn]:
    """The columns of a Parquet table by place, but for types whose values can't be made from JSON."""
    import pyarrow

    kinds = pyarrow.ipc.read_schema(pyarrow.py_buffer(b64decode(serialised))).types
    columns = {}
    for place, (name, kind) in enumerate(zip(headers, kinds, strict=True)):
        if (restore := restorer(storage_of(kind))) is not None:
            columns[place] = ParquetColumn(name, castable(kind), restore)
    return columns
