"""Texts in UTF-16, which Windows PowerShell writes for ``>``: how they are told from UTF-8, and turned into it."""

from __future__ import annotations

import codecs
from pathlib import Path

from manyhands.io.files import bytes_written_aside

NAME = "UTF-16"
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CHUNK = 1 << 20


def wide_encoding(head: bytes) -> str | None:
    """The codec of a text that begins with these bytes, if it is UTF-16: by its mark, or by the zero that one of the first two
    characters' bytes is in all that JSON begins with (RFC 4627, section 3). None for everything else, and for less than two bytes."""
    if head.startswith(_MARKS):
        return "utf-16"
    if len(head) < 2 or (head[0] == 0) == (head[1] == 0):
        return None
    return "utf-16-be" if head[0] == 0 else "utf-16-le"


def may_be_wide(head: bytes) -> bool:
    """Whether a text begins with this one byte, and is not UTF-8."""
    return len(head) == 1 and (head == b"\0" or any(mark.startswith(head) for mark in _MARKS))


def write_as_utf_8(source: Path, target: Path, encoding: str) -> None:
    """The text of a file in UTF-8, in place of ``target`` and all at once. What is no character becomes U+FFFD. Raises StorageError,
    OSError."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    with source.open("rb") as wide, bytes_written_aside(target) as file:
        while data := wide.read(_CHUNK):
            file.write(decoder.decode(data).encode())
        file.write(decoder.decode(b"", True).encode())
