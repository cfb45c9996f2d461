"""What the names of a run's images mean: looked up once, recorded with the run, and the same in all its sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.images.store import Image


@dataclass(frozen=True, slots=True)
class Pins:
    """The images of a run."""

    kind: str | None = None
    """The kind of sandboxes that are made of them, as ``--sandbox`` names it; None if there are none."""
    images: Mapping[str, Image] = field(default_factory=dict)
    """By their names as they were written."""
    missing: tuple[str, ...] = ()
    """Names of images that do not exist, whose rows are skipped."""

    def image(self, reference: str) -> Image:
        """What a name means. Raises ItemError(INVALID_INPUT) for one that was not looked up."""
        found = self.images.get(reference)
        if found is None:
            raise ItemError(Cause.INVALID_INPUT, f"the image {reference} was not looked up when the run was made")
        return found

    def added(self, images: Iterable[Image]) -> Self:
        """With further images, such as those that were built."""
        return replace(self, images={**self.images, **{image.reference: image for image in images}})

    def to_json(self) -> dict[str, Any]:
        """What is recorded; empty where there are no images."""
        if self.kind is None:
            return {}
        return {
            "kind": self.kind,
            "images": [image.to_json() for image in self.images.values()],
            **({"missing": list(self.missing)} if self.missing else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self:
        """The reverse of ``to_json``; also None of runs that recorded nothing."""
        if not value:
            return cls()
        images = (Image(**each) for each in value["images"])
        return cls(value["kind"], {image.reference: image for image in images}, tuple(value.get("missing", ())))


NO_PINS = Pins()
