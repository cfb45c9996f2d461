"""JSON Lines tables: one object a line; the columns are the keys of all lines, in the order in which they first appear.

The file is read once through when it is opened, to learn the columns. A key that a line does not have is null there. Blank lines are
left out (an empty object is a row of nulls). A line that is no JSON object, or in which an object names a key twice, is a bad row;
its keys make no columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, loads_outside
from manyhands.io.tables.base import RawRow, TableInfo, Unit, at, reading, shown
from manyhands.io.tables.text import choose_encoding, text_lines, undecoded

MAX_COLUMNS = 16_384
"""More different keys than this are no columns but a mistake, and would make every row that wide."""
_KEY = re.compile(r'"\s*:')
_LARGE_NUMBER = re.compile(r"\d[eE]\+?\d{3}|\d{300}")
"""How a number looks that may be too large for a float."""


class JsonLinesTable:
    """A JSON Lines file whose columns are known."""

    unit: Unit = "line"

    def __init__(self, path: Path, encoding: str | None = None) -> None:
        """Raises UserError if the file can't be read, or no line holds an object with a key."""
        self.path = path
        with reading(path):
            self._encoding = choose_encoding(path, encoding)
        self.info = TableInfo(str(path.absolute()), "jsonl", self._find_headers(), self._encoding)

    def rows(self) -> Iterator[RawRow]:
        headers = self.info.headers
        known = frozenset(headers)
        for number, value, problem in self._lines():
            if problem is not None:
                yield RawRow(number, (), problem)
            elif value.keys() <= known:
                yield RawRow(number, list(map(value.get, headers)))
            else:
                raise UserError(at(self.path, number, "has a key that was not there when the table was opened"))

    def _find_headers(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        first_problem = ""
        for number, value, problem in self._lines():
            if problem is not None:
                first_problem = first_problem or f" (line {number}: {problem})"
            elif not value.keys() <= found.keys():
                self._add_headers(number, value, found)
        if not found:
            problem = "csv input must include a header row: here, a line that is a JSON object with a key"
            raise UserError(f"{self.path}: {problem}{first_problem}")
        return tuple(found)

    def _add_headers(self, number: int, value: dict[str, Json], found: dict[str, None]) -> None:
        for name in value:
            if not name.strip() or undecoded(name, "Unicode"):
                problem = f"the key {shown(name)} can't be the name of a column"
                raise UserError(at(self.path, number, problem))
            found[name] = None
        if len(found) > MAX_COLUMNS:
            raise UserError(at(self.path, number, f"the table has more than {MAX_COLUMNS} columns (different keys)"))

    def _lines(self) -> Iterator[_Line]:
        """All lines that are not blank."""
        with reading(self.path), closing(text_lines(self.path, self._encoding, "\n")) as lines:
            for number, line in enumerate(lines, 1):
                if line and not line.isspace():
                    problem = undecoded(line, self._encoding)
                    yield _parse(number, line) if problem is None else _Line(number, {}, problem)


class _Line(NamedTuple):
    number: int
    value: dict[str, Json]
    problem: str | None = None


def _parse(number: int, line: str) -> _Line:
    line = line.rstrip(" \t\r\n")  # else an object that is cut off would be faulted behind the line's end, in column 1
    try:
        value = loads_outside(line)
        if not isinstance(value, dict):
            return _Line(number, {}, "not a JSON object")
        # As many keys as there are colons behind quotes: none was named twice, and nothing in it has keys of its own.
        if len(_KEY.findall(line)) != len(value) or _LARGE_NUMBER.search(line):
            value = json.loads(line, object_pairs_hook=_object, parse_float=_finite)
    except json.JSONDecodeError as error:
        return _Line(number, {}, f"invalid JSON at column {error.colno}: {error.msg}")
    except RecursionError:
        return _Line(number, {}, "invalid JSON: nested too deeply")
    except ValueError as error:
        return _Line(number, {}, f"invalid JSON: {error}")
    return _Line(number, value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} comes twice in one object")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"the number {shown(text)} is too large")
    return number
