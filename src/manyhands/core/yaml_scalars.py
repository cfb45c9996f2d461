"""What plain scalars mean in YAML 1.2: the core schema (YAML 1.2.2, section 10.3.2).

Dates, ``yes``, ``no``, ``on``, ``off`` and ``1:30`` are text; ``012`` is twelve and ``0o14`` is too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite

from manyhands.core.jsonio import Json

_TAG = "tag:yaml.org,2002:"
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_WHOLE = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MOST_DIGITS = 4000


def plain_value(text: str) -> Json:
    """The value of a scalar without quotes and tag. Raises ValueError for a number that JSON can't hold."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text[0] in "+-.0123456789":
        for pattern, value in ((_WHOLE, _whole), (_NUMBER, _number), (_NO_NUMBER, _number)):
            if pattern.fullmatch(text):
                return value(text)
    return text


def tagged_value(tag: str, text: str) -> Json:
    """The value of a scalar with a tag (``!!str 012``). Raises ValueError for an unknown tag, or text that does not fit it."""
    if tag in ("!", f"{_TAG}str"):
        return text
    fits = _FITS.get(tag.removeprefix(_TAG))
    if fits is None:
        raise ValueError(f"the tag {short(tag)} is not known here")
    value = plain_value(text)
    if isinstance(value, int) and not isinstance(value, bool) and tag.endswith("float"):
        return float(value)
    if not fits(value):
        raise ValueError(f"{text!r} does not fit the tag {short(tag)}")
    return value


def short(tag: str) -> str:
    """A tag as it is written: ``!!str``."""
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too long")
    return (
        int(text, 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10)
        if text[:2] in _BASES
        else int(text)
    )


def _number(text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text) else float("inf")
    if not isfinite(number):
        raise ValueError(
            f"{text if len(text) < 30 else text[:29] + '…'} is no number that JSON can hold; quote it if it is text"
        )
    return number


_BASES = ("0o", "0x")
_FITS: dict[str, Callable[[Json], bool]] = {
    "null": lambda value: value is None,
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, float),
}
