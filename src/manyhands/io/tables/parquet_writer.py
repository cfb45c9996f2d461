"""Writing Parquet, in row groups through pyarrow (the extra ``datasets``), and learning what kind of values a column has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps, without_surrogates
from manyhands.io.tables.arrow import storage_of
from manyhands.io.tables.base import Kind, Values

_CHUNK_ROWS = 1000
_CHUNK_WEIGHT = 4 << 20
"""Rows that are held as Python objects at once, and about how many characters of text."""
_GROUP_ROWS = 100_000
_GROUP_BYTES = 32 << 20
"""How large a row group may get: it is held until it is written."""
_INT64 = range(-(1 << 63), 1 << 63)
_EXACT = range(-(1 << 53), (1 << 53) + 1)
"""Integers that a float of 64 bits holds exactly."""

Convert = Callable[[Json], Any]


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    """A column to be written: its name, and its Arrow type."""

    name: str
    type: Any
    convert: Convert | None
    """What makes of a value that is not null what ``pyarrow.array`` takes for the type; None if it is that already."""

    def array(self, values: Sequence[Json]) -> Any:
        """An Arrow array of values. Raises UserError for one that does not fit."""
        import pyarrow

        convert = self.convert
        made = values if convert is None else [None if value is None else convert(value) for value in values]
        try:
            array = pyarrow.array(made, storage_of(self.type))
            return array if array.type == self.type else array.cast(self.type)
        except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"column {self.name!r} can't be written as {self.type}: {reason}") from error


def write_parquet(handle: BinaryIO, columns: Sequence[ParquetColumn], rows: Iterable[Values]) -> int:
    """Write rows; returns how many. Raises UserError if pyarrow is not installed, or a value does not fit its column."""
    parquet = need_parquet()
    import pyarrow

    schema = pyarrow.schema([(column.name, column.type) for column in columns])
    written = 0
    with parquet.ParquetWriter(handle, schema) as writer:
        for group in _groups(columns, schema, _chunks(rows)):
            writer.write_table(group)
            written += group.num_rows
            del group  # which would be held until the next one is whole
    return written


def need_parquet() -> Any:
    """pyarrow's module for Parquet. Raises UserError if it is not installed."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError("writing Parquet needs more libraries: pip install 'manyhands[datasets]'") from None
    return parquet


def column_of_kind(kind: Kind, name: str) -> ParquetColumn:
    """The column for values of a kind."""
    import pyarrow

    types: Mapping[Kind, tuple[Any, Convert | None]] = {
        "string": (pyarrow.string(), without_surrogates),
        "integer": (pyarrow.int64(), int),
        "number": (pyarrow.float64(), float),
        "boolean": (pyarrow.bool_(), None),
        "json": (pyarrow.string(), _json_text),
    }
    return ParquetColumn(name, *types[kind])


def _json_text(value: Json) -> str:
    return dumps(value).decode()


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


def _groups(columns: Sequence[ParquetColumn], schema: Any, chunks: Iterable[list[Values]]) -> Iterator[Any]:
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


# --- What the values of columns are


def survey(rows: Iterable[Values], stated: Mapping[int, Kind | None]) -> dict[int, Kind]:
    """The kinds of the columns with these numbers: what is stated of one if all its values are that, else what they have in common.

    ``json`` where they have nothing in common. A column of nulls is text unless something else is stated.
    """
    doubtful = [(column, _Evidence(kind)) for column, kind in stated.items() if kind != "json"]
    if doubtful:
        for row in rows:
            for column, evidence in doubtful:
                if (value := row[column]) is not None:
                    evidence.add(value)
    kinds: dict[int, Kind] = dict.fromkeys(stated, "json")
    kinds.update((column, evidence.kind) for column, evidence in doubtful)
    return kinds


class _Evidence:
    """What the values of one column may still be."""

    def __init__(self, stated: Kind | None) -> None:
        self._kinds: list[Kind] = [stated] if stated else []
        self._kinds += [kind for kind in _FITS if kind != stated]
        self._whole = stated == "integer"
        self._unseen: Kind | None = stated or "string"

    def add(self, value: Json) -> None:
        self._unseen = None
        if self._whole and isinstance(value, float) and value.is_integer():
            value = int(value)  # JSON Schema counts 3.0 among the integers
        self._kinds = [kind for kind in self._kinds if _FITS[kind](value)]

    @property
    def kind(self) -> Kind:
        return self._unseen or (self._kinds[0] if self._kinds else "json")


def _is_boolean(value: Json) -> bool:
    return isinstance(value, bool)


def _is_integer(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _is_number(value: Json) -> bool:
    return isinstance(value, float) or (_is_integer(value) and value in _EXACT)


def _is_string(value: Json) -> bool:
    return isinstance(value, str)


_FITS: dict[Kind, Callable[[Json], bool]] = {
    "boolean": _is_boolean,
    "integer": _is_integer,
    "number": _is_number,
    "string": _is_string,
}
