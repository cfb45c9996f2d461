"""Arrow's values from the JSON that ``parquet.json_values`` made of them: exactly those that were read.

Only for use where pyarrow is installed.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.io.tables.parquet import DIGITS

Restore = Callable[[Json], Any]
_DATE = re.compile(r"(-?\d+)-(\d\d)-(\d\d)")
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:\+00:00)?")
_DURATION = re.compile(r"(-?)PT(\d+)(?:\.(\d+))?S")
_DAY = 86_400


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
