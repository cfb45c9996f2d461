"""Which Unicode encoding a text has: by its byte order mark, or by the zero bytes of UTF-16, which Windows PowerShell writes for ``>``."""

from __future__ import annotations

import codecs

UTF_16 = "UTF-16"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def marked_encoding(head: bytes) -> str | None:
    """The codec that a text's byte order mark names; None without one. ``head``: its first four bytes, or more."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def wide_encoding(head: bytes, *, marked: bool = False) -> str | None:
    """The codec of a text that begins with these bytes, if it is UTF-16: by its mark, or (unless only ``marked`` texts count) by the zero
    that one of the first two characters' bytes is in all that JSON begins with (RFC 4627, section 3). None for everything else, and for
    less than two bytes."""
    if head.startswith(_WIDE_MARKS):
        return "utf-16"
    if marked or len(head) < 2 or (head[0] == 0) == (head[1] == 0):
        return None
    return "utf-16-be" if head[0] == 0 else "utf-16-le"


def may_be_wide(head: bytes) -> bool:
    """Whether a text begins with this one byte, and is not UTF-8."""
    return len(head) == 1 and (head == b"\0" or any(mark.startswith(head) for mark in _WIDE_MARKS))
