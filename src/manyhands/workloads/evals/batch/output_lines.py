"""Outputs that are no JSON Lines in UTF-8, turned into them: one JSON array, texts in UTF-16, and all kinds compressed with gzip."""

from __future__ import annotations

import codecs
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from manyhands.core.jsonio import unbroken
from manyhands.io.files import bytes_written_aside
from manyhands.io.wide_text import NAME, wide_encoding, write_as_utf_8

MAX_RECORD = 64 << 20
"""Longest line, in bytes."""


MAX_UNPACKED = 16 << 30
"""Bytes that a compressed output may come to."""
_CHUNK = 1 << 20
_BLANK = " \t\n\r"
_AFTER = (",", "]", *_BLANK)
GZIP = b"\x1f\x8b"
"""What compressed outputs begin with."""
_GZIP = 16 + zlib.MAX_WBITS
"""How zlib is told to expect gzip's header."""


@dataclass(frozen=True, slots=True)
class Unwound:
    """What became of an output. ``as_it_is``: it is lines after all, nothing was written; ``unit``: what a line of the new file was in
    it; ``note``: for the person."""

    as_it_is: bool
    unit: str = "line"
    note: str | None = None


def unwind(path: Path, target: Path) -> Unwound:
    """Write the records of a file as lines, in place of ``target`` and all at once. Raises StorageError, OSError."""
    aside = [target.with_name(f"{target.name}.{step}") for step in ("unpacked", "decoded")]
    notes: list[str] = []
    try:
        path = _as_utf_8(_unpacked_as(aside[0], path, notes), aside[1], notes)
        with path.open("rb") as raw:
            if not notes:
                return _array_unwound(raw, target)
            found = _array_unwound(raw, target) if _is_array(raw) else Unwound(True)
        if found.as_it_is:
            path.replace(target)
    finally:
        for each in aside:
            each.unlink(missing_ok=True)
    return Unwound(False, found.unit, "; ".join([*notes, *([found.note] if found.note else [])]))


def _unpacked_as(target: Path, path: Path, notes: list[str]) -> Path:
    """Where an output is when it is unpacked."""
    if _head(path) != GZIP:
        return path
    cut = _unpack(path, target)
    notes += ["the output was unpacked with gzip", *([cut] if cut else [])]
    return target


def _as_utf_8(path: Path, target: Path, notes: list[str]) -> Path:
    """Where an output is when it is UTF-8."""
    encoding = wide_encoding(_head(path))
    if encoding is None:
        return path
    write_as_utf_8(path, target, encoding)
    notes.append(f"the output is {NAME} and was read as such, when it was whole; UTF-8 is read while it is written")
    return target


def _head(path: Path) -> bytes:
    with path.open("rb") as raw:
        return raw.read(2)


def _unpack(path: Path, target: Path) -> str | None:
    """Returns why not all of it could be unpacked, if it could not."""
    size = 0
    with path.open("rb") as packed, bytes_written_aside(target) as unpacked:
        try:
            for piece in _unpacked(packed):
                unpacked.write(piece)
                size += len(piece)
                if size > MAX_UNPACKED:
                    return f"it was cut at {MAX_UNPACKED >> 30} GiB"
        except zlib.error:
            return "its end is missing or damaged"
    return None


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    """The content of a gzip file (RFC 1952), also of several that follow each other. Raises zlib.error, after all that can be had."""
    decoder = zlib.decompressobj(_GZIP)
    begun = False
    while data := stream.read(_CHUNK):
        while data:
            begun = True
            yield decoder.decompress(data, _CHUNK)
            data = decoder.unconsumed_tail
            if decoder.eof:
                data, decoder, begun = decoder.unused_data.lstrip(b"\0"), zlib.decompressobj(_GZIP), False
    if begun:
        yield decoder.flush()
        raise zlib.error("cut off")


def _is_array(stream: BinaryIO) -> bool:
    text = stream.read(_CHUNK).removeprefix(codecs.BOM_UTF8).lstrip()
    stream.seek(0)
    return text.startswith(b"[") and text[1:].lstrip()[:1] in b"{]"


def _array_unwound(stream: BinaryIO, target: Path) -> Unwound:
    """An array's elements as lines. What comes after an array makes it the first of several lines."""
    elements = ArrayElements(stream)
    with bytes_written_aside(target) as lines:
        for text in elements:
            # A line break is never part of a JSON text, but between its parts.
            one = text.replace("\r", " ").replace("\n", " ").encode("utf-8", "surrogateescape")
            lines.write(unbroken(one) + b"\n")
    if elements.followed:
        target.unlink(missing_ok=True)
        return Unwound(True)
    note = "one JSON array was read as lines"
    return Unwound(False, "element", note if elements.problem is None else f"{note}; {elements.problem}")


class ArrayElements:
    """The texts of the elements of a JSON array, one by one with a bounded buffer. After the last one, ``problem`` says why there are
    no more if the array has not ended, and ``followed`` whether anything comes behind it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.problem: str | None = None
        self.followed = False
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._text = ""
        self._ended = False
        self._parse = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[str]:
        place = self._after_blanks(0)
        if self._text[place : place + 1] == "\ufeff":
            place = self._after_blanks(place + 1)
        place = self._after_blanks(place + 1)
        count = 0
        while self._text[place : place + 1] != "]":
            end = self._element_end(place)
            if end is None:
                break
            yield self._text[place:end]
            count += 1
            place = self._after_blanks(self._drop(end))
            if self._text[place : place + 1] == ",":
                place = self._after_blanks(place + 1)
            elif self._text[place : place + 1] != "]":
                break
        else:
            place = self._after_blanks(place + 1)
            self.followed = place < len(self._text)
            return
        self.problem = f"it can't be read beyond element {count}"

    def _drop(self, end: int) -> int:
        """Forget what is done with, if it is much; where the rest begins."""
        if end < _CHUNK:
            return end
        self._text = self._text[end:]
        return 0

    def _element_end(self, place: int) -> int | None:
        """Where the value ends that begins here; None if there is none. Reads on as needed."""
        size = _CHUNK
        while len(self._text) - place <= MAX_RECORD:
            try:
                value, end = self._parse(self._text, place)
                # A number may go on in what has not been read yet.
                if self._ended or isinstance(value, (dict, list, str)) or self._text[end : end + 1] in _AFTER:
                    return end
            except json.JSONDecodeError:
                pass  # perhaps it only goes on in what has not been read yet
            except (ValueError, RecursionError):
                return None
            if not self._read_more(size):
                return None
            size *= 2
        return None

    def _after_blanks(self, place: int) -> int:
        while True:
            while place < len(self._text) and self._text[place] in _BLANK:
                place += 1
            if place < len(self._text) or not self._read_more(_CHUNK):
                return place

    def _read_more(self, size: int) -> bool:
        if self._ended:
            return False
        data = self._stream.read(size)
        self._ended = not data
        self._text += self._decode(data, self._ended)
        return True
