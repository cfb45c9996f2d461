"""JSON as the project uses it: fast and compact for the journal, conventional for the files people read.

orjson does the work where it can. It refuses to write integers beyond 64 bits and lone surrogates, both of which models do write, and it
reads such integers as floats, so each function falls back to the standard library for those.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from math import isfinite
from typing import Any

import orjson

type_error = (TypeError, orjson.JSONEncodeError)

_DIGITS = bytes(ord("0") if chr(code).isdecimal() and code < 128 else code for code in range(256))
_MANY_DIGITS = b"0" * 19
"""Fewer digits than this fit 64 bits."""

_MAX_DIGITS = 4000
"""What Python reads as a number without ado."""

_encode_line = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

MAX_DEPTH = 200
"""Lists and objects within each other that JSON from outside may have; what is deeper can't be written down again by every JSON library."""
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_BREAKS = ("\u2028", "\u2029", "\x85")
"""Where Unicode (and so ``str.splitlines``) ends a line, and JSON does not ask for an escape."""
_BREAKS_IN_UTF8 = tuple((mark.encode(), f"\\u{ord(mark):04x}".encode()) for mark in _BREAKS)
_STRING = rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
_STRINGS = re.compile(_STRING, re.DOTALL)
_PIECE = re.compile(rb'(?:[^"]{0,1000}+%b){0,1000}+[^"]{0,1000}+' % _STRING, re.DOTALL)
"""Up to a thousand strings and what is between them, a megabyte at most, so that a document which is too deep is known for one by its first
pieces."""

Json = Any
"""Any JSON value: None, bool, int, float, str, list or dict with string keys."""


class TooDeep(ValueError, RecursionError):
    """JSON with too many lists and objects within each other."""

    def __init__(self) -> None:
        super().__init__("the JSON is nested too deeply")


def dumps(value: Json) -> bytes:
    """Compact UTF-8 JSON with keys in their given order."""
    try:
        return orjson.dumps(value)
    except type_error:
        return _written(value, separators=(",", ":")).encode()


def as_text(value: Json) -> str:
    """A text as it is, any other value as compact JSON."""
    return value if isinstance(value, str) else dumps(value).decode()


def canonical(value: Json) -> bytes:
    """Compact UTF-8 JSON with sorted keys: equal values give equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except type_error:
        return _written(value, separators=(",", ":"), sort_keys=True).encode()


def loads(data: bytes | str) -> Json:
    """Parse JSON.

    Raises ValueError (``json.JSONDecodeError``) for anything that is not one JSON document; NaN and Infinity are refused, and numbers of
    more than 4,300 digits. Raises TooDeep.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if _MANY_DIGITS in raw.translate(_DIGITS):
        return _loads(data)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _loads(data)


def loads_outside(data: bytes | str) -> Json:
    """Parse JSON that came from outside: a model's, a tool's, a server's. As ``loads``, but what is nested so deeply that it can't be
    worked on safely is refused."""
    check_depth(data)
    return loads(data)


def object_or_list(text: str) -> Json:
    """The object or list that a text from outside is, from its first character on; None for any other text."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return loads_outside(text)
    except (ValueError, RecursionError):
        return None


def spaced(value: Json) -> str:
    """JSON on one line, as Python's ``json`` module separates it: non-ASCII kept.

    Lone surrogates, which UTF-8 can't hold, become U+FFFD.
    """
    try:
        text = orjson.dumps(value).decode() if type(value) is str else _encode_line(value)
    except type_error:  # a lone surrogate, if it is a text
        text = _encode_line(value)
    except ValueError:
        text = _encode_line(finite(value))
    return text if text.isascii() else without_surrogates(text)


def line(value: Json) -> str:
    """One line of a JSON Lines file, without the newline: as ``spaced``, but that U+2028, U+2029 and U+0085 are escaped."""
    text = spaced(value)
    if not text.isascii():
        for mark in _BREAKS:
            if mark in text:
                text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def line_bytes(value: Json) -> bytes:
    """As ``line``, in UTF-8. Texts take a fifth of the time."""
    if type(value) is str:
        try:
            return unbroken(orjson.dumps(value))
        except type_error:  # a lone surrogate
            pass
    return line(value).encode()


def compact_line(value: Json) -> bytes:
    """One line of a JSON Lines file, with the newline: as ``line``, but without blanks. Ten times as fast.

    Lone surrogates, which UTF-8 can't hold, become U+FFFD.
    """
    try:
        return unbroken(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
    except type_error:
        text = _written(value, separators=(",", ":"), ensure_ascii=False)
        return unbroken((without_surrogates(text) + "\n").encode())


def exact_line(value: Json) -> bytes:
    """As ``compact_line``, but lone surrogates stay, escaped."""
    return unbroken(dumps(value)) + b"\n"


def unbroken(document: bytes) -> bytes:
    """JSON in UTF-8 with U+2028, U+2029 and U+0085 escaped: the same value, and one line also to readers that split text at every line
    end that Unicode knows. (JSON itself has the others escaped.)"""
    if document.isascii():
        return document
    for mark, escape in _BREAKS_IN_UTF8:
        if mark[:1] in document and mark in document:  # a byte is found much faster than three
            document = document.replace(mark, escape)
    return document


def pretty(value: Json) -> str:
    """Indented JSON for a file that people read, without a newline at its end."""
    return _written(value, indent=2, ensure_ascii=False)


def _written(value: Json, **options: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(finite(value), **options)


def finite(value: Json) -> Json:
    """The value with null in place of each number that JSON can't hold (NaN, infinities), as orjson writes them."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value


def loads_mended(data: bytes | str) -> Json:
    """As ``loads_outside``, for what others said that must not be lost: NaN and infinities, which are not JSON, are read as null, and so
    are integers of thousands of digits."""
    check_depth(data)
    try:
        return loads(data)
    except ValueError:
        return _loads(data, lambda _: None, _int_or_null)


def without_surrogates(text: str) -> str:
    """The text with every lone surrogate replaced by U+FFFD, so that it can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def too_deep(data: bytes | str) -> bool:
    """Whether a JSON document is nested more deeply than what comes from outside may be."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for piece in _PIECE.finditer(raw):
        marks = _STRINGS.sub(b"", piece[0]).translate(None, _NO_BRACKETS)
        depths = list(accumulate(map(_STEPS.__getitem__, marks), initial=depth))
        if max(depths) > MAX_DEPTH:
            return True
        depth = depths[-1]
    return False


def check_depth(data: bytes | str) -> None:
    """Raises TooDeep if a JSON document is nested more deeply than what comes from outside may be."""
    if too_deep(data):
        raise TooDeep


def _loads(
    data: bytes | str, constant: Callable[[str], Json] | None = None, integer: Callable[[str], Json] | None = None
) -> Json:
    try:
        return json.loads(data, parse_constant=constant or _refuse_constant, parse_int=integer)
    except RecursionError:
        raise TooDeep from None


def _int_or_null(digits: str) -> int | None:
    return int(digits) if len(digits) < _MAX_DIGITS else None


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def kind_of(value: Json) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
    return "an object"
