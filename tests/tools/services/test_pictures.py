"""Pictures as models take them: formats by their first bytes, bounds before decoding, scaling."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from manyhands.core.errors import ToolError
from manyhands.io.picture_headers import MAX_BYTES, read_header
from manyhands.tools.services.pictures import LONG_SIDE, drawn, read_picture, size_of
from tests.support.picture_files import huge, picture


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_small_picture_is_sent_as_it_is(kind: str) -> None:
    data = picture(kind)
    found = read_picture(data)
    assert found.content == data
    assert found.media_type == f"image/{kind.lower()}" == read_header(data).media_type
    assert (found.width, found.height, found.scale) == (30, 20, 1.0)
    assert size_of(data) == (found.media_type, 30, 20)


@pytest.mark.parametrize(
    ("kind", "sent"), [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("GIF", "image/png"), ("WEBP", "image/png")]
)
def test_a_large_one_is_scaled_and_the_factor_told(kind: str, sent: str) -> None:
    found = read_picture(picture(kind, (2000, 1000)))
    assert found.media_type == sent == read_header(found.content).media_type
    assert Image.open(io.BytesIO(found.content)).size == (found.width, found.height) == (LONG_SIDE, LONG_SIDE // 2)
    assert found.about() | {"sha256": ""} == {
        "sha256": "",
        "type": f"image/{kind.lower()}",
        "width": 2000,
        "height": 1000,
        "scaled_to": [1568, 784],
        "scale": 0.784,
    }


def test_of_a_moving_picture_the_first_frame_is_sent() -> None:
    written = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(written, "GIF", save_all=True, append_images=frames[1:])
    found = read_picture(written.getvalue())
    assert found.media_type == "image/png"
    assert Image.open(io.BytesIO(found.content)).convert("RGB").getpixel((4, 4)) == (255, 0, 0)


def test_a_scaled_photograph_is_upright() -> None:
    turned = Image.Exif()
    turned[0x112] = 6
    found = read_picture(picture("JPEG", (2000, 1000), exif=turned))
    assert (found.width, found.height) == (LONG_SIDE // 2, LONG_SIDE)
    assert found.about()["height"] == 2000


def two_sizes() -> bytes:
    """A JPEG that says first that it is smaller than it is."""
    data = picture("JPEG")
    at = data.index(b"\xff\xc0")
    end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data[:at] + data[at : at + 5] + b"\0\1\0\1" + data[at + 9 : end] + data[at:]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "this file is empty"),
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG is not taken"),
        (b"%PDF-1.7", "this is no picture: PNG, JPEG, GIF and WebP are"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is broken"),
        (picture("PNG", (300, 300))[:-200], "is broken"),
        (b"\xff\xd8\xff" + bytes(MAX_BYTES), "may have 20,000,000"),
        (huge(10_000, 5_001), "10,000 × 5,001 pixels"),
        (two_sizes(), "says two sizes"),
    ],
)
def test_what_cant_be_used_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ToolError, match=problem):
        read_picture(data)


@given(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP"]), st.integers(0, 400), st.binary(max_size=40))
def test_broken_files_raise_nothing_else(kind: str, at: int, other: bytes) -> None:
    data = picture(kind)
    try:
        found = read_picture(data[:at] + other + data[at + len(other) :])
    except ToolError:
        return
    assert found.width > 0


def test_a_drawing_follows_its_digest() -> None:
    one, other = (drawn(bytes(range(start, start + 64)), 16, 24) for start in (0, 1))
    assert size_of(one) == ("image/png", 16, 24)
    assert one != other
