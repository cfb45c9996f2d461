"""What the items of a run are filtered and sorted by, and where in the list a page begins: as values, and as in the address of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, TypeAlias

Number: TypeAlias = int | float
POSITION = "position"
RANGES = ("score", "cost", "tokens", "turns", "tools", "seconds")
"""What can be filtered by its least and greatest value. ``tools``: tool calls."""
SORTS = (POSITION, *RANGES, "finished", "retries")
"""What items can be sorted by. Those that have no such value come last, in order of planning, whichever way the others are sorted."""
MAX_VALUES = 20
"""Values of one filter; more are left out."""
MAX_LENGTH = 200
"""Characters of a value."""
_YES = frozenset(("1", "true", "yes"))


@dataclass(frozen=True, slots=True)
class Filters:
    """All that an item must be to be listed, and the order. By default all items in order of the input."""

    states: tuple[str, ...] = ()
    """Any of these; empty: all."""
    details: tuple[str, ...] = ()
    """Discarded, failed or cancelled for any of these reasons or causes; empty: all."""
    ranges: Mapping[str, tuple[Number | None, Number | None]] = field(default_factory=dict)
    """The least and the greatest value, each included, by names of ``RANGES``; None: no bound. Items without the value are left out."""
    tools: tuple[str, ...] = ()
    """All of these tools were called in the latest attempt."""
    failed_tools: tuple[str, ...] = ()
    """A call of each of these tools failed in the latest attempt."""
    labels: tuple[tuple[str, str], ...] = ()
    """All of these labels: name, value."""
    retried: bool = False
    """Only items that are in their second attempt or a later one."""
    text: str = ""
    """Words that all stand in its key, input, outcome, last answer or failure; ``word*`` for those that begin so."""
    sort: str = POSITION
    """One of ``SORTS``."""
    descending: bool = False

    @classmethod
    def parse(cls, query: Iterable[tuple[str, str]]) -> Filters:
        """The filters in an address, as pairs of a name and a value; whatever is wrong in it is ignored.

        ``state``, ``why``, ``tool``, ``tool_failed`` and ``label`` (NAME=VALUE) may be there several times; ``score_min``, ``score_max``
        and the like of all ``RANGES``; ``retried=1``, ``text``, ``sort`` (with ``-`` in front: the largest first).
        """
        given: dict[str, list[str]] = {}
        for name, value in query:
            values = given.setdefault(name, [])
            if value and value not in values and len(values) < MAX_VALUES:
                values.append(value[:MAX_LENGTH])
        sort = given.get("sort", [POSITION])[0] if given.get("sort") else POSITION
        known = sort.removeprefix("-") in SORTS
        return cls(
            tuple(given.get("state", ())),
            tuple(given.get("why", ())),
            _ranges(given),
            tuple(given.get("tool", ())),
            tuple(given.get("tool_failed", ())),
            tuple((name, value) for name, found, value in map(_parted, given.get("label", ())) if found),
            any(value in _YES for value in given.get("retried", ())),
            " ".join(given.get("text", ())),
            sort.removeprefix("-") if known else POSITION,
            known and sort.startswith("-"),
        )

    def query(self) -> list[tuple[str, str]]:
        """The reverse of ``parse``: what is as by default is left out."""
        pairs = [("state", each) for each in self.states] + [("why", each) for each in self.details]
        for name, bounds in self.ranges.items():
            for end, bound in zip(("min", "max"), bounds, strict=True):
                pairs += [] if bound is None else [(f"{name}_{end}", repr(bound))]
        pairs += [("tool", each) for each in self.tools] + [("tool_failed", each) for each in self.failed_tools]
        pairs += [("label", f"{name}={value}") for name, value in self.labels]
        pairs += [("retried", "1")] if self.retried else []
        pairs += [("text", self.text)] if self.text else []
        if self.sort != POSITION or self.descending:
            pairs.append(("sort", f"-{self.sort}" if self.descending else self.sort))
        return pairs

    @property
    def is_empty(self) -> bool:
        """Whether all items are listed."""
        chosen = (self.states, self.details, self.ranges, self.tools, self.failed_tools, self.labels, self.text)
        return not (self.retried or any(chosen))


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where in a sorted list a page begins, or ends.

    ``after`` and ``before``: the items behind or in front of the one that has this value and number. ``at``: the first item that has the
    value, or the nearest one behind it.
    """

    side: Literal["after", "before", "at"]
    value: Number | None
    """Of what the list is sorted by; None for an item without it."""
    number: int = 0
    """Of the item."""

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The cursor that a text is; None if it is none."""
        side, _, rest = text.partition(":")
        value, _, number = rest.partition(":")
        found = _number(value)
        if side == "at" and found is not None and not number:
            return cls("at", found)
        if side in ("after", "before") and (found is not None or not value) and _is_number(number):
            return cls("after" if side == "after" else "before", found, int(number))
        return None

    def __str__(self) -> str:
        value = "" if self.value is None else repr(self.value)
        return f"at:{value}" if self.side == "at" else f"{self.side}:{value}:{self.number}"


def _ranges(given: Mapping[str, list[str]]) -> dict[str, tuple[Number | None, Number | None]]:
    found = {}
    for name in RANGES:
        least, greatest = (_number((given.get(f"{name}_{end}") or [""])[0]) for end in ("min", "max"))
        if least is not None or greatest is not None:
            found[name] = (least, greatest)
    return found


def _parted(text: str) -> tuple[str, str, str]:
    return text.partition("=")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def _number(text: str) -> Number | None:
    """A finite number; None for any other text."""
    if _is_number(text.removeprefix("-")):
        return int(text)
    try:
        value = float(text) if len(text) <= 40 else None
    except ValueError:
        return None
    return value if value is not None and isfinite(value) else None
