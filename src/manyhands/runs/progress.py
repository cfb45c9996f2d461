"""How far a run is while it is executed, and notices for a person meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState
from manyhands.core.usage import Usage
from manyhands.engine.limits.waits import Wait
from manyhands.io.json_files import read_object

Notice = Callable[[str], None]
"""Gets a line that a person should see."""
MAX_NOTES = 1000
"""Lines that are kept."""


class Notes:
    """Passes lines on to ``notice``, and keeps them."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._lines: list[str] = []

    @property
    def lines(self) -> tuple[str, ...]:
        """Notices so far, each line once; no more than the first ``MAX_NOTES``."""
        return tuple(self._lines)

    def __call__(self, text: str) -> None:
        """Tell a line."""
        self.keep(text)
        self._notice(text)

    def keep(self, text: str) -> None:
        """Keep a line that is shown in another way."""
        if len(self._lines) < MAX_NOTES and text not in self._lines:
            self._lines.append(text)


IMAGES = "images"
"""The folder in the run folder in which the processes of a run note how far its images are."""
IMAGES_WANTED = "wanted.json"
"""The file there that says how many there are (``images``), and how many bytes are to be pulled for them (``bytes``), as far as known."""
PULLED = ".pull"
"""The suffix of the files there that say how far one of them is: ``state`` (pulling, here, failed or removed); ``done`` and ``total``, in
bytes."""

BEAT = 5.0
"""Seconds after which the file of a pull that goes on is written at the latest."""
_GONE = 6 * BEAT
"""Seconds after which such a file is that of a process that was killed."""


class ImageProgress(TypedDict):
    """How far the container images of a run are."""

    images: int
    """That the run is made of, each counted once."""
    here: int
    """Of these, that were needed so far and are there."""
    pulling: int
    """That are being pulled now."""
    failed: int
    """Whose last pull failed."""
    bytes: int
    """That were pulled so far."""
    total_bytes: int
    """That are to be pulled in all, as far as is known."""


def image_progress(folder: Path) -> ImageProgress | None:
    """How far the images of the run in a folder are; None if it has none."""
    noted = folder / IMAGES
    if not noted.is_dir():
        return None
    wanted = _noted(noted / IMAGES_WANTED, folder)
    paths = sorted(noted.glob(f"*{PULLED}"))
    pulls = [_noted(path, folder) for path in paths]
    states = [_state(path, pull) for path, pull in zip(paths, pulls, strict=True)]
    done = sum(_whole(pull.get("done")) for pull in pulls)
    known = sum(max(_whole(pull.get("total")), _whole(pull.get("done"))) for pull in pulls)
    unpulled = sum(_whole(pull.get("size")) for pull in pulls if "total" not in pull)  # was here before
    return {
        "images": max(_whole(wanted.get("images")), len(pulls)),
        "here": states.count("here"),
        "pulling": states.count("pulling"),
        "failed": states.count("failed"),
        "bytes": done,
        "total_bytes": max(known, _whole(wanted.get("bytes")) - unpulled),
    }


def image_text(progress: ImageProgress) -> str:
    """The same for people: ``images 3/40, 1.2 of 3.4 GB``."""
    text = f"images {progress['here']}/{progress['images']}"
    if progress["total_bytes"]:
        unit, name = (1e9, "GB") if progress["total_bytes"] >= 1e9 else (1e6, "MB")
        text += f", {progress['bytes'] / unit:.1f} of {progress['total_bytes'] / unit:.1f} {name}"
    return text + (f", {progress['failed']} failed" if progress["failed"] else "")


def _state(path: Path, pull: dict[str, object]) -> object:
    state = pull.get("state")
    try:
        return None if state == "pulling" and time.time() - path.stat().st_mtime > _GONE else state
    except OSError:
        return None


def _noted(path: Path, within: Path) -> dict[str, object]:
    try:
        return dict(read_object(path, within=within))
    except UserError:
        return {}


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    counts: dict[tuple[str, str], int]
    """Items by (state, reason or cause)."""
    usage: Usage
    in_flight: int
    seconds: float
    """Of the present session."""
    finished_before: int
    """Items that had ended when the session began, for an honest rate."""
    waits: tuple[Wait, ...] = ()
    """What keeps it from going on, of all that takes more than some seconds."""
    images: ImageProgress | None = None
    """How far its container images are; None if it has none."""

    @property
    def items(self) -> int:
        return sum(self.counts.values())

    @property
    def finished(self) -> int:
        return sum(n for (state, _), n in self.counts.items() if ItemState(state).final)
