"""What a picture is by its own bytes: its format, width and height, read without decoding it.

PNG (W3C), JPEG (ITU T.81), GIF (GIF89a) and WebP (RFC 9649) are known, whatever a file's name says. A file that ends before its picture
does is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_BYTES = 20_000_000
"""Of a picture's file."""
MAX_PIXELS = 50_000_000
MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}
"""By format, as Pillow calls it."""
_BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF87a": "GIF", b"GIF89a": "GIF"}
_SVG = re.compile(rb"\s*(<\?xml|<!--|<!DOCTYPE|<svg)", re.IGNORECASE)
_PNG_END = b"IEND\xaeB`\x82"
_JPEG_END, _JPEG_SCAN = b"\xff\xd9", b"\xff\xda"
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of segments that have the size (SOF0 to SOF15 without DHT, JPG and DAC)."""
_JPEG_MARK = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")
"""A marker that begins a segment: in a scan's data a byte of 255 has a zero behind it, or is part of a restart marker."""
_JPEG_FILLING = re.compile(rb"\xff*(?=\xff)")
"""Bytes before a marker that fill up."""
_MAX_SEGMENTS = 10_000
"""Of a JPEG before its size, and behind it."""
_MAX_SCANS = 1000
_MAX_WORK = 20 * MAX_PIXELS
"""Pixels of all scans of a JPEG together. Progressive ones have about ten scans; each is a pass over the whole picture, in however few
bytes."""
_UNFINISHED = "the picture is broken: it ends too early"


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """What a picture says of itself."""

    format: str
    """As ``MEDIA_TYPES`` calls it."""
    width: int
    """Pixels."""
    height: int
    """Pixels."""

    @property
    def media_type(self) -> str:
        return MEDIA_TYPES[self.format]


def _format_of(data: bytes) -> str:
    """The format by the first bytes. Raises ValueError for what is not taken, and for too many bytes."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"the picture has {len(data):,} bytes, and may have {MAX_BYTES:,}")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    for beginning, kind in _BEGINNINGS.items():
        if data.startswith(beginning):
            return kind
    what = "SVG is not taken" if _SVG.match(data) else "this is no picture" if data else "this file is empty"
    raise ValueError(f"{what}: PNG, JPEG, GIF and WebP are")


def check_pixels(width: int, height: int) -> None:
    """Raises ValueError for a picture that is too large, whatever its bytes."""
    if width * height > MAX_PIXELS:
        raise ValueError(f"the picture has {width:,} × {height:,} pixels, and may have {MAX_PIXELS:,}")


def read_header(data: bytes) -> PictureHeader:
    """What a picture says of itself. Raises ValueError for what is no picture that can be used."""
    kind = _format_of(data)
    width, height = _SIZES[kind](data)
    if not (width and height):
        raise ValueError("the picture is broken: it says that it has no pixels")
    check_pixels(width, height)
    return PictureHeader(kind, width, height)


def _png_size(data: bytes) -> tuple[int, int]:
    if data[12:16] != b"IHDR" or _PNG_END not in data:
        raise ValueError(_UNFINISHED)
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def _gif_size(data: bytes) -> tuple[int, int]:
    if len(data) < 14:  # the header, the screen's size, and the mark of the end
        raise ValueError(_UNFINISHED)
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        at = _match_end(_JPEG_FILLING, data, at)
        marker, length = data[at + 1 : at + 2], int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at : at + 1] != b"\xff" or length < 2 or at + 2 + length > len(data):
            break
        if marker[0] in _JPEG_SIZES:
            if data.find(_JPEG_END, at) < 0:
                break
            height, width = int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
            _check_scans(data, at + 2 + length, width * height)
            return width, height
        at += 2 + length
    raise ValueError(_UNFINISHED)


def _check_scans(data: bytes, at: int, pixels: int) -> None:
    """Raises ValueError for a JPEG that takes much longer to decode than its size says. ``at``: the place behind that segment."""
    scans, most = 0, min(_MAX_SCANS, _MAX_WORK // max(1, pixels))
    for _ in range(_MAX_SEGMENTS):
        found = _JPEG_MARK.search(data, at)
        if found is None or found[0] == _JPEG_END:
            return
        scans += found[0] == _JPEG_SCAN
        if scans > most:
            raise ValueError(f"the picture has more than {most} scans, which take too long to decode")
        at = found.start() + 2 + max(2, int.from_bytes(data[found.end() : found.end() + 2], "big"))
    raise ValueError(f"the picture has more than {_MAX_SEGMENTS:,} parts")


def _match_end(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.match(data, at)
    return at if found is None else found.end()


def _webp_size(data: bytes) -> tuple[int, int]:
    kind, body = data[12:16], data[20:30]
    if len(body) < 10 or int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise ValueError(_UNFINISHED)
    if kind == b"VP8X":  # the canvas, less one each
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L" and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    raise ValueError("the picture is broken: its first part is none of WebP")


_SIZES = {"PNG": _png_size, "JPEG": _jpeg_size, "GIF": _gif_size, "WEBP": _webp_size}
