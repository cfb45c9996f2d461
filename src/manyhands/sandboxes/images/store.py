"""Where container images come from: what the stores of engines, and of unpacked images, have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Image:
    """An image, pinned: what a reference meant when it was looked up."""

    reference: str
    """As it was written."""
    pin: str
    """What worlds are made of, today and after a resume: ``repository@sha256:…``, or ``sha256:…`` of an image without a registry."""
    platform: str = "linux/amd64"
    size: int | None = None
    """Bytes; of the layers as they are stored or transferred."""
    present: bool = False
    """Whether it is here, so that it need not be pulled."""

    def to_json(self) -> dict[str, Any]:
        """What is recorded of it: all but whether it is here."""
        recorded = {"reference": self.reference, "pin": self.pin, "platform": self.platform, "size": self.size}
        return {name: value for name, value in recorded.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a pull is."""

    done: int
    """Bytes that came."""
    total: int | None
    """Bytes in all, as far as that is known."""


class ImageStore(Protocol):
    """The images of one engine, or those unpacked for bubblewrap. Methods raise ItemError(SANDBOX_LOST), with the store's words, if it does
    not answer or fails."""

    async def find(
        self, reference: str, *, platform: str | None = None, newest: bool = False, pulled: bool = False
    ) -> Image | None:
        """What a reference means: looked up here, else at its registry without pulling; with ``newest`` at its registry, where it has one;
        with ``pulled`` here alone. None if there is no such image."""
        ...

    async def present(self, pin: str) -> bool:
        """Whether a pinned image is here."""
        ...

    async def pull(self, image: Image, progress: Callable[[PullProgress], None]) -> None:
        """Bring a pinned image here. Does nothing if it is here."""
        ...

    async def build(self, folder: Path, *, tag: str, timeout: float, log: Path) -> Image:
        """Build the ``Dockerfile`` in a folder, with the folder as its context, unless ``tag`` is here. What the build prints goes to
        ``log``. Raises UserError with its last words if it does not build."""
        ...

    async def export(self, pin: str, archive: Path) -> None:
        """Write a tar archive of an image's whole file system, and beside it, as ``archive`` with ``.json`` appended, its configuration
        (``Env``, ``WorkingDir``, ``User``)."""
        ...

    async def remove(self, pin: str) -> None:
        """Remove an image that this run pulled or built. Does nothing if it is gone or in use."""
        ...

    async def close(self) -> None: ...
