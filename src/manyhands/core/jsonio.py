"""JSON as the project uses it: fast and compact for the journal, conventional for the files people read.

orjson does the work where it can. It refuses to write integers beyond 64 bits and lone surrogates, both of which models do write, and it
reads such integers as floats, so each function falls back to the standard library for those.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

type_error = (TypeError, orjson.JSONEncodeError)

_DIGITS = bytes(ord("0") if chr(code).isdecimal() and code < 128 else code for code in range(256))
_MANY_DIGITS = b"0" * 19
"""Fewer digits than this fit 64 bits."""

_encode_line = json.JSONEncoder(ensure_ascii=False).encode

Json = Any
"""Any JSON value: None, bool, int, float, str, list or dict with string keys."""


def dumps(value: Json) -> bytes:
    """Compact UTF-8 JSON with keys in their given order."""
    try:
        return orjson.dumps(value)
    except type_error:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def canonical(value: Json) -> bytes:
    """Compact UTF-8 JSON with sorted keys: equal values give equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except type_error:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True, sort_keys=True).encode()


def loads(data: bytes | str) -> Json:
    """Parse JSON.

    Raises ValueError (``json.JSONDecodeError``) for anything that is not one JSON document; NaN and Infinity are refused.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if _MANY_DIGITS in raw.translate(_DIGITS):
        return json.loads(data, parse_constant=_refuse_constant)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(data, parse_constant=_refuse_constant)


def line(value: Json) -> str:
    """One line of a JSON Lines file, without the newline: non-ASCII kept, separators of Python's ``json`` module.

    Lone surrogates, which UTF-8 can't hold, become U+FFFD.
    """
    text = _encode_line(value)
    return text if text.isascii() else without_surrogates(text)


def compact_line(value: Json) -> bytes:
    """One line of a JSON Lines file, with the newline: non-ASCII kept, no blanks. Ten times as fast as ``line``.

    Lone surrogates, which UTF-8 can't hold, become U+FFFD.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    except type_error:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return (without_surrogates(text) + "\n").encode()


def without_surrogates(text: str) -> str:
    """The text with every lone surrogate replaced by U+FFFD, so that it can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
