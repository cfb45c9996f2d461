"""JSON datasets: the elements of a large array, ``[…]`` or ``{"data": […]}`` with other keys beside it, read one by one.

The standard library parses each element; this module only finds where the elements are, with a bounded buffer.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, TooDeep, check_depth, loads
from manyhands.io.tables.base import GZIP_DAMAGE, MAX_VALUE, Record, open_bytes

_CHUNK = 1 << 20
_WHITESPACE = " \t\n\r"
# A syntax error this close to the end of the buffer may only mean that the rest has not been read yet.
_MARGIN = 32


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

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._place = 0
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
        yield from self._elements()

    def _find_data(self) -> None:
        """Go to the ``[`` of the array under the key "data"."""
        self._place += 1
        while self._next_character() != "}":
            key = self._value()
            self._expect(":")
            if key == "data" and self._next_character() == "[":
                return
            self._next_character()
            self._value()
            if self._next_character() == ",":
                self._place += 1
        raise self._error('the object has no array called "data"')

    def _elements(self) -> Iterator[tuple[Json, str | None]]:
        self._place += 1
        if self._next_character() == "]":
            return
        while True:
            self._problem = None
            self._next_character()
            value = self._value()
            yield (value, None) if self._problem is None else (None, f"invalid JSON: {self._problem}")
            if self._next_character() == "]":
                return
            self._expect(",")

    def _expect(self, character: str) -> None:
        if self._next_character() != character:
            raise self._error(f"expected {character!r}")
        self._place += 1

    def _next_character(self) -> str:
        """Skip white space; the character there is not consumed. Raises at the end of the file."""
        while True:
            while self._place < len(self._text):
                if self._text[self._place] not in _WHITESPACE:
                    return self._text[self._place]
                self._place += 1
            if not self._read_more(_CHUNK):
                raise self._error("the file ends early")

    def _value(self) -> Json:
        """Parse the value that starts here and go behind it."""
        size = _CHUNK
        while True:
            try:
                value, end = self._parser.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - _MARGIN
                if not unfinished or not self._read_more(size):
                    self._place = error.pos
                    raise self._error(error.msg) from None
            except RecursionError:
                raise self._error("nested too deeply") from None
            except ValueError as error:
                raise self._error(str(error)) from None
            else:
                # A number may go on in what has not been read; everything else says where it ends.
                open_ended = not isinstance(value, (dict, list, str)) and end > len(self._text) - _MARGIN
                if not open_ended or not self._read_more(size):
                    self._check_depth(end)
                    self._place = end
                    return value
            size *= 2

    def _check_depth(self, end: int) -> None:
        try:
            check_depth(self._text[self._place : end])
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
        self._text = self._text[self._place :]
        self._place = 0

    def _position(self) -> tuple[int, int]:
        newlines = self._text.count("\n", 0, self._place)
        if not newlines:
            return self._line, self._column + self._place
        return self._line + newlines, self._place - self._text.rfind("\n", 0, self._place)

    def _error(self, message: str) -> JsonArrayError:
        line, column = self._position()
        return JsonArrayError(f"line {line}, column {column}: {message}")

    def _note_constant(self, name: str) -> None:
        self._problem = f"{name} is not JSON"
