"""Images unpacked for tests, in a cache that sessions share."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from manyhands.sandboxes.bubblewrap.own_ids import own_ids
from manyhands.sandboxes.images.store import Image
from manyhands.sandboxes.images.unpacked import CACHE_VARIABLE, UnpackedImages
from tests.support.image_tars import IMAGE_PATH, bare_image, full_image

CONFIG: Mapping[str, Any] = {"Env": [f"PATH={IMAGE_PATH}", "OF_THE_IMAGE=yes"]}


def full_image_pin(config: Mapping[str, Any] = CONFIG) -> str:
    """The pin of the ``full`` image with a configuration, unpacked where this process and those that it starts look for it."""
    return unpacked_pin(full_image(), config)


def bare_image_pin() -> str:
    """The same of the ``bare`` image."""
    return unpacked_pin(bare_image(), {"Env": ["PATH=/bin"]})


def unpacked_pin(tar: Path, config: Mapping[str, Any]) -> str:
    reference = image_file(tar, config)
    with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
        return thread.submit(lambda: asyncio.run(_pulled(reference))).result()


def image_file(tar: Path, config: Mapping[str, Any] = CONFIG) -> str:
    """The reference of an image in a file, which is unpacked to the cache of tests."""
    folder = Path(tempfile.gettempdir()) / f"manyhands-test-images-{os.getuid()}"
    os.environ[CACHE_VARIABLE] = str(folder / "unpacked")
    said = json.dumps(config, sort_keys=True)
    named = folder / f"{tar.stem}-{hashlib.sha256(said.encode()).hexdigest()[:8]}.tar"
    if not named.exists():
        unfinished = named.with_name(f".{os.getpid()}-{named.name}")
        unfinished.write_text(said)
        unfinished.rename(named.with_name(f"{named.name}.json"))
        os.link(tar, unfinished)
        unfinished.rename(named)
    return f"tar:{named}"


async def _pulled(reference: str) -> str:
    images = UnpackedImages(own_ids().giving)
    image = await images.find(reference)
    assert isinstance(image, Image)
    await images.pull(image, lambda progress: None)
    return image.pin
