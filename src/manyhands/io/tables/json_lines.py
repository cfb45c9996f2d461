"""JSON Lines tables and datasets: one object a line.

The columns of a table are the keys of all lines, in the order in which they first appear. It is read once through when it is opened, to
learn them. A key that a line does not have is null there. Blank lines are left out (an empty object is a row of nulls). A line that is no
JSON object, or in which an object names a key twice, is a bad row; its keys make no columns.

In a dataset, any value may stand in a line, the last of two equal keys counts, and the text is UTF-8.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, loads_outside
from manyhands.io.json_lines import strict_decoder
from manyhands.io.tables.base import MAX_VALUE, RawRow, Record, TableInfo, Unit, at, reading, shown
from manyhands.io.tables.text import choose_encoding, numbered_lines, text_lines, undecoded

MAX_COLUMNS = 16_384
"""More different keys than this are no columns but a mistake, and would make every row that wide."""
_KEY = re.compile(r'"\s*:')
_LARGE_NUMBER = re.compile(r"\d[eE]\+?\d{3}|\d{300}")
"""How a number looks that may be too large for a float."""


_decode = strict_decoder(shown)


class ObjectsTable(ABC):
    """A table of objects. Its columns, which are the keys of all of them, are found by reading it once through."""

    unit: Unit = "line"

    def __init__(self, path: Path, format: str, encoding: str | None = None) -> None:
        """Raises UserError if the file can't be read, or no object has a key."""
        self.path = path
        self.info = TableInfo(str(path.absolute()), format, self._find_headers(), encoding)

    @abstractmethod
    def objects(self) -> Iterator[Record]:
        """All rows, from the beginning each time: an object, or a problem and no matter what."""

    def rows(self) -> Iterator[RawRow]:
        headers = self.info.headers
        known = frozenset(headers)
        for number, value, problem in self.objects():
            if problem is not None:
                yield RawRow(number, (), problem)
            elif value.keys() <= known:
                yield RawRow(number, list(map(value.get, headers)))
            else:
                problem = "has a key that was not there when the table was opened"
                raise UserError(at(self.path, number, problem, self.unit))

    def _find_headers(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        first_problem = ""
        for number, value, problem in self.objects():
            if problem is not None:
                first_problem = first_problem or f" ({self.unit} {number}: {problem})"
            elif not value.keys() <= found.keys():
                self._add_headers(number, value, found)
        if not found:
            problem = f"csv input must include a header row: here, a {self.unit} that is a JSON object with a key"
            raise UserError(f"{self.path}: {problem}{first_problem}")
        return tuple(found)

    def _add_headers(self, number: int, value: dict[str, Json], found: dict[str, None]) -> None:
        for name in value:
            if not name.strip() or undecoded(name, "Unicode"):
                problem = f"the key {shown(name)} can't be the name of a column"
                raise UserError(at(self.path, number, problem, self.unit))
            found[name] = None
        if len(found) > MAX_COLUMNS:
            problem = f"the table has more than {MAX_COLUMNS} columns (different keys)"
            raise UserError(at(self.path, number, problem, self.unit))


class JsonLinesTable(ObjectsTable):
    """A JSON Lines file whose columns are known."""

    def __init__(self, path: Path, encoding: str | None = None) -> None:
        """``encoding``: None to find it from the byte order mark. Raises UserError if the file can't be read, or no line holds an object
        with a key."""
        with reading(path):
            self._encoding = choose_encoding(path, encoding)
        super().__init__(path, "jsonl", self._encoding)

    def objects(self) -> Iterator[Record]:
        """All lines that are not blank."""
        with reading(self.path), closing(text_lines(self.path, self._encoding, "\n")) as lines:
            for number, line in enumerate(lines, 1):
                if line and not line.isspace():
                    problem = undecoded(line, self._encoding)
                    yield row_in_line(number, line) if problem is None else Record(number, None, problem)


def row_in_line(number: int, line: str) -> Record:
    """A line of a table as an object; a line that is none, or in which an object names a key twice, as a problem."""
    line = line.rstrip(" \t\r\n")  # else an object that is cut off would be faulted behind the line's end, in column 1
    record = _parsed(number, line, loads_outside)
    if record.problem is not None:
        return record
    if not isinstance(record.value, dict):
        return Record(number, None, "not a JSON object")
    # As many keys as there are colons behind quotes: none was named twice, and nothing in it has keys of its own.
    if len(_KEY.findall(line)) != len(record.value) or _LARGE_NUMBER.search(line):
        return _parsed(number, line, _decode)
    return record


def line_records(path: Path) -> Iterator[Record]:
    """The lines of a dataset that are not blank."""
    for number, line, problem in numbered_lines(path, MAX_VALUE):
        if problem is not None:
            yield Record(number, None, problem)
        elif line.strip():
            yield _record_in_line(number, line)


def _record_in_line(number: int, line: bytes) -> Record:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Record(number, None, f"invalid UTF-8 at byte {error.start + 1}")
    return _parsed(number, text, loads_outside)


def _parsed(number: int, text: str, parse: Callable[[str], Json]) -> Record:
    try:
        return Record(number, parse(text))
    except json.JSONDecodeError as error:
        return Record(number, None, f"invalid JSON at column {error.colno}: {error.msg}")
    except RecursionError:
        return Record(number, None, "invalid JSON: nested too deeply")
    except ValueError as error:
        return Record(number, None, f"invalid JSON: {error}")
