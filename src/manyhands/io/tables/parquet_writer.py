"""What kind of values a column has, learned by looking at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from manyhands.core.jsonio import Json
from manyhands.io.tables.base import Kind, Values

_INT64 = range(-(1 << 63), 1 << 63)
_EXACT = range(-(1 << 53), (1 << 53) + 1)
"""Integers that a float of 64 bits holds exactly."""


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
