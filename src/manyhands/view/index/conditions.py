"""Filters as SQL on an index: what an item must be, which index finds such items, and how many there are."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from manyhands.view.index.filters import Filters, Number
from manyhands.view.index.writing import VERSION_SHIFT

_NUMBER_MASK = (1 << VERSION_SHIFT) - 1
TEXT_ROW = f"(i.number + (i.version << {VERSION_SHIFT}))"

RunQuery: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs a query within the time that there is."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What is done to find a page, all ways to the same end."""

    many: int = 60_000
    """Items that are fetched and sorted rather than met by going along the sorted list."""
    many_with_words: int = 25_000
    """The same of items that are found by words."""
    few: int = 500
    """Items that are looked at one by one whether they have words."""
    seconds: float = 0.05
    """For going along the sorted list, before all items that could be on the page are fetched and sorted."""
    seconds_for_words: float = 0.3
    """The same where words that many items have are looked for in each."""


USUAL_EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter."""

    where: str
    """What holds of an item ``i``."""
    values: tuple[Any, ...]
    source: str
    """The FROM clause that finds such items by an index; ``i`` is in it."""
    found_by: str
    """What must stand in the WHERE clause with ``source``."""
    source_values: tuple[Any, ...]
    """Of ``source`` and then of ``found_by``."""
    items: int
    """How many there are; where it is more than ``Effort.many`` perhaps more still."""
    is_exact: bool
    """Whether ``items`` is exact."""
    is_text: bool = False
    """Whether it is about words: it takes long to find out of a single item whether it has them."""


def conditions(filters: Filters, query: RunQuery, effort: Effort) -> list[Condition] | None:
    """The conditions of filters, the rarest first; None if no item can be one of these. Raises BadText."""
    found: list[Condition] = []
    for each in _all(filters, query, effort):
        if each is None:
            return None
        found.append(each)
    return sorted(found, key=lambda condition: condition.items)


def _all(filters: Filters, query: RunQuery, effort: Effort) -> Iterator[Condition | None]:
    if filters.states or filters.details:
        yield _kinds(filters, query)
    for name, bounds in filters.ranges.items():
        yield _range(name, bounds, query, effort.many)
    for tool in filters.tools:
        yield _tool(tool, "items", query)
    for tool in filters.failed_tools:
        yield _tool(tool, "failed_items", query)
    for label in filters.labels:
        yield _label(label, query)
    if filters.retried:
        yield _counted("i.retries IS NOT NULL", (), "item AS i INDEXED BY item_retries", query, effort.many)
    if filters.text.strip():
        yield _words(filters.text, query, effort)


def _kinds(filters: Filters, query: RunQuery) -> Condition | None:
    rows = query("SELECT id, state, detail, items FROM kind WHERE items > 0", ())
    chosen = [
        (number, items)
        for number, state, detail, items in rows
        if (not filters.states or state in filters.states) and (not filters.details or detail in filters.details)
    ]
    if not chosen:
        return None
    where = f"i.kind IN ({','.join(str(number) for number, _ in chosen)})"
    return Condition(where, (), "item AS i INDEXED BY item_kind", where, (), sum(items for _, items in chosen), True)


def _range(name: str, bounds: tuple[Number | None, Number | None], query: RunQuery, many: int) -> Condition:
    parts, values = [f"i.{name} IS NOT NULL"], []
    for sign, bound in zip((">=", "<="), bounds, strict=True):
        if bound is not None:
            parts.append(f"i.{name} {sign} ?")
            values.append(bound)
    return _counted(" AND ".join(parts), tuple(values), f"item AS i INDEXED BY item_{name}", query, many)


def _counted(where: str, values: tuple[Any, ...], source: str, query: RunQuery, many: int) -> Condition:
    rows = query(f"SELECT count(*) FROM (SELECT 1 FROM {source} WHERE {where} LIMIT {many + 1})", values)
    return Condition(where, values, source, where, values, rows[0][0], rows[0][0] <= many)


def _tool(name: str, counted: str, query: RunQuery) -> Condition | None:
    rows = query(f"SELECT id, {counted} FROM tool WHERE name = ? AND {counted} > 0", (name,))
    if not rows:
        return None
    tool, items = rows[0]
    failed = " AND t.failures > 0" if counted == "failed_items" else ""
    index = " INDEXED BY item_tool_failed" if failed else ""
    return Condition(
        f"EXISTS (SELECT 1 FROM item_tool AS t{index} WHERE t.tool = {tool} AND t.item = i.number{failed})"
        if failed
        else f"instr(i.calls, ',{tool}:')",
        (),
        f"item_tool AS t{index} CROSS JOIN item AS i ON i.number = t.item",
        f"t.tool = {tool}{failed}",
        (),
        items,
        True,
    )


def _label(label: tuple[str, str], query: RunQuery) -> Condition | None:
    rows = query("SELECT id, items FROM label WHERE name = ? AND value = ? AND items > 0", label)
    if not rows:
        return None
    number, items = rows[0]
    return Condition(
        f"instr(i.labels, ',{number},')",
        (),
        "item_label AS l CROSS JOIN item AS i ON i.number = l.item",
        f"l.label = {number}",
        (),
        items,
        True,
    )


def _words(text: str, query: RunQuery, effort: Effort) -> Condition | None:
    match = match_of(text)
    if match is None:
        return None
    rows = query(
        f"SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT {effort.many_with_words + 1})", (match,)
    )
    items = rows[0][0]
    return Condition(
        f"EXISTS (SELECT 1 FROM words AS w WHERE w.words MATCH ? AND w.rowid = {TEXT_ROW})",
        (match,),
        f"words AS w CROSS JOIN item AS i ON i.number = (w.rowid & {_NUMBER_MASK})",
        f"w.words MATCH ? AND i.version = (w.rowid >> {VERSION_SHIFT})",
        (match,),
        items if items <= effort.many_with_words else effort.many + 1,
        False,
        True,
    )


def match_of(text: str) -> str | None:
    """What FTS5 is asked for, so that all words of a text are found; None if there is no word in it.

    Words are what FTS5 takes for words: letters and numbers without a gap. A ``*`` behind a word stands for any end.
    """
    words, word = [], ""
    for character in f"{text} ":
        if _is_of_word(character):
            word += character
        elif word:
            words.append(f'"{word}"{"*" if character == "*" else ""}')
            word = ""
    return " AND ".join(words) or None


def _is_of_word(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LN" or category in ("Co", "Mn", "Mc")
