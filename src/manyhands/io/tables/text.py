"""Text files of any encoding: which one it is, by its byte order mark or by the zero bytes of UTF-16 (which Windows PowerShell writes for
``>``); their lines, and finding what does not decode."""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterator
from contextlib import suppress
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.text import WIDE_MARKS
from manyhands.io.tables.base import GZIP_DAMAGE, MAX_LENGTH, at, open_bytes

_ERRORS = "surrogateescape"
_BLOCK = 1 << 16
_HEAD = 1 << 12
_LINE_FEED = 10
_ZEROS = 4
"""The least number of zeros that make a text UTF-16."""
_HINT = "if the file has another encoding, name it with --encoding"


class Damaged(UserError):
    """The rest of a compressed file can't be read."""

    def __init__(self, path: Path, line: int, error: BaseException) -> None:
        self.line = line
        self.problem = f"the compressed data is damaged from here on: {error}"
        super().__init__(at(path, line, self.problem))


def choose_encoding(path: Path, given: str | None) -> str:
    """The encoding to read a file with, by its usual name: the one given, else what its byte order mark says, else UTF-16
    if it looks like that, else UTF-8.

    Raises UserError if Python knows no such text encoding.
    """
    if given is not None:
        return _known(given)
    with open_bytes(path) as stream:
        beginning = stream.read(4)
        with suppress(*GZIP_DAMAGE):  # said where the lines end
            beginning += stream.read(_HEAD)
    return marked_encoding(beginning) or _zeros_encoding(beginning) or "utf-8"


def text_lines(path: Path, encoding: str, newline: str = "") -> Generator[str, None, None]:
    """The lines of a file with their ends as they are, without any U+FEFF before the first. ``newline``: empty to end
    lines at LF, CRLF and CR, or the only end there is.

    A byte that does not decode becomes a lone surrogate, which ``undecoded`` finds, so that it spoils one row only.

    Raises UserError, naming the line, where the encoding has no bytes for that and for a line longer than MAX_LENGTH; Damaged where
    compressed data is damaged.
    """
    number, ends = 1, newline or ("\n", "\r")
    try:
        with TextIOWrapper(open_bytes(path), encoding, errors=_ERRORS, newline=newline) as stream:
            readline = stream.readline
            line = readline(MAX_LENGTH).lstrip("\ufeff")
            while line:
                if len(line) >= MAX_LENGTH and not line.endswith(ends):
                    raise UserError(at(path, number, f"longer than {MAX_LENGTH >> 20} MiB"))
                yield line
                number += 1
                line = readline(MAX_LENGTH)
    except UnicodeError:
        number = undecodable_line(path, encoding, newline)
        raise UserError(at(path, number, f"holds bytes that are not {encoding} text; {_HINT}")) from None
    except GZIP_DAMAGE as error:
        raise Damaged(path, number, error) from error


def numbered_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes, str | None]]:
    """The lines of a file as bytes, ended by LF, without a UTF-8 byte order mark before the first.

    A line of more than ``max_bytes`` bytes comes with its problem in its place; so does the point where compressed data is damaged, which
    ends the file.
    """
    number = 0
    with open_bytes(path) as stream:
        try:
            while line := stream.readline(max_bytes + 1):
                number += 1
                if len(line) > max_bytes:
                    _skip_line(stream, line)
                    yield number, b"", f"longer than {max_bytes >> 20} MiB"
                else:
                    yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, None
        except GZIP_DAMAGE as error:
            yield number + 1, b"", f"the compressed data is damaged from here on: {error}"


def _skip_line(stream: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = stream.readline(1 << 20)


def undecoded(text: str, encoding: str) -> str | None:
    """What is wrong with text that came from ``text_lines``, if anything is."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        what = f"the byte 0x{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else f"the character U+{code:04X}"
        return f"{what} is not {encoding} text; {_HINT}"
    return None


def undecodable_line(path: Path, encoding: str, newline: str = "") -> int:
    """The number of the line where a file stops being text of an encoding; ``newline`` as for ``text_lines``.

    Only for files of which that is known: all is read again from the beginning, and the last part byte by byte.
    """
    decoder = codecs.getincrementaldecoder(encoding)(_ERRORS)
    count = _LineCount(newline)
    with open_bytes(path) as stream:
        while block := stream.read(_BLOCK):
            before = decoder.getstate()
            try:
                count.add(decoder.decode(block))
            except UnicodeError:
                decoder.setstate(before)
                _decode_slowly(decoder, block, count)
                break
    return count.line


def _decode_slowly(decoder: codecs.IncrementalDecoder, block: bytes, count: _LineCount) -> None:
    try:
        for index in range(len(block)):
            count.add(decoder.decode(block[index : index + 1]))
    except UnicodeError:
        return


class _LineCount:
    """Counts lines; ``newline`` as for ``text_lines``. ``line``: the number of the line that the text so far ends in."""

    def __init__(self, newline: str) -> None:
        self.line = 1
        self._newline = newline
        self._after_return = False

    def add(self, text: str) -> None:
        if self._newline:
            self.line += text.count(self._newline)
        elif text:
            self.line += text.count("\n") + text.count("\r") - text.count("\r\n")
            self.line -= self._after_return and text[0] == "\n"
            self._after_return = text[-1] == "\r"


def _known(name: str) -> str:
    try:
        TextIOWrapper(BytesIO(), name).detach()
        return codecs.lookup(name).name
    except (LookupError, ValueError):  # ValueError: a NUL in the name
        raise UserError(
            f"unknown encoding {name!r}; known are, for example: utf-8, cp1252, iso-8859-1, utf-16"
        ) from None


UTF_16 = "UTF-16"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def marked_encoding(head: bytes) -> str | None:
    """The codec that a text's byte order mark names; None without one. ``head``: its first four bytes, or more."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def _zeros_encoding(head: bytes) -> str | None:
    """The codec of a text without a mark, if it is UTF-16 by its zeros: one in every line feed, and none but in the same half of each
    character. ``head``: all of it, or an even number of bytes."""
    for low, codec in ((0, "utf-16-le"), (1, "utf-16-be")):
        lows, highs = head[low::2], head[1 - low :: 2]
        ends = [high for character, high in zip(lows, highs, strict=False) if character == _LINE_FEED]
        if len(lows) == len(highs) and highs.count(0) >= _ZEROS and 0 not in lows and ends and not any(ends):
            return codec
    return None


def may_be_wide(head: bytes) -> bool:
    """Whether a text begins with this one byte, and is not UTF-8."""
    return len(head) == 1 and (head == b"\0" or any(mark.startswith(head) for mark in WIDE_MARKS))
