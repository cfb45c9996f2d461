"""JSON files, read whole, and JSON Lines files, line by line, with errors that name file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, loads
from manyhands.core.settings import shown
from manyhands.io.files import MAX_READ, read_inside
from manyhands.io.locations import MAX_DEPTH, Location, Source
from manyhands.io.locations import Path as FieldPath

_MARK = "\ufeff"
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How a half of a surrogate pair looks."""


def read_json(
    path: Path, parse: Callable[[bytes], Json] = loads, *, within: Path | None = None, max_bytes: int = MAX_READ
) -> Json:
    """What a file holds. ``parse``: how its bytes are read; ValueError from it is said to be no JSON. ``within``: the folder of a file that
    nobody knows who wrote: it is read as ``read_inside`` does, up to ``max_bytes``. Raises UserError."""
    try:
        return parse(path.read_bytes() if within is None else read_inside(within, path, max_bytes))
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror or error}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None


def read_object(
    path: Path, parse: Callable[[bytes], Json] = loads, *, within: Path | None = None, max_bytes: int = MAX_READ
) -> dict[str, Any]:
    """The object that a file holds; the rest as of ``read_json``. Raises UserError, also if it holds something else."""
    found = read_json(path, parse, within=within, max_bytes=max_bytes)
    if not isinstance(found, dict):
        raise UserError(f"{path}: not a JSON object")
    return found


def read_jsonl(path: Path, name: str | None = None) -> Iterator[Source | UserError]:
    """Every line that is not blank: its value, or what is wrong with it. ``name``: what messages call the file.

    Raises UserError if the file can't be read.
    """
    called = name or str(path)
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield parsed_line(line, Location(called, (), {(): number}))
    except OSError as error:
        raise UserError(f"can't read {called}: {error.strerror or error}") from error


def parsed_line(line: bytes, location: Location) -> Source | UserError:
    """One line: its value, or what is wrong with it."""
    try:
        text = line.decode().removeprefix(_MARK).strip()
        value = _value(text)
        return Source(value, location, _written(text, value))
    except UnicodeDecodeError:
        return location.error("not UTF-8 text")
    except UnicodeEncodeError:
        return location.error("holds half a surrogate pair, which is no character")
    except json.JSONDecodeError as error:
        said = "a comma stands behind it" if text[error.pos :].strip() == "," else error.msg
        return location.error(f"not JSON: {said} at column {error.colno}")
    except RecursionError:
        return location.error("nested too deeply")
    except ValueError as error:
        return location.error(f"not JSON: {error}")


def _value(text: str) -> Json:
    value = _decode(text)
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
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
