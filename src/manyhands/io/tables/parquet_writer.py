"""Writing Parquet, in row groups through pyarrow (the extra ``datasets``): what kind of values a column has, and Arrow's values made again
from the JSON that ``parquet.json_values`` made of them, exactly as they were read."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps, without_surrogates
from manyhands.io.tables.base import Kind, Values
from manyhands.io.tables.parquet import DIGITS

Restore = Callable[[Json], Any]
_DATE = re.compile(r"(-?\d+)-(\d\d)-(\d\d)")
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:\+00:00)?")
_DURATION = re.compile(r"(-?)PT(\d+)(?:\.(\d+))?S")
_DAY = 86_400
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


def storage_of(kind: Any) -> Any:
    """The Arrow type that values are made as, to be cast to a type: without its dictionaries and extension types, however deep."""
    import pyarrow
    from pyarrow import types

    if isinstance(kind, pyarrow.BaseExtensionType):
        return storage_of(kind.storage_type)
    if types.is_dictionary(kind):
        return storage_of(kind.value_type)
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(storage_of(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(*(field.with_type(storage_of(field.type)) for field in (kind.key_field, kind.item_field)))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(kind.value_field.with_type(storage_of(kind.value_type)), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        make = pyarrow.list_ if types.is_list(kind) else pyarrow.large_list
        return make(kind.value_field.with_type(storage_of(kind.value_type)))
    return kind


def castable(kind: Any) -> Any:
    """A type, or the one that it is stored as where Arrow knows no cast from that."""
    import pyarrow

    storage = storage_of(kind)
    try:
        pyarrow.array([None], storage).cast(kind)
    except pyarrow.ArrowNotImplementedError:
        return storage
    return kind


def restorer(kind: Any) -> Restore | None:
    """What makes values that ``pyarrow.array`` takes for a type without dictionaries and extensions from their JSON, null apart; None where
    nothing here can."""
    from pyarrow import types

    if types.is_map(kind):
        return _pairs(kind)
    if types.is_nested(kind):
        return _record(kind) if types.is_struct(kind) else _parts(kind)
    if types.is_temporal(kind):
        return _time(kind)
    return next((restore for applies, restore in _simple() if applies(kind)), None)


def _simple() -> tuple[tuple[Callable[[Any], bool], Restore], ...]:
    from pyarrow import types

    return (
        (types.is_floating, float),  # also "NaN", "Infinity"
        (types.is_decimal, Decimal),
        (lambda kind: "binary" in str(kind), b64decode),
        (lambda kind: "string" in str(kind), str),
        (lambda kind: types.is_primitive(kind) or types.is_null(kind), lambda value: value),
    )


def _nullable(restore: Restore) -> Restore:
    return lambda value: None if value is None else restore(value)


def _parts(kind: Any) -> Restore | None:
    if (restore := restorer(kind.value_type)) is None:
        return None
    part = _nullable(restore)
    return lambda values: [part(value) for value in values]


def _pairs(kind: Any) -> Restore | None:
    names = kind.key_field.name, kind.item_field.name
    key, value = restorer(kind.key_type), restorer(kind.item_type)
    if key is None or value is None:
        return None
    first, second = _nullable(key), _nullable(value)
    return lambda pairs: [(first(pair[names[0]]), second(pair[names[1]])) for pair in pairs]


def _record(kind: Any) -> Restore | None:
    fields: dict[str, Restore] = {}
    for field in kind:
        if (restore := restorer(field.type)) is None:
            return None
        fields[field.name] = _nullable(restore)
    return lambda record: {name: restore(record[name]) for name, restore in fields.items()}


def _time(kind: Any) -> Restore | None:
    from pyarrow import types

    if types.is_date32(kind):
        return _days
    if types.is_date64(kind):
        return lambda text: _days(text) * _DAY * 1000
    unit = DIGITS[kind.unit]
    if types.is_duration(kind):
        return lambda text: _span(text, unit)
    if types.is_timestamp(kind):
        return lambda text: _instant(text, unit)
    return lambda text: _clock(text, unit)


def _days(text: str) -> int:
    """Days from 1970-01-01 to a date of the Gregorian calendar, in any year."""
    year, month, day = map(int, _matched(_DATE, text).groups())
    # Counted in years that begin in March, so that the leap day comes last; 400 years have 146,097 days.
    year -= month < 3
    of_year = (153 * ((month - 3) % 12) + 2) // 5 + day - 1
    days: int = year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719_468
    return days


def _clock(text: str, digits: int) -> int:
    """A time of day in units of 10 ** -digits seconds."""
    hours, minutes, seconds, fraction = _matched(_CLOCK, text).groups()
    return _ticks(int(hours) * 3600 + int(minutes) * 60 + int(seconds), fraction, digits)


def _instant(text: str, digits: int) -> int:
    day, _, clock = text.partition("T")
    return _ticks(_days(day) * _DAY, None, digits) + _clock(clock, digits)


def _span(text: str, digits: int) -> int:
    sign, seconds, fraction = _matched(_DURATION, text).groups()
    return _ticks(int(seconds), fraction, digits) * (-1 if sign else 1)


def _ticks(seconds: int, fraction: str | None, digits: int) -> int:
    ticks: int = seconds * 10**digits
    return ticks + int(f"{fraction:0<{digits}}"[:digits]) if fraction and digits else ticks


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not what its type should be")
    return found


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
