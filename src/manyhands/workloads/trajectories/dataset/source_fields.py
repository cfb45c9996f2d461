"""One stable column for whatever else the rows of a dataset carry, in runs of the first layout (later ones write JSON text).

Rows may have fields that this program does not know (labels, answers, scores). They go to the output as
``metadata.source``. Arrow wants one type per column, so the object written is the same for every row: every field is
there, in one order. A field keeps its type if all rows that have it agree on one, and is null in the others; where they
do not agree, it is JSON text in every row (``"null"`` where a row lacks it).

Both readers settle a column's type on the first part of a file: after 10 MB of nulls, Hugging Face Datasets refuses the
first text ("Couldn't cast array of type string to null"), and after 1 MB, pyarrow refuses the first list or object. So a
field may be null only if it shows its type early: within the first rows, or for a list or an object in the very first.
Text that looks like a time in some rows only, and empty lists, are JSON text for the same reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

from manyhands.core.jsonio import Json

OTHER_FIELDS = "other_fields"
"""Where fields outside the plan go, as JSON text of one object."""

ARROW_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:?\d\d(:?\d\d)?)?(Z|[+-]\d\d:?\d\d)?)?")
"""What Arrow's JSON reader takes for a time."""
EARLY = 10
"""Rows within which a field must show its type, if rows may lack it."""
_EXACT = 1 << 53
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class SourceFields:
    """The fields of ``metadata.source``."""

    fields: tuple[tuple[str, bool], ...] = ()
    """Pairs of name and whether the field has one JSON type throughout."""
    decimals: tuple[str, ...] = ()
    """Fields that hold whole numbers in some rows and decimals in others: they are written as decimals."""
    others: bool = False
    """The dataset has more fields than are given a column of their own; the rest is gathered in ``other_fields``."""

    def to_json(self) -> dict[str, Any]:
        """``{"fields": [[name, consistent], …], "decimals": [name, …], "others": bool}``."""
        return {
            "fields": [[name, consistent] for name, consistent in self.fields],
            "decimals": list(self.decimals),
            "others": self.others,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The reverse of ``to_json``."""
        fields = tuple((str(name), bool(consistent)) for name, consistent in value.get("fields", ()))
        return cls(fields, tuple(value.get("decimals", ())), bool(value.get("others", False)))

    def arrange(self, source: Mapping[str, Any]) -> dict[str, Any]:
        """The stable object for one row's unknown fields.

        Fields outside the plan are never lost: they are gathered as JSON text in ``other_fields``, which is there for
        every row if the plan says ``others``.
        """
        arranged = {name: self._value(name, consistent, source) for name, consistent in self.fields}
        known = {name for name, _ in self.fields}
        rest = {name: value for name, value in source.items() if name not in known}
        if rest or self.others:
            arranged[OTHER_FIELDS] = _text(rest)
        return arranged

    def _value(self, name: str, consistent: bool, source: Mapping[str, Any]) -> Json:
        value = source.get(name)
        if not consistent:
            return _text(value)
        return float(value) if name in self.decimals and value is not None else value


class SourceFieldsBuilder:
    """Gathers a plan from rows, in one pass. ``limit``: how many fields get a column of their own."""

    def __init__(self, limit: int = 200) -> None:
        self._limit = limit
        self._names: dict[str, None] = {}
        self._shapes: dict[str, str] = {}
        self._present: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._rows = 0
        self._others = False

    def add(self, source: Mapping[str, Any]) -> None:
        """Take a row's unknown fields into account."""
        self._rows += 1
        for name, value in source.items():
            if name not in self._names and (len(self._names) >= self._limit or name == OTHER_FIELDS):
                self._others = True
                continue
            self._names[name] = None
            if value is not None:
                self._add_value(name, _shape(value))

    def _add_value(self, name: str, shape: str) -> None:
        known = self._shapes.get(name)
        self._shapes[name] = shape if known is None else _merge(known, shape)
        self._present[name] = self._present.get(name, 0) + 1
        self._first.setdefault(name, self._rows)

    def build(self) -> SourceFields:
        """The plan for the rows seen so far."""
        return SourceFields(
            fields=tuple((name, self._consistent(name)) for name in self._names),
            decimals=tuple(
                name for name, shape in self._shapes.items() if shape == _DECIMAL and self._consistent(name)
            ),
            others=self._others,
        )

    def _consistent(self, name: str) -> bool:
        shape = self._shapes.get(name, _MIXED)
        if shape == _MIXED:
            return False
        if self._present[name] == self._rows:
            return True
        return shape != _TIME_SHAPE and self._first[name] <= (1 if shape[0] in "[{" else EARLY)


# A shape is a short text that says what Arrow would make of a value. Equal shapes share a column.
_WHOLE = "whole"
_TIME_SHAPE = "time"
_LONG = "long"
_FLOAT = "float"
_DECIMAL = "whole or float"
_MIXED = "mixed"
_NUMBERS = frozenset((_WHOLE, _FLOAT, _DECIMAL))


def _shape(value: Json) -> str:
    if value is None:
        return _MIXED
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return _whole_shape(value)
    if isinstance(value, float):
        return _FLOAT if isfinite(value) else _MIXED
    if isinstance(value, str):
        return _TIME_SHAPE if ARROW_TIME.fullmatch(value) else "text"
    return _list_shape(value) if isinstance(value, list) else _object_shape(value)


def _whole_shape(value: int) -> str:
    if -_EXACT <= value <= _EXACT:
        return _WHOLE
    return _LONG if -_INT64 <= value < _INT64 else _MIXED


def _list_shape(value: list[Json]) -> str:
    shapes = {_shape(element) for element in value}
    # An empty list says nothing about its elements, and "list of nulls" may not become "list of texts" in a later row.
    shape = shapes.pop() if len(shapes) == 1 else _MIXED
    return shape if shape == _MIXED else f"[{shape}]"


def _object_shape(value: dict[str, Json]) -> str:
    shapes = {name: _shape(part) for name, part in value.items()}
    if not shapes or _MIXED in shapes.values():
        return _MIXED  # Arrow files can't hold an object without fields.
    return "{" + ",".join(f"{json.dumps(name)}:{shapes[name]}" for name in sorted(shapes)) + "}"


def _merge(first: str, second: str) -> str:
    if first in (second, _MIXED):
        return first
    if {first, second} <= _NUMBERS:
        return _DECIMAL
    return _LONG if {first, second} == {_WHOLE, _LONG} else _MIXED


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
