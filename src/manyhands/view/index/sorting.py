"""The SQL that finds a page of a sorted list: along the index that is sorted so, or by what finds the items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.view.index.conditions import Condition
from manyhands.view.index.filters import POSITION, Cursor, Filters, Number


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the sorted list: of the items that have the value, or of those that have not."""

    column: str
    is_null: bool
    is_descending: bool
    bound: str
    """Where it begins; empty: at its beginning."""
    values: tuple[Number, ...]

    def is_range_of(self, condition: Condition) -> bool:
        """Whether a condition is a range of what is sorted by."""
        return not self.is_null and condition.source.endswith(f"INDEXED BY item_{self.column}")

    def sorted(self, found: Sequence[Condition], limit: int) -> tuple[str, tuple[Any, ...]]:
        """The query that goes through the list as it is sorted."""
        index = "NOT INDEXED" if self.is_null else f"INDEXED BY item_{self.column}"
        wheres = [each.where for each in found]
        if self.bound:  # one bound on each side: a second one would keep SQLite from beginning at the first
            side = "<=" if self.is_descending else ">="
            wheres = [where.replace(f"i.{self.column} {side}", f"+i.{self.column} {side}") for where in wheres]
        values = [value for each in found for value in each.values]
        return self._query(f"item AS i {index}", wheres, values, limit)

    def fetched(
        self, found: Sequence[Condition], source: Condition | None, limit: int | None, more: str = ""
    ) -> tuple[str, tuple[Any, ...]]:
        """The query that finds items by a condition, or all without one, and sorts them. ``more``: further columns, behind a comma."""
        begin, wheres, values = found_by(found, source)
        return self._query(begin, wheres, values, limit, more)

    def _query(
        self, source: str, wheres: Sequence[str], values: Sequence[Any], limit: int | None, more: str = ""
    ) -> tuple[str, tuple[Any, ...]]:
        nulls = [] if self.column == POSITION else [f"i.{self.column} IS {'' if self.is_null else 'NOT '}NULL"]
        where = " AND ".join([*wheres, *nulls, *([self.bound] if self.bound else [])]) or "true"
        way = "DESC" if self.is_descending else "ASC"
        order = f"i.number {way}" if self.is_null else f"i.{self.column} {way}, i.number {way}"
        query = f"SELECT i.number, i.{self.column}{more} FROM {source} WHERE {where} ORDER BY {order}"
        return query + ("" if limit is None else f" LIMIT {limit}"), (*values, *self.values)


class Order:
    """How a list is sorted, and its stretches from a cursor on."""

    def __init__(self, filters: Filters) -> None:
        self._column = filters.sort
        self._is_descending = filters.descending

    def parts(self, cursor: Cursor | None) -> list[Part]:
        """The stretches in the order in which they are gone through: towards the end, or from a ``before`` to the beginning."""
        if cursor is None:
            return self._parts_from("", ())
        if cursor.side == "before":
            return self._backwards(cursor)
        if cursor.side == "at":
            assert cursor.value is not None
            return self._parts_from(f"i.{self._column} {'<=' if self._is_descending else '>='} ?", (cursor.value,))
        if cursor.value is None:
            return [Part(self._column, True, False, "i.number > ?", (cursor.number,))]
        sign = "<" if self._is_descending else ">"
        return self._parts_from(f"(i.{self._column}, i.number) {sign} (?, ?)", (cursor.value, cursor.number))

    def _parts_from(self, bound: str, values: tuple[Number, ...]) -> list[Part]:
        parts = [Part(self._column, False, self._is_descending, bound, values)]
        return parts if self._column == POSITION else [*parts, Part(self._column, True, False, "", ())]

    def _backwards(self, cursor: Cursor) -> list[Part]:
        is_descending = not self._is_descending
        if cursor.value is None:
            nulls = Part(self._column, True, True, "i.number < ?", (cursor.number,))
            return [nulls, Part(self._column, False, is_descending, "", ())]
        bound = f"(i.{self._column}, i.number) {'<' if is_descending else '>'} (?, ?)"
        return [Part(self._column, False, is_descending, bound, (cursor.value, cursor.number))]


def found_by(found: Sequence[Condition], source: Condition | None) -> tuple[str, list[str], list[Any]]:
    """FROM clause, conditions and values: by the index that one condition has, or by going through all items."""
    others = [each for each in found if each is not source]
    values = [value for each in others for value in each.values]
    wheres = [each.where for each in others]
    if source is None:
        return "item AS i NOT INDEXED", wheres, values
    return source.source, [source.found_by, *wheres], [*source.source_values, *values]
