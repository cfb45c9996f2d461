"""The formats of JSON Schema (draft 2020-12, validation, section 7.3) that jsonschema leaves to packages which are seldom installed.

Without these, a schema that asks for ``date-time`` or ``uri`` would let anything through.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

from jsonschema import FormatChecker

_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_DATE_TIME = re.compile(rf"(\d{{4}}-\d\d-\d\d)[Tt]{_TIME}", re.ASCII)
_DURATION = re.compile(
    r"P(?:\d+W|(?=[\dT])(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?)", re.ASCII
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_URI_CHARACTER = r"(?:[A-Za-z0-9._~:/?@!$&'()*+,;=\[\]-]|%[0-9A-Fa-f]{2})"
_IRI_CHARACTER = r"(?:[^\s\x00-\x20\x7f<>\"{}|\\^`%#]|%[0-9A-Fa-f]{2})"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*:"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_PATTERNS = {
    "time": re.compile(_TIME, re.ASCII),
    "duration": _DURATION,
    "hostname": _HOSTNAME,
    "uri": re.compile(rf"{_SCHEME}{_URI_CHARACTER}*(?:#{_URI_CHARACTER}*)?"),
    "uri-reference": re.compile(rf"{_URI_CHARACTER}*(?:#{_URI_CHARACTER}*)?"),
    "iri": re.compile(rf"{_SCHEME}{_IRI_CHARACTER}*(?:#{_IRI_CHARACTER}*)?"),
    "iri-reference": re.compile(rf"{_IRI_CHARACTER}*(?:#{_IRI_CHARACTER}*)?"),
    "json-pointer": re.compile(_POINTER),
    "relative-json-pointer": re.compile(rf"(?:0|[1-9]\d*)(?:#|{_POINTER})", re.ASCII),
}
"""RFC 3339 (time, duration: its appendix A), RFC 1123 (hostname), RFC 3986 and 3987 (by their characters), RFC 6901."""


def make_format_checker() -> FormatChecker:
    """A checker of every format that jsonschema knows by itself, and of the above."""
    checker = FormatChecker()
    for name, pattern in _PATTERNS.items():
        checker.checks(name)(_matcher(pattern))
    checker.checks("date-time")(_is_date_time)
    return checker


def _matcher(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    def matches(value: object) -> bool:
        return not isinstance(value, str) or pattern.fullmatch(value) is not None

    return matches


def _is_date_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    found = _DATE_TIME.fullmatch(value)
    if found is None:
        return False
    try:
        datetime.strptime(found[1], "%Y-%m-%d")
    except ValueError:
        return False
    return True
