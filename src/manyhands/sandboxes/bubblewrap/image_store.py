"""Where images of bubblewrap sandboxes come from."""

from __future__ import annotations

from functools import partial

from manyhands.core.errors import UserError
from manyhands.sandboxes.bubblewrap.own_ids import own_ids
from manyhands.sandboxes.images.store import ImageStore
from manyhands.sandboxes.images.unpacked import UnpackedImages
from manyhands.sandboxes.kinds import KINDS, part_of
from manyhands.sandboxes.settings import SandboxSettings

_ENGINES = ("docker", "podman")


def unpacked_images(name: str, options: SandboxSettings) -> ImageStore:
    """The store of unpacked images: of files, and of the first container engine that can be used. Raises UserError."""
    try:
        ids = own_ids()
    except OSError as error:
        raise UserError(f"--sandbox {name}: {error}") from error
    return UnpackedImages(ids.giving, engine=partial(_engine, options))


def _engine(options: SandboxSettings) -> ImageStore:
    problems = []
    for name in _ENGINES:
        kind = KINDS.get(name)
        if kind is None or kind.images is None or kind.driver is None:
            continue
        try:
            problem = part_of(name, kind.driver, options).unavailable()
            if problem is None:
                store: ImageStore = part_of(name, kind.images, options)
                return store
        except UserError as error:
            problem = str(error).removeprefix(f"--sandbox {name}: ")
        problems.append(f"{name}: {problem}")
    said = "; ".join(problems) or "there is none in this version"
    raise UserError(f"no container engine can be asked ({said}); name a file (oci:FOLDER or tar:FILE)")
