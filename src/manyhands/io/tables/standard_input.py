"""Standard input as a table or dataset: copied to a file, because it is read more than once, also when a run is continued."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO

from manyhands.core.errors import UserError
from manyhands.core.text import wide_encoding
from manyhands.io.files import bytes_written_aside
from manyhands.io.tables.formats import format_named
from manyhands.io.tables.text import marked_encoding

STANDARD_STREAM = "-"
"""What stands for standard input or output in place of a file's name."""
_HEAD = 1 << 12
_GZIP = b"\x1f\x8b"
_BINARY = {b"PK\x03\x04": ".xlsx", b"PAR1": ".parquet"}


@contextmanager
def kept_input(stream: BinaryIO, folder: Path, name: str, format: str | None = None) -> Iterator[Path]:
    """A copy of a stream in a folder, which is made, under that name with the ending that its content, or the ``format`` given, has. If
    copying or the block fails, it is removed again. The name must be of this copy alone: another process may make one in that folder.

    Raises UserError for a stream without content, StorageError.
    """
    head = stream.read(_HEAD)
    if not head:
        raise UserError("standard input is empty")
    path = folder / f"{name}{suffix_of_content(head, format)}"
    made = [each for each in (folder, folder.parent) if not each.exists()]
    try:
        with bytes_written_aside(path) as copy:
            copy.write(head)
            copyfileobj(stream, copy)
        yield path
    except BaseException as error:
        path.unlink(missing_ok=True)
        for each in made:
            with suppress(OSError):
                each.rmdir()
        if isinstance(error, UserError):
            text = str(error).replace(str(path.absolute()), "standard input").replace(str(path), "standard input")
            if text != str(error):
                raise UserError(text) from error
        raise


def suffix_of_content(head: bytes, format: str | None = None) -> str:
    """The ending for a file that begins with these bytes: ``.xlsx``, ``.parquet``, ``.jsonl`` or ``.json`` if it begins as these do, else
    ``.csv``; with ``.gz`` behind for compressed text. ``format``: what it is, where that is known."""
    packed = ".gz" if head.startswith(_GZIP) else ""
    if format is not None:
        return format_named(format).suffixes[0] + packed
    if packed:
        head = _unpacked(head)
    for mark, suffix in _BINARY.items():
        if head.startswith(mark):
            return suffix
    return {"{": ".jsonl", "[": ".json"}.get(_first_character(head), ".csv") + packed


def _unpacked(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD)
    except zlib.error:
        return b""


def _first_character(head: bytes) -> str:
    encoding = marked_encoding(head) or wide_encoding(head) or "utf-8"
    text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(head)
    return text.lstrip("\ufeff \t\r\n")[:1]
