"""Calendar days as people write them, without time zones: a date is the day that is written, wherever the reader is.

Formats are made of ``YYYY YY MMMM MMM MM M DD D HH H hh h mm m ss s A a``, or of the percent signs of ``strftime`` (``%d/%m/%Y``), and of
other characters, which mean themselves, as does what stands in square brackets. Behind a date there may be a time, which does not count.
Names of months are English; case does not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

_NAMES = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_SHORT = tuple(name[:3] for name in _NAMES)
_CENTURY_TURN = 69
"""Years of two digits: 69 to 99 are of the 20th century, as POSIX says."""

_PARTS = {
    "YYYY": r"(?P<year>\d{4})",
    "YY": r"(?P<year>\d{2})",
    "MMMM": rf"(?P<month>{'|'.join(_NAMES)})",
    "MMM": rf"(?P<month>{'|'.join(_SHORT)}|sept)",
    "MM": r"(?P<month>\d{2})",
    "M": r"(?P<month>\d{1,2})",
    "DD": r"(?P<day>\d{2})",
    "D": r"(?P<day>\d{1,2})",
    **dict.fromkeys(("HH", "hh", "mm", "ss"), r"\d{2}"),
    **dict.fromkeys(("H", "h", "m", "s"), r"\d{1,2}"),
    **dict.fromkeys(("A", "a"), r"[ap]\.?m\.?"),
}
_PERCENT = {
    "%Y": "YYYY",
    "%y": "YY",
    "%B": "MMMM",
    "%b": "MMM",
    "%m": "M",
    "%-m": "M",
    "%d": "D",
    "%-d": "D",
    "%H": "H",
    "%I": "h",
    "%M": "m",
    "%S": "s",
    "%p": "A",
}
_TOKEN = re.compile(r"\[(?P<literal>[^\]]*)\]|" + "|".join((*_PARTS, r"%-?[A-Za-z]", r"\s+", ".")), re.DOTALL)

_ISO = re.compile(r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})(?:[T ].*)?")
_USUAL = (
    *("D-MMM-YYYY", "D-MMMM-YYYY", "D MMM YYYY", "D MMMM YYYY", "D. MMMM YYYY"),
    *("MMM D, YYYY", "MMMM D, YYYY", "MMM D YYYY", "MMMM D YYYY", "MMM. D, YYYY"),
    *("YYYY/M/D", "YYYY.M.D", "YYYY-M-D", "YYYYMMDD", "D.M.YYYY"),
)
"""What can be read in one way only; the last one because nobody writes months first with full stops."""
_MONTH_FIRST = ("M/D/YYYY", "M-D-YYYY")
_DAY_FIRST = ("D/M/YYYY", "D-M-YYYY")
_TIME = r"(?:(?:T|,?\s+)\d{1,2}:\d{2}\b.*)?"
_WEEKDAY = re.compile(r"^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Day:
    """A day. ``guessed``: it could be read with day and month the other way round too, and was read with the month first."""

    date: date
    guessed: bool = False


def day_of(text: str, formats: Sequence[str] = ()) -> Day | None:
    """The day that a text names; None if it names none.

    The formats are tried in their order, then ISO 8601; without formats also what is usual elsewhere. ``03/04/2025`` is then
    4 March, as JavaScript and Americans read it, and marked as guessed.
    """
    text = text.strip()
    for each in formats:
        found = _read(pattern_of(each), text)
        if found:
            return Day(found)
    iso = _read(_ISO, text)
    if iso or formats:
        return Day(iso) if iso else None
    return _usual(_WEEKDAY.sub("", text))


def _usual(text: str) -> Day | None:
    found = _first(_USUAL, text)
    if found:
        return Day(found)
    month_first, day_first = _first(_MONTH_FIRST, text), _first(_DAY_FIRST, text)
    if month_first:
        return Day(month_first, guessed=day_first not in (None, month_first))
    return Day(day_first) if day_first else None


def _first(formats: Sequence[str], text: str) -> date | None:
    return next((found for each in formats if (found := _read(pattern_of(each), text))), None)


@lru_cache(maxsize=256)
def pattern_of(wanted: str) -> re.Pattern[str]:
    """A format as a regular expression.

    Raises ValueError if it lacks day, month or year, or has one twice.
    """
    parts = []
    for token in _TOKEN.finditer(wanted):
        part = _PERCENT.get(token[0], token[0])
        if part.startswith("%"):
            raise ValueError(f"{token[0]} is not known in formats of dates")
        literal = token["literal"]
        parts.append(
            _PARTS.get(part) or (r"\s+" if part.isspace() else re.escape(part if literal is None else literal))
        )
    text = "".join(parts)
    for name in ("year", "month", "day"):
        if text.count(f"(?P<{name}>") != 1:
            raise ValueError(f"must have the {name} once, as in DD/MM/YYYY")
    return re.compile(text + _TIME, re.IGNORECASE)


def _read(pattern: re.Pattern[str], text: str) -> date | None:
    match = pattern.fullmatch(text)
    if match is None:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:
        year += 1900 if year >= _CENTURY_TURN else 2000
    try:
        return date(year, _month(match["month"]), int(match["day"]))
    except ValueError:
        return None


def _month(text: str) -> int:
    return int(text) if text.isdecimal() else _SHORT.index(text[:3].lower()) + 1
