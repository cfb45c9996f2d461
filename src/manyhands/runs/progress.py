"""How far a run is while it is executed, notices for a person meanwhile, and in which sandboxes its items run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
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
    return f"images {progress['here']}/{progress['images']}{_pulled_text(progress)}"


def images_line(progress: ImageProgress) -> str:
    """The same as a line of its own."""
    return f"container images: {progress['here']} of {progress['images']} here{_pulled_text(progress)}"


def _pulled_text(progress: ImageProgress) -> str:
    text = ""
    if progress["total_bytes"]:
        unit, name = (1e9, "GB") if progress["total_bytes"] >= 1e9 else (1e6, "MB")
        text = f", {progress['bytes'] / unit:.1f} of {progress['total_bytes'] / unit:.1f} {name}"
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


# --- Sandboxes and images, as the journal has them

MAX_IMAGES = 20
_AUTO, _PLAIN = "auto", "bubblewrap"
"""The setting that chooses, and what it chooses where there is no image."""


class ItemSandbox(TypedDict):
    """Where an item's commands run."""

    kind: str
    """As ``--sandbox`` names it."""
    image: str | None
    """The name of the image that it is made of; null without one."""
    pin: str | None
    """What the name meant when the run was made, with its digest."""


class PinnedImage(TypedDict):
    """An image of a run."""

    image: str
    pin: str | None


class RunSandbox(TypedDict):
    """A kind of sandboxes that a run makes of images."""

    kind: str
    image_count: int
    images: list[PinnedImage]
    """The first 20 of them."""


def item_sandbox(options: Mapping[str, Any], pins: Mapping[str, Any] | None, image: str | None) -> ItemSandbox:
    """Where an item runs. ``options``: the recorded settings of its sandbox; ``pins``: what is recorded of images; ``image``: the item's
    own."""
    named = None if options.get("ignore_images") else image or options.get("image")
    chosen = str(options.get("sandbox") or _AUTO)
    if named is None:
        return {"kind": _PLAIN if chosen == _AUTO else chosen, "image": None, "pin": None}
    found = next((each.get("pin") for each in (pins or {}).get("images", ()) if each.get("reference") == named), None)
    return {"kind": (pins or {}).get("kind") or chosen, "image": named, "pin": found}


def run_sandboxes(spec: Any) -> list[RunSandbox]:
    """The kinds of sandboxes that a run makes of images. ``spec``: as it is recorded."""
    return [_of_kind(each) for each in _pins_of(spec) if each.get("kind")]


def sandbox_text(sandbox: ItemSandbox) -> str:
    """An item's sandbox for people."""
    if sandbox["image"] is None:
        return sandbox["kind"]
    return f"{sandbox['kind']}, image {_pinned(sandbox['image'], sandbox['pin'])}"


def sandboxes_text(sandboxes: Iterable[RunSandbox]) -> Iterator[str]:
    """A run's sandboxes for people, a line for each kind, with up to three images."""
    for each in sandboxes:
        shown = [_pinned(image["image"], image["pin"]) for image in each["images"][:3]]
        more = each["image_count"] - len(shown)
        yield f"sandbox {each['kind']}, made of {', '.join(shown)}{f' and {more} more images' if more else ''}"


def _pins_of(spec: Any) -> list[Mapping[str, Any]]:
    """All pins in a spec: those of the run, or of each target of an evaluation."""
    pins = spec.get("pins") if isinstance(spec, Mapping) else None
    if not isinstance(pins, Mapping):
        return []
    return [each for each in ([pins] if "kind" in pins else pins.values()) if isinstance(each, Mapping)]


def _of_kind(pins: Mapping[str, Json]) -> RunSandbox:
    images = pins.get("images")
    found: list[PinnedImage] = [
        {"image": str(each["reference"]), "pin": each.get("pin")}
        for each in (images if isinstance(images, list) else ())
        if isinstance(each, Mapping) and "reference" in each
    ]
    return {"kind": str(pins["kind"]), "image_count": len(found), "images": found[:MAX_IMAGES]}


def _pinned(image: str, pin: str | None) -> str:
    """``NAME (DIGEST)``; the digest alone is what the name does not say."""
    digest = (pin or "").rpartition("@")[2]
    return image if not digest or digest in image else f"{image} ({digest})"
