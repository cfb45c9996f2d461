"""Files that tools get or make, kept in the run's folder under the digest of their content, so that the journal holds no bytes of them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from manyhands.core.clock import Clock
from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, line
from manyhands.core.messages import Message, text_of
from manyhands.engine.contract import Limits, RecordedStep
from manyhands.io.files import MAX_READ, bytes_written_aside, make_private, read_inside
from manyhands.models.protocol import ChatModel, ChatRequest, Completion

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
_NAMED = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?:\.[a-z]{1,5})?\b")
_CARRIED = "artifacts"
"""The key of an item's facts for artifacts."""


class ArtifactStore:
    """The artifacts of one run. ``folder``: the run's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    async def put(self, content: bytes, media_type: str) -> str:
        """Keep a file; its name, see ``name_of``. Equal files are kept once. Raises StorageError if it can't be written."""
        return await asyncio.to_thread(self.keep, content, media_type)

    def keep(self, content: bytes, media_type: str) -> str:
        """The same, waiting for the disk."""
        name = name_of(content, media_type)
        self._put(name, content)
        return name

    def _put(self, name: str, content: bytes) -> None:
        make_private(self._folder)
        path = self._folder / name
        if not path.exists():
            with bytes_written_aside(path) as handle:
                handle.write(content)

    async def get(self, name: str) -> bytes:
        """The content of an artifact. Raises ToolError if there is none of that name."""
        return await asyncio.to_thread(self.read, name)

    def read(self, name: str) -> bytes:
        """The same, waiting for the disk."""
        if not is_name(name):
            raise ToolError(f"{name[:100]!r} is not the name of an artifact")
        try:
            return read_inside(self._folder, self._folder / name, MAX_READ)
        except (OSError, ValueError) as error:
            raise ToolError(f"the artifact {name} can't be read") from error

    def carried(self, steps: Iterable[RecordedStep]) -> dict[str, Json]:
        """Facts for an attempt that goes on: the artifacts that its steps name, of which a worker on another machine may have none."""
        names = dict.fromkeys(name for step in steps for name in _NAMED.findall(line(step.output)))
        there = [name for name in names if (self._folder / name).is_file()]
        return {_CARRIED: {name: base64.b64encode(self.read(name)).decode("ascii") for name in there}} if there else {}

    def take(self, facts: Json) -> None:
        """Keep what ``carried`` gave."""
        for name, coded in (facts or {}).get(_CARRIED, {}).items():
            self._put(name, base64.b64decode(coded))

    async def embedded(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with the pictures that they refer to as data addresses, as models take them. Raises ToolError for one that can't
        be read."""
        if not any(refers(message) for message in messages):
            return list(messages)
        return await asyncio.to_thread(lambda: [self.with_pictures(message) for message in messages])

    def with_pictures(self, message: Message) -> Message:
        """The same of one message, waiting for the disk."""
        if not refers(message):
            return message
        return cast(Message, {**message, "content": [self._part(part) for part in message["content"]]})

    def _part(self, part: Any) -> Any:
        name = _referred(part)
        if name is None:
            return part
        return {**part, "image_url": {**part["image_url"], "url": _data_address(name, self.read(name))}}


class ShownPictures:
    """A model that is shown the pictures which messages refer to. ``artifacts``: those of the run."""

    def __init__(self, model: ChatModel, artifacts: ArtifactStore) -> None:
        self._model = model
        self._artifacts = artifacts

    @property
    def simulated(self) -> bool:
        return self._model.simulated

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """See ``ChatModel``. Raises ItemError also for a picture that is gone."""
        try:
            messages = await self._artifacts.embedded(request.messages)
        except ToolError as error:
            raise ItemError(Cause.INVALID_INPUT, str(error)) from error
        return await self._model.complete(ChatRequest(request.settings, messages, request.tools), limits, clock)

    async def close(self) -> None:
        await self._model.close()


def refers(message: Message) -> bool:
    """Whether a message refers to a picture that is an artifact."""
    content = message.get("content")
    return isinstance(content, list) and any(_referred(part) is not None for part in content)


def name_of(content: bytes, media_type: str) -> str:
    """The name of an artifact: the SHA-256 of its content in hexadecimal, with a suffix by its type."""
    return hashlib.sha256(content).hexdigest() + SUFFIXES.get(media_type, "")


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
    except ValueError:  # no base64, or not even ASCII
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
    return _data_address(name, content)


def reference(name: str) -> dict[str, Any]:
    """A picture that is an artifact, as a content part of a message."""
    return {"type": "image_url", "image_url": {"url": SCHEME + name}}


def picture_places(content: Json) -> list[str]:
    """Where the pictures of a content are, in order: paths in the run's folder, and addresses of the web. Others are not shown."""
    return [place for part in content if (place := _place(part))] if isinstance(content, list) else []


def text_for_people(content: Json) -> str:
    """A message's content as text for people: as ``text_of``, with the places of pictures."""
    if not isinstance(content, list):
        return text_of(content)
    return text_of([f"<image {place}>" if (place := _place(part)) else part for part in content])


def _place(part: Any) -> str | None:
    if (name := _referred(part)) is not None:
        return f"{FOLDER}/{name}"
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    return url if isinstance(url, str) and not url.startswith("data:") else None


def _referred(part: Any) -> str | None:
    """The name of the artifact that a content part refers to."""
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    return url.removeprefix(SCHEME) if isinstance(url, str) and url.startswith(SCHEME) else None


def _data_address(name: str, content: bytes) -> str:
    media_type = _MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream")
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"
