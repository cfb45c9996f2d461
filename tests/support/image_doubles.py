"""A kind of sandboxes that take images: a registry in a folder stands for the real one, and commands run on this machine."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.io.plugins import plugins
from manyhands.sandboxes.images.store import Image, PullProgress
from manyhands.sandboxes.kinds import Kind
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest
from manyhands.sandboxes.remote.driver import Listed
from manyhands.sandboxes.selection import world_options
from manyhands.sandboxes.settings import SandboxSettings

NAME = "boxes"
_FOLDER = "MANYHANDS_TEST_BOXES"


def pin_of(reference: str, version: int = 1) -> str:
    return f"{reference.partition(':')[0]}@sha256:{sha256(f'{reference} {version}'.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Boxes:
    """The registry, the images that are here, and what was asked."""

    folder: Path

    def publish(self, *references: str, version: int = 1, size: int = 1_000_000) -> None:
        """Have these images in the registry; another ``version`` is another image of the same name."""
        known = self.known
        known |= {reference: [pin_of(reference, version), size] for reference in references}
        known |= {pin_of(reference, version): [pin_of(reference, version), size] for reference in references}
        (self.folder / "registry.json").write_text(json.dumps(known))

    def withdraw(self, *names: str) -> None:
        (self.folder / "registry.json").write_text(
            json.dumps({name: found for name, found in self.known.items() if name not in names})
        )

    def forget(self) -> None:
        """Have no image here."""
        for path in (self.folder / "here").iterdir():
            path.unlink()

    @property
    def known(self) -> dict[str, list[object]]:
        found: dict[str, list[object]] = json.loads((self.folder / "registry.json").read_text())
        return found

    def here(self, pin: str) -> Path:
        return self.folder / "here" / sha256(pin.encode()).hexdigest()

    def note(self, *words: str) -> None:
        with (self.folder / "log").open("a") as log:
            log.write(" ".join(words) + "\n")

    @property
    def asked(self) -> list[str]:
        """What was asked, in order: ``find NAME``, ``pull PIN``, ``remove PIN``, ``made PIN``."""
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def counts(self, word: str) -> Mapping[str, int]:
        return Counter(line.partition(" ")[2] for line in self.asked if line.startswith(f"{word} "))


class BoxStore:
    """An ``ImageStore``. Names with ``slow`` take half a second to pull, those with ``broken`` can't be; ``silent`` ones can't be looked
    up."""

    def __init__(self) -> None:
        self.boxes = Boxes(Path(os.environ[_FOLDER]))

    async def find(
        self, reference: str, *, platform: str | None = None, newest: bool = False, pulled: bool = False
    ) -> Image | None:
        self.boxes.note("find", *(["newest"] if newest else []), reference)
        if "silent" in reference and not pulled:
            raise ItemError(Cause.SANDBOX_LOST, "the registry does not answer")
        known = self.boxes.known.get(reference)
        if known is None:
            return None
        pin, size = str(known[0]), int(str(known[1]))
        present = self.boxes.here(pin).exists()
        return Image(reference, pin, size=size, present=present) if present or not pulled else None

    async def present(self, pin: str) -> bool:
        return self.boxes.here(pin).exists()

    async def pull(self, image: Image, progress: Callable[[PullProgress], None]) -> None:
        self.boxes.note("pull", image.pin)
        for part in range(5):
            progress(PullProgress(part * (image.size or 0) // 5, image.size))
            await asyncio.sleep(0.1 if "slow" in image.reference else 0)
        if "broken" in image.reference or image.pin not in self.boxes.known:
            raise ItemError(Cause.SANDBOX_LOST, "manifest unknown")
        self.boxes.here(image.pin).touch()

    async def build(self, folder: Path, *, tag: str, timeout: float, log: Path) -> Image:
        raise NotImplementedError

    async def export(self, pin: str, archive: Path) -> None:
        raise NotImplementedError

    async def remove(self, pin: str) -> None:
        self.boxes.note("remove", pin)
        self.boxes.here(pin).unlink(missing_ok=True)

    async def close(self) -> None:
        return


class BoxBackend:
    """Sandboxes on this machine, which know of which image they are: in the variable ``BOX``."""

    kind = NAME

    def __init__(self) -> None:
        self._boxes = Boxes(Path(os.environ[_FOLDER]))
        self._local = LocalBackend()

    def unavailable(self) -> str | None:
        return None

    async def create(self, request: SandboxRequest) -> Sandbox:
        assert request.image is not None
        assert self._boxes.here(request.image).exists()
        self._boxes.note("made", request.image)
        self._boxes.note("user", str(request.user))
        self._boxes.note("cpus", str(request.limits.cpus))
        self._boxes.note("memory", str(request.limits.memory))
        environment = {**(request.environment or {}), "BOX": request.image}
        return await self._local.create(replace(request, image=None, user=None, environment=environment))


class BoxDriver:
    """What is asked of an engine before a run begins. It lacks the limits that a file ``unenforced`` names."""

    kind = NAME

    def __init__(self, options: SandboxSettings) -> None:
        self._boxes = Boxes(Path(os.environ[_FOLDER]))
        said = world_options(options)
        self._boxes.note("options", f"{said.runtime} {said.checkpoints} {said.checkpoint_limit} {said.durable}")

    def unavailable(self) -> str | None:
        path = self._boxes.folder / "unavailable"
        return path.read_text() if path.exists() else None

    async def identity(self) -> str:
        return "boxes of this machine"

    async def unenforced(self) -> tuple[str, ...]:
        path = self._boxes.folder / "unenforced"
        return tuple(path.read_text().split()) if path.exists() else ()

    async def listed(self, labels: Mapping[str, str]) -> list[Listed]:
        return []

    async def close(self) -> None:
        return


def _backend(name: str, options: SandboxSettings) -> BoxBackend:
    return BoxBackend()


def _driver(name: str, options: SandboxSettings) -> Any:
    return BoxDriver(options)


BOXES = Kind(backend=_backend, driver=_driver, images=BoxStore)


@contextmanager
def boxes(folder: Path) -> Iterator[Boxes]:
    """Have ``--sandbox boxes``, as if it were installed, in this process and those that it starts meanwhile."""
    site = folder / "site"
    information = site / f"{NAME}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[manyhands.sandboxes]\n{NAME} = {__name__}:BOXES\n")
    state = folder / NAME
    (state / "here").mkdir(parents=True)
    (state / "registry.json").write_text("{}")
    root = str(Path(__file__).parents[2])
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", _FOLDER)}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), root, before["PYTHONPATH"])))
    os.environ[_FOLDER] = str(state)
    sys.path.insert(0, str(site))
    _look_again()
    try:
        yield Boxes(state)
    finally:
        sys.path.remove(str(site))
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        _look_again()


def _look_again() -> None:
    importlib.invalidate_caches()
    plugins.cache_clear()
