"""Pictures for tests, made when they are needed."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image


def picture(kind: str = "PNG", size: tuple[int, int] = (30, 20), colour: str = "red", **options: Any) -> bytes:
    """A file with one colour. ``kind``: as Pillow calls formats; ``options``: of its writer."""
    written = io.BytesIO()
    Image.new("RGB", size, colour).save(written, kind, **options)
    return written.getvalue()


def data_address(content: bytes, media_type: str = "image/png") -> str:
    """A picture as an address that holds it."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def huge(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes with very many pixels."""
    written = io.BytesIO()
    Image.new("1", (width, height)).save(written, "PNG")
    return written.getvalue()
