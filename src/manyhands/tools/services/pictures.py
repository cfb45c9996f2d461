"""Pictures as models take them: known by their first bytes, bounded, and scaled. Needs the extra ``pictures`` (Pillow).

PNG, JPEG, GIF and WebP are taken, whatever their names say. The bounds hold before anything is decoded.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from manyhands.core.errors import ToolError
from manyhands.io.picture_headers import MEDIA_TYPES, check_pixels, read_header

if TYPE_CHECKING:
    from PIL.Image import Image

LONG_SIDE = 1568
"""Pixels. Models scale larger pictures down themselves."""
MAX_SENT = 4_000_000
"""Bytes of a picture as it is sent; a larger one becomes a JPEG. (Providers take 5 MB as base64, or more.)"""
MISSING = "the package Pillow is missing: pip install 'manyhands[pictures]'"
_QUALITY = 90
"""Of JPEG."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as a model gets it."""

    content: bytes
    media_type: str
    width: int
    height: int
    original: str
    """The SHA-256 of the file that it was made of, in hexadecimal."""
    original_type: str
    original_size: tuple[int, int]
    """Width and height in pixels."""

    @property
    def scale(self) -> float:
        """Its long side as a share of the original's."""
        return round(max(self.width, self.height) / max(self.original_size), 4)

    def about(self) -> dict[str, Any]:
        """What is recorded of it, and what the model is told."""
        width, height = self.original_size
        known = {"sha256": self.original, "type": self.original_type, "width": width, "height": height}
        return known | ({"scaled_to": [self.width, self.height], "scale": self.scale} if self.scale != 1 else {})


def can_read() -> bool:
    """Whether Pillow is there."""
    return find_spec("PIL") is not None


def read_picture(data: bytes) -> Picture:
    """A picture ready to be sent: the first frame, its long side scaled to ``LONG_SIDE``. What needs no change stays as it is. Takes CPU
    time and, for a moment, four bytes a pixel. Raises ToolError for what is no picture that can be used."""
    kind, image = _opened(data)
    size, upright = image.size, image
    digest = hashlib.sha256(data).hexdigest()
    moving = kind == "GIF" or getattr(image, "n_frames", 1) > 1
    try:
        if max(size) <= LONG_SIDE and not moving and len(data) <= MAX_SENT:
            image.load()
            return Picture(data, MEDIA_TYPES[kind], *size, digest, MEDIA_TYPES[kind], size)
        image.draft("RGB", (LONG_SIDE, LONG_SIDE))  # a JPEG is decoded smaller at once
        upright = _scaled(image)
        content, media_type = _encoded(upright, lossy=kind == "JPEG")
    except Exception as error:  # what Pillow raises for broken files is not bounded
        raise ToolError(f"the picture is broken: {_why(error)}") from error
    turned = (upright.width > upright.height) != (size[0] > size[1])
    original = (size[1], size[0]) if turned else size
    return Picture(content, media_type, upright.width, upright.height, digest, MEDIA_TYPES[kind], original)


def size_of(data: bytes) -> tuple[str, int, int]:
    """Media type, width and height of a picture that is kept as it is. Raises ToolError, as ``read_picture`` does."""
    kind, image = _opened(data)
    try:
        image.load()
    except Exception as error:  # as above
        raise ToolError(f"the picture is broken: {_why(error)}") from error
    return MEDIA_TYPES[kind], image.width, image.height


def drawn(digest: bytes, width: int, height: int) -> bytes:
    """A PNG of eight by eight squares whose colours are made of a digest (of 64 bytes, as BLAKE2b's); what a simulated provider draws.
    ``width``, ``height``: in pixels."""
    from PIL import Image, PngImagePlugin

    squares = Image.frombytes("P", (8, 8), digest)
    squares.putpalette([(value * step) % 256 for value in range(256) for step in (1, 3, 7)])
    label = PngImagePlugin.PngInfo()
    label.add_text("Description", "simulated")
    written = io.BytesIO()
    squares.convert("RGB").resize((width, height), Image.Resampling.NEAREST).save(written, "PNG", pnginfo=label)
    return written.getvalue()


def _opened(data: bytes) -> tuple[str, Image]:
    """Its format, and its header read. Raises ToolError."""
    try:
        header = read_header(data)  # before Pillow reserves memory for what it says
    except ValueError as error:
        raise ToolError(str(error)) from None
    from PIL import Image  # an extra

    try:
        image = Image.open(io.BytesIO(data), formats=[header.format])
        check_pixels(image.width, image.height)  # a frame of a GIF may be larger than its screen
    except Exception as error:  # as above
        raise ToolError(f"the picture is broken: {_why(error)}") from error
    if image.size != (header.width, header.height) and header.format != "GIF":
        raise ToolError("the picture is broken: it says two sizes")
    return header.format, image


def _scaled(image: Image) -> Image:
    """The first frame, upright, no larger than ``LONG_SIDE``, in colours that every format has."""
    from PIL import Image, ImageOps

    found = ImageOps.exif_transpose(image)
    clear = found.mode in ("RGBA", "LA", "PA") or "transparency" in found.info
    found = found.convert("RGBA" if clear else "RGB")
    found.thumbnail((LONG_SIDE, LONG_SIDE), Image.Resampling.LANCZOS)
    return found


def _encoded(image: Image, *, lossy: bool) -> tuple[bytes, str]:
    content = b"" if lossy else _bytes_of(image, "PNG")
    if content and len(content) <= MAX_SENT:
        return content, MEDIA_TYPES["PNG"]
    return _bytes_of(image.convert("RGB"), "JPEG"), MEDIA_TYPES["JPEG"]


def _bytes_of(image: Image, kind: str) -> bytes:
    written = io.BytesIO()
    image.save(written, kind, **({"quality": _QUALITY} if kind == "JPEG" else {}))
    return written.getvalue()


def _why(error: Exception) -> str:
    """What Pillow says, without the address of the object that it could not read."""
    return " ".join(str(error).partition(" <")[0].split())[:200] or type(error).__name__
