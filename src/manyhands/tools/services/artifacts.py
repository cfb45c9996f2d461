"""Files that tools get or make, kept in the run's folder under the digest of their content, so that the journal holds no bytes of them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from manyhands.core.errors import ToolError
from manyhands.core.messages import Message
from manyhands.io.files import MAX_READ, bytes_written_aside, make_private, read_inside

FOLDER = "artifacts"
"""The folder's name in a run's folder."""
SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "application/pdf": ".pdf",
    "text/plain": ".txt",
}
"""Of names, by media type; other files have none."""
_MEDIA_TYPES = {suffix: media_type for media_type, suffix in SUFFIXES.items()}
SCHEME = "artifact:"
"""Begins the address of a picture that is an artifact, in a message."""
_PICTURE = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}\.(?:png|jpg|gif|webp)\b")
_NAME = re.compile(r"[0-9a-f]{64}(\.[a-z]{1,5})?")


class ArtifactStore:
    """The artifacts of one run. ``folder``: the run's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    async def put(self, content: bytes, media_type: str) -> str:
        """Keep a file; its name, which is the SHA-256 of its content in hexadecimal with a suffix by its type. Equal files are kept once.
        Raises StorageError if it can't be written."""
        name = hashlib.sha256(content).hexdigest() + SUFFIXES.get(media_type, "")
        await asyncio.to_thread(self._write, name, content)
        return name

    async def get(self, name: str) -> bytes:
        """The content of an artifact. Raises ToolError if there is none of that name."""
        if not is_name(name):
            raise ToolError(f"{name[:100]!r} is not the name of an artifact")
        try:
            return await asyncio.to_thread(read_inside, self._folder, self._folder / name, MAX_READ)
        except (OSError, ValueError) as error:
            raise ToolError(f"the artifact {name} can't be read") from error

    async def embedded(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with the pictures that they refer to as data addresses, as models take them."""
        return [await self._embedded(message) for message in messages]

    async def _embedded(self, message: Message) -> Message:
        content = message.get("content")
        if not isinstance(content, list):
            return message
        return cast(Message, {**message, "content": [await self._part(part) for part in content]})

    async def _part(self, part: Any) -> Any:
        name = _referred(part)
        if name is None:
            return part
        data = base64.b64encode(await self.get(name)).decode("ascii")
        url = f"data:{_MEDIA_TYPES.get(Path(name).suffix, 'application/octet-stream')};base64,{data}"
        return {**part, "image_url": {**part["image_url"], "url": url}}

    def _write(self, name: str, content: bytes) -> None:
        make_private(self._folder)
        path = self._folder / name
        if not path.exists():
            with bytes_written_aside(path) as handle:
                handle.write(content)


def is_name(text: str) -> bool:
    """Whether a text is the name of an artifact, by its form."""
    return _NAME.fullmatch(text) is not None


def data_of(url: str) -> bytes | None:
    """The content of a data address (RFC 2397) with base64; None for another one. Raises ToolError for what is no base64."""
    head, comma, coded = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    try:
        return base64.b64decode(coded)
    except binascii.Error:
        raise ToolError("the data address holds no base64") from None


def picture_names(text: str) -> list[str]:
    """The artifacts named in a text that are pictures, each once."""
    return list(dict.fromkeys(_PICTURE.findall(text)))


def picture_address(run_folder: Path, name: str, max_bytes: int) -> str | None:
    """The data address of a picture that is an artifact of a run, whose folder anybody may have made; None if it can't be read."""
    media_type = _MEDIA_TYPES.get(Path(name).suffix, "")
    if not is_name(name) or not media_type.startswith("image/"):
        return None
    try:
        content = read_inside(run_folder, run_folder / FOLDER / name, max_bytes)
    except (OSError, ValueError):
        return None
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def reference(name: str) -> dict[str, Any]:
    """A picture that is an artifact, as a content part of a message."""
    return {"type": "image_url", "image_url": {"url": SCHEME + name}}


def _referred(part: Any) -> str | None:
    """The name of the artifact that a content part refers to."""
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    return url.removeprefix(SCHEME) if isinstance(url, str) and url.startswith(SCHEME) else None
