"""JSON Lines files, one line after another, each with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.locations import Path as FieldPath
from manyhands.io.locations import Place
from manyhands.io.yaml_files import MOST_DEEP, Source

_MARK = "\ufeff"
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How a half of a surrogate pair looks."""


def read_jsonl(path: Path, name: str | None = None) -> Iterator[Source | UserError]:
    """Every line that is not blank: its value, or what is wrong with it. ``name``: what messages call the file.

    Raises UserError if the file can't be read.
    """
    called = name or str(path)
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield parsed_line(line, Place(called, (), {(): number}))
    except OSError as error:
        raise UserError(f"can't read {called}: {error.strerror or error}") from error


def parsed_line(line: bytes, place: Place) -> Source | UserError:
    """One line: its value, or what is wrong with it."""
    try:
        text = line.decode().removeprefix(_MARK).strip()
        value = _value(text)
        return Source(value, place, _written(text, value))
    except UnicodeDecodeError:
        return place.error("not UTF-8 text")
    except UnicodeEncodeError:
        return place.error("holds half a surrogate pair, which is no character")
    except json.JSONDecodeError as error:
        said = "a comma stands behind it" if text[error.pos :].strip() == "," else error.msg
        return place.error(f"not JSON: {said} at column {error.colno}")
    except RecursionError:
        return place.error("nested too deeply")
    except ValueError as error:
        return place.error(f"not JSON: {error}")


def _value(text: str) -> Json:
    value = _decode(text)
    if text.count("{") + text.count("[") > MOST_DEEP and _depth(value) > MOST_DEEP:
        raise ValueError(f"nested more than {MOST_DEEP} deep")
    if _HALF.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _depth(value: Json) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _written(text: str, value: Json) -> dict[FieldPath, str]:
    """How numbers that are fields of the line itself are written, where JSON would write them otherwise."""
    if not isinstance(value, dict) or not any(isinstance(entry, float) for entry in value.values()):
        return {}
    raw = json.loads(text, parse_float=str)
    return {(key,): raw[key] for key, entry in value.items() if isinstance(entry, float)}


def strict_decoder(shown: Callable[[str], str]) -> Callable[[str], Json]:
    """What parses JSON as it is defined: an object with a key twice, a number beyond a float's range and ``NaN`` raise ValueError.
    ``shown``: how keys and numbers are written in messages."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise ValueError(f"the key {shown(twice)} comes twice in one object")
        return value

    def finite(text: str) -> float:
        number = float(text)
        if not isfinite(number):
            raise ValueError(f"the number {shown(text)} is too large")
        return number

    def refuse(name: str) -> Json:
        raise ValueError(f"{name} is no JSON")

    decode: Callable[[str], Json] = json.JSONDecoder(
        object_pairs_hook=unique, parse_float=finite, parse_constant=refuse
    ).decode
    return decode


_decode = strict_decoder(shown)
