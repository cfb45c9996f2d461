"""JSON Lines tables and datasets, one object a line, and JSON datasets, the elements of one large array.

The columns of a JSON Lines table are the keys of all lines, in the order in which they first appear. It is read once through when it is
opened, to learn them. A key that a line does not have is null there. Blank lines are left out (an empty object is a row of nulls). A line
that is no JSON object, or in which an object names a key twice, is a bad row; its keys make no columns. In a dataset, any value may stand
in a line, the last of two equal keys counts, and the text is UTF-8.

An array, ``[…]`` or ``{"data": […]}`` with other keys beside it, is read element by element with a bounded buffer: the standard library
parses each element, and only where the elements are is found here.
"""

from __future__ import annotations

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, TooDeep, check_depth, exact_line, loads, loads_outside
from manyhands.io.json_files import strict_decoder
from manyhands.io.tables.base import (
    GZIP_DAMAGE,
    MAX_VALUE,
    RawRow,
    Record,
    TableInfo,
    Unit,
    Values,
    at,
    column_names,
    nameless_notice,
    open_bytes,
    reading,
    shown,
)
from manyhands.io.tables.text import choose_encoding, numbered_lines, text_lines, undecoded

_CHUNK = 1 << 20
_WHITESPACE = " \t\n\r"
# A syntax error this close to the end of the buffer may only mean that the rest has not been read yet.
_MARGIN = 32
MAX_COLUMNS = 16_384
"""More different keys than this are no columns but a mistake, and would make every row that wide."""
_KEY = re.compile(r'"\s*:')
_LARGE_NUMBER = re.compile(r"\d[eE]\+?\d{3}|\d{300}")
"""How a number looks that may be too large for a float."""
_decode = strict_decoder(shown)


def holds_json_lines(path: Path) -> bool:
    """Whether a .json file holds JSON Lines: its first line is a whole object, and not one that wraps the rows."""
    with open_bytes(path) as stream:
        try:
            line = stream.readline(1 << 20).removeprefix(codecs.BOM_UTF8).strip()
            value = loads(line) if line.startswith(b"{") else None
        except (ValueError, RecursionError, *GZIP_DAMAGE):
            return False
    return isinstance(value, dict) and not isinstance(value.get("data"), list)


def json_records(path: Path) -> Iterator[Record]:
    """The elements of the array in a file. Raises UserError where the rest of it can't be read."""
    with open_bytes(path) as stream:
        try:
            for number, (value, problem) in enumerate(JsonArray(stream), 1):
                yield Record(number, value, problem)
        except JsonArrayError as error:
            raise UserError(f"{path}: {error}") from error
        except GZIP_DAMAGE as error:
            raise UserError(f"{path}: the compressed data is damaged: {error}") from error


class JsonArrayError(ValueError):
    """The rest of the file can't be read; the message says where and why."""


class JsonArray:
    """Iterates over pairs of an element and None, or None and why the element can't be used (it holds NaN, or is nested too
    deeply).

    Raises JsonArrayError while iterating.
    """

    def __init__(self, stream: BinaryIO, errors: str = "strict") -> None:
        """``errors``: the handling of bytes that are not UTF-8, as ``bytes.decode`` has it."""
        self.followed = False
        """Whether anything stands behind the array; known once ``texts`` has come to its end."""
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors)
        self._text = ""
        self._index = 0
        self._start = 0
        self._line = 1
        self._column = 1
        self._ended = False
        self._problem: str | None = None
        self._parser = json.JSONDecoder(parse_constant=self._note_constant)

    def __iter__(self) -> Iterator[tuple[Json, str | None]]:
        start = self._next_character()
        if start == "{":
            self._find_data()
        elif start != "[":
            raise self._error('expected an array of objects, or an object with the rows in "data"')
        for value in self._elements():
            self._check_depth()
            yield (value, None) if self._problem is None else (None, f"invalid JSON: {self._problem}")

    def texts(self) -> Iterator[str]:
        """The elements of a mere array as they are written, whatever they hold; in place of iterating. A comma may follow the last one."""
        if self._next_character() != "[":
            raise self._error("expected an array")
        for _ in self._elements(comma_at_end=True):
            yield self._text[self._start : self._index]
        self._index += 1
        self.followed = self._skip_blanks()

    def _find_data(self) -> None:
        """Go to the ``[`` of the array under the key "data"."""
        self._index += 1
        while self._next_character() != "}":
            key = self._value()
            self._expect(":")
            if key == "data" and self._next_character() == "[":
                return
            self._next_character()
            self._value()
            if self._next_character() == ",":
                self._index += 1
        raise self._error('the object has no array called "data"')

    def _elements(self, *, comma_at_end: bool = False) -> Iterator[Json]:
        """The values of the array that begins here, each with its text from ``_start`` to ``_index``."""
        self._index += 1
        if self._next_character() == "]":
            return
        while True:
            self._problem = None
            self._next_character()
            yield self._value()
            if self._next_character() == "]":
                return
            self._expect(",")
            if comma_at_end and self._next_character() == "]":
                return

    def _expect(self, character: str) -> None:
        if self._next_character() != character:
            raise self._error(f"expected {character!r}")
        self._index += 1

    def _next_character(self) -> str:
        """Skip white space; the character there is not consumed. Raises at the end of the file."""
        if not self._skip_blanks():
            raise self._error("the file ends early")
        return self._text[self._index]

    def _skip_blanks(self) -> bool:
        """Whether anything stands behind the white space here."""
        while True:
            while self._index < len(self._text):
                if self._text[self._index] not in _WHITESPACE:
                    return True
                self._index += 1
            if not self._read_more(_CHUNK):
                return False

    def _value(self) -> Json:
        """Parse the value that begins here and go behind it."""
        size = _CHUNK
        while True:
            try:
                value, end = self._parser.raw_decode(self._text, self._index)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - _MARGIN
                if not unfinished or not self._read_more(size):
                    self._index = error.pos
                    raise self._error(error.msg) from None
            except RecursionError:
                raise self._error("nested too deeply") from None
            except ValueError as error:
                raise self._error(str(error)) from None
            else:
                # A number may go on in what has not been read; everything else says where it ends.
                open_ended = not isinstance(value, (dict, list, str)) and end > len(self._text) - _MARGIN
                if not open_ended or not self._read_more(size):
                    self._start, self._index = self._index, end
                    return value
            size *= 2

    def _check_depth(self) -> None:
        try:
            check_depth(self._text[self._start : self._index])
        except TooDeep:
            self._problem = "nested too deeply"

    def _read_more(self, size: int) -> bool:
        """Drop what is done with and read on; False at the end of the file."""
        if self._ended:
            return False
        self._drop()
        if len(self._text) > MAX_VALUE:
            raise self._error(f"an element is longer than {MAX_VALUE >> 20} MiB")
        data = self._stream.read(size)
        self._ended = not data
        try:
            self._text += self._decode.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise self._error(f"invalid UTF-8 behind here ({error.reason})") from None
        return True

    def _drop(self) -> None:
        self._line, self._column = self._position()
        self._text = self._text[self._index :]
        self._index = 0

    def _position(self) -> tuple[int, int]:
        newlines = self._text.count("\n", 0, self._index)
        if not newlines:
            return self._line, self._column + self._index
        return self._line + newlines, self._index - self._text.rfind("\n", 0, self._index)

    def _error(self, message: str) -> JsonArrayError:
        line, column = self._position()
        return JsonArrayError(f"line {line}, column {column}: {message}")

    def _note_constant(self, name: str) -> None:
        self._problem = f"{name} is not JSON"


class ObjectsTable(ABC):
    """A table of objects. Its columns, which are the keys of all of them, are found by reading it once through."""

    unit: Unit = "line"

    def __init__(self, path: Path, format: str, encoding: str | None = None) -> None:
        """Raises UserError if the file can't be read, or no object has a key."""
        self.path = path
        self._keys = self._find_keys()
        names = column_names(str(path), self._keys)
        self.notices = nameless_notice(str(path), self._keys, names)
        self.info = TableInfo(str(path.absolute()), format, names, encoding)

    @abstractmethod
    def objects(self) -> Iterator[Record]:
        """All rows, from the beginning each time: an object, or a problem and no matter what."""

    def rows(self) -> Iterator[RawRow]:
        keys = self._keys
        known = frozenset(keys)
        for number, value, problem in self.objects():
            if problem is not None:
                yield RawRow(number, (), problem)
            elif value.keys() <= known:
                yield RawRow(number, list(map(value.get, keys)))
            else:
                problem = "has a key that was not there when the table was opened"
                raise UserError(at(self.path, number, problem, self.unit))

    def _find_keys(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        first_problem = ""
        for number, value, problem in self.objects():
            if problem is not None:
                first_problem = first_problem or f" ({self.unit} {number}: {problem})"
            elif not value.keys() <= found.keys():
                self._add_keys(number, value, found)
        if not found:
            problem = f"csv input must include a header row: here, a {self.unit} that is a JSON object with a key"
            raise UserError(f"{self.path}: {problem}{first_problem}")
        return tuple(found)

    def _add_keys(self, number: int, value: dict[str, Json], found: dict[str, None]) -> None:
        for name in value:
            if undecoded(name, "Unicode"):
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


def write_jsonl(handle: BinaryIO, names: Sequence[str], rows: Iterable[Values]) -> int:
    """Write an export as JSON Lines: the rows as objects with the columns' names; returns how many."""
    written = 0
    for row in rows:
        handle.write(exact_line(dict(zip(names, row, strict=True))))
        written += 1
    return written
