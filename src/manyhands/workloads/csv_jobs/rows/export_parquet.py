"""Exports as Parquet, written in row groups through pyarrow (the extra ``datasets``).

The columns of a Parquet table have its types, those of a CSV table are text. A column of a JSON Lines table, or of the results, is boolean,
64-bit integer, 64-bit float or text where all its values are that, and else text that holds JSON. Times are timestamps in UTC.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps, without_surrogates
from manyhands.engine.contract import RunReader
from manyhands.io.tables.arrow import castable, restorer, storage_of
from manyhands.io.tables.base import Kind, TableInfo, Values
from manyhands.io.tables.parquet_writer import survey
from manyhands.workloads.csv_jobs.rows.export_columns import (
    ATTEMPTS,
    COMPLETED,
    REPORTED,
    RESULT,
    ROW_INDEX,
    Columns,
    read_rows,
)

_CHUNK_ROWS = 1000
_CHUNK_WEIGHT = 4 << 20
"""Rows that are held as Python objects at once, and about how many characters of text."""
_GROUP_ROWS = 100_000
_GROUP_BYTES = 32 << 20
"""How large a row group may get: it is held until it is written."""

Convert = Callable[[Json], Any]


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: Any
    convert: Convert | None
    """What makes of a value that is not null what ``pyarrow.array`` takes for the type; None if it is that already."""

    def array(self, values: Sequence[Json]) -> Any:
        import pyarrow

        convert = self.convert
        made = values if convert is None else [None if value is None else convert(value) for value in values]
        try:
            array = pyarrow.array(made, storage_of(self.type))
            return array if array.type == self.type else array.cast(self.type)
        except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"column {self.name!r} can't be written as {self.type}: {reason}") from error


def write_parquet(handle: BinaryIO, reader: RunReader, columns: Columns, table: TableInfo) -> int:
    """Write all rows; returns how many. Raises UserError if pyarrow is not installed."""
    parquet = _parquet()
    described = _describe(reader, columns, table)
    schema = _schema(described)
    written = 0
    with parquet.ParquetWriter(handle, schema) as writer:
        for group in _groups(described, schema, _chunks(read_rows(reader, columns, int))):
            writer.write_table(group)
            written += group.num_rows
            del group  # which would be held until the next one is whole
    return written


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError("writing Parquet needs more libraries: pip install 'manyhands[datasets]'") from None
    return parquet


def _schema(columns: Iterable[_Column]) -> Any:
    import pyarrow

    return pyarrow.schema([(column.name, column.type) for column in columns])


# --- What the columns are


def _describe(reader: RunReader, columns: Columns, table: TableInfo) -> list[_Column]:
    """The columns in order; those of which nothing else is known as their values are, which takes a look at all rows."""
    width = len(columns.headers)
    settled = dict(enumerate(_ours(columns), start=width))
    if table.format == "csv":
        settled |= {place: _of_kind("string", name) for place, name in enumerate(columns.headers)}
    elif table.arrow_schema is not None:
        settled |= _of_source(columns.headers, table.arrow_schema)
    stated: dict[int, Kind | None] = {place: None for place in range(width) if place not in settled}
    stated |= {place: leaf.kind for place, leaf in enumerate(columns.leaves, start=width + len(columns.ours))}
    kinds = survey(read_rows(reader, columns, int), stated)
    return [settled.get(place) or _of_kind(kinds[place], name) for place, name in enumerate(columns.names)]


def _ours(columns: Columns) -> list[_Column]:
    import pyarrow

    kinds: dict[int, Kind] = {ROW_INDEX: "integer", ATTEMPTS: "integer", RESULT: "json"}
    described = [_of_kind(kinds.get(place, "string"), name) for place, name in enumerate(columns.ours)]
    for place in (REPORTED, COMPLETED):
        described[place] = _Column(columns.ours[place], pyarrow.timestamp("s", "UTC"), None)
    return described


def _of_source(headers: Sequence[str], serialised: str) -> dict[int, _Column]:
    """The columns of a Parquet table by place, but for types whose values can't be made from JSON."""
    import pyarrow

    kinds = pyarrow.ipc.read_schema(pyarrow.py_buffer(b64decode(serialised))).types
    columns = {}
    for place, (name, kind) in enumerate(zip(headers, kinds, strict=True)):
        if (restore := restorer(storage_of(kind))) is not None:
            columns[place] = _Column(name, castable(kind), restore)
    return columns


def _of_kind(kind: Kind, name: str) -> _Column:
    import pyarrow

    types: Mapping[Kind, tuple[Any, Convert | None]] = {
        "string": (pyarrow.string(), without_surrogates),
        "integer": (pyarrow.int64(), int),
        "number": (pyarrow.float64(), float),
        "boolean": (pyarrow.bool_(), None),
        "json": (pyarrow.string(), _json_text),
    }
    return _Column(name, *types[kind])


def _json_text(value: Json) -> str:
    return dumps(value).decode()


# --- Rows as columns


def _chunks(rows: Iterable[Values]) -> Iterator[list[Values]]:
    chunk: list[Values] = []
    weight = 0
    for row in rows:
        chunk.append(row)
        weight += _weight(row)
        if len(chunk) >= _CHUNK_ROWS or weight >= _CHUNK_WEIGHT:
            yield chunk
            chunk, weight = [], 0
    if chunk:
        yield chunk


def _weight(value: Json) -> int:
    """About how much a value takes, in characters."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return 8
    return sum(map(_weight, value))


def _groups(columns: Sequence[_Column], schema: Any, chunks: Iterable[list[Values]]) -> Iterator[Any]:
    """The rows as Arrow tables, each the size of a row group."""
    import pyarrow

    batches: list[Any] = []
    rows = size = 0
    for chunk in chunks:
        arrays = [column.array(values) for column, values in zip(columns, zip(*chunk, strict=True), strict=True)]
        batches.append(pyarrow.record_batch(arrays, schema=schema))
        rows += len(chunk)
        size += batches[-1].nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pyarrow.Table.from_batches(batches)
            batches, rows, size = [], 0, 0
    if batches:
        yield pyarrow.Table.from_batches(batches)
