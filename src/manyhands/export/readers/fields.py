"""A row of a file that anyone may have written, with the place of each of its fields, so that what is wrong with it can be named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from manyhands.core.jsonio import Json, kind_of, loads_outside
from manyhands.core.text import cut

LAST_MOMENT = 253_402_300_799.0
"""The end of the year 9999, in seconds since 1970 UTC: later times can't be written as dates."""
_SHOWN = 60


class BadRow(ValueError):
    """Why a row is no conversation: its field and what is wrong with that, in one line."""


@dataclass(slots=True)  # not frozen: one is made for each field that is read
class Field:
    """A value and its place in its row, as ``messages[2].content``. Not to be changed."""

    value: Json
    path: str = ""

    def error(self, problem: str) -> BadRow:
        """What is wrong with it."""
        return BadRow(f"{self.path}: {problem}" if self.path else problem)

    @property
    def given(self) -> bool:
        """Whether there is a value: null counts as none, because tables fill what a row lacks with nulls."""
        return self.value is not None

    def get(self, name: str) -> Field:
        """A field of an object; its value is None if it is not there. Raises BadRow if this is no object."""
        return Field(self.members().get(name), f"{self.path}.{name}" if self.path else name)

    def first(self, *names: str) -> Field:
        """The first of these fields that is given; the first of all if none is."""
        value = self.members()
        return self.get(next((name for name in names if value.get(name) is not None), names[0]))

    def members(self) -> Mapping[str, Any]:
        """The value as an object."""
        if not isinstance(self.value, dict):
            raise self.error(f"must be an object, not {kind_of(self.value)}")
        return self.value

    def elements(self) -> list[Field]:
        """The elements of a list; of what is not given none."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.error(f"must be a list, not {kind_of(self.value)}")
        return [Field(each, f"{self.path}[{index}]") for index, each in enumerate(self.value)]

    def text(self) -> str:
        """The value as text."""
        if not isinstance(self.value, str):
            raise self.error(f"must be text, not {kind_of(self.value)}")
        return self.value

    def optional_text(self) -> str | None:
        """The value as text; None if it is not given or empty."""
        return self.text() or None if self.given else None

    def one_of(self, *words: str) -> str:
        """The value as one of several words."""
        text = self.text()
        if text not in words:
            raise self.error(f"must be {', '.join(words[:-1])} or {words[-1]}, not {cut(repr(text), _SHOWN)}")
        return text

    def flag(self) -> bool:
        """True or false, which tables also write as 1 and 0; what is not given is false."""
        if self.value is None:
            return False
        if isinstance(self.value, bool) or (isinstance(self.value, (int, float)) and 0 <= self.value <= 1):
            return bool(self.value)
        raise self.error(f"must be true or false, not {kind_of(self.value)}")

    def number(self, minimum: float | None = None, maximum: float | None = None) -> float | None:
        """A finite number within bounds, both included; None if it is not given."""
        value = self.value
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"must be a number, not {kind_of(value)}")
        if (minimum is not None and value < minimum) or (maximum is not None and value > maximum) or not _finite(value):
            raise self.error(f"must be {_bounds(minimum, maximum)}, not {cut(str(value), _SHOWN)}")
        return float(value)

    def whole(self, minimum: int = 0, maximum: int = 10**12) -> int | None:
        """A whole number within bounds, both included, which tables also write with a point; None if it is not given."""
        found = self.number(minimum, maximum)
        if found is not None and not found.is_integer():
            raise self.error(f"must be a whole number, not {found:g}")
        return None if found is None else int(found)

    def moment(self) -> float | None:
        """A time as seconds since 1970 UTC; None if it is not given."""
        return self.number(0, LAST_MOMENT)

    def date(self) -> float | None:
        """A time in ISO 8601 (UTC where it names no zone) as seconds since 1970 UTC; None if it is not given."""
        if self.value is None:
            return None
        try:
            found = datetime.fromisoformat(self.text())
            seconds = (found.replace(tzinfo=UTC) if found.tzinfo is None else found).timestamp()
        except (ValueError, OverflowError):
            raise self.error(f"must be a time in ISO 8601, not {cut(repr(self.value), _SHOWN)}") from None
        return Field(seconds, self.path).moment()

    def parsed(self) -> Field:
        """The same, or if it is text, the JSON that it holds; blank text counts as not given."""
        if not isinstance(self.value, str):
            return self
        if not self.value.strip():
            return Field(None, self.path)
        try:
            return Field(loads_outside(self.value), self.path)
        except (ValueError, RecursionError):
            raise self.error("is text that is not JSON") from None


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _bounds(minimum: float | None, maximum: float | None) -> str:
    if minimum is None or maximum is None:
        return "a finite number" if minimum is None else f"{minimum:g} or more"
    return f"from {minimum:g} to {maximum:g}"
