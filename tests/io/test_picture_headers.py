"""What pictures say of themselves, beside what Pillow reads in them."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from manyhands.io.picture_headers import MAX_BYTES, read_header
from tests.support.picture_files import huge, picture

WEBP: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lossy", {}),
    ("lossless", {"lossless": True}),
    ("extended", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}),
)


@given(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP"]), st.integers(1, 300), st.integers(1, 300))
def test_the_header_says_what_pillow_reads(kind: str, width: int, height: int) -> None:
    found = read_header(picture(kind, (width, height)))
    assert (found.media_type, found.width, found.height) == (f"image/{kind.lower()}", width, height)


@pytest.mark.parametrize(("_", "options"), WEBP)
def test_every_layout_of_webp_is_read(_: str, options: dict[str, Any]) -> None:
    found = read_header(picture("WEBP", (301, 17), **options))
    assert (found.width, found.height) == (301, 17)


@pytest.mark.parametrize("options", [{"progressive": True}, {"exif": Image.Exif()}, {"comment": "c" * 60_000}])
def test_a_jpeg_is_read_whatever_stands_before_its_size(options: dict[str, Any]) -> None:
    data = picture("JPEG", (40, 50), **options)
    assert read_header(data).height == 50
    filled = data[:2] + b"\xff" * 9 + data[2:]
    assert read_header(filled).width == 40


@given(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP"]), st.integers(0, 400), st.binary(max_size=40))
def test_anything_else_is_refused_with_a_reason(kind: str, at: int, other: bytes) -> None:
    data = picture(kind)
    try:
        found = read_header(data[:at] + other + data[at + len(other) :])
    except ValueError:
        return
    assert 0 < found.width * found.height <= 50_000_000


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "this file is empty"),
        (b"<svg/>", "SVG is not taken"),
        (b"GIF89a", "ends too early"),
        (picture("PNG", (300, 300))[:-20], "ends too early"),
        (picture("JPEG", (300, 300))[:-20], "ends too early"),
        (picture("WEBP", (300, 300))[:-20], "ends too early"),
        (b"\xff\xd8" + b"\xff\xe0\0\x02" * 20_000, "ends too early"),
        (b"GIF89a" + struct.pack("<HH", 0, 5) + bytes(20), "no pixels"),
        (huge(10_000, 5_001), "10,000 × 5,001 pixels"),
        (b"\x89PNG\r\n\x1a\n" + bytes(MAX_BYTES), "may have 20,000,000"),
    ],
)
def test_what_cant_be_used_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_header(data)


def progressive(width: int, height: int, scans: int, between: bytes = b"") -> bytes:
    """A JPEG of a few kilobytes whose last scan is there so many times more."""
    written = io.BytesIO()
    Image.new("L", (width, height)).save(written, "JPEG", progressive=True)
    data = written.getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + between + last * scans + data[-2:]


@pytest.mark.parametrize("between", [b"", b"\xff\x01\xff\xff", b"\xff\xff\xff", b"\xff\xfe\0\x04\xff\xd9"])
def test_a_jpeg_may_not_be_decoded_over_and_over(between: bytes) -> None:
    """Each scan of seventy bytes takes as long to decode as all others."""
    for width, height, scans, most in ((1000, 1000, 1001, 1000), (3000, 3000, 112, 111)):
        with pytest.raises(ValueError, match=f"more than {most:,} scans".replace(",", "")):
            read_header(progressive(width, height, scans, between))
    assert read_header(progressive(1000, 1000, 3, between)).width == 1000


def test_a_polyglot_is_what_its_first_bytes_say() -> None:
    written = io.BytesIO(picture("GIF") + b"<script>alert(1)</script>")
    assert read_header(written.getvalue()).media_type == "image/gif"


def test_a_jpeg_of_endless_parts_is_refused_at_once() -> None:
    whole = progressive(100, 100, 1)
    with pytest.raises(ValueError, match="more than 10,000 parts"):
        read_header(progressive(100, 100, 1, b"\xff\xfe\x00\x02" * 4_000_000))
    filled = whole[:2] + b"\xff" * 18_000_000 + whole[2:]
    assert (read_header(filled).width, read_header(filled).height) == (100, 100)
