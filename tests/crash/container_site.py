"""Where runs in containers, and in unpacked images, are performed: an engine of the campaign's own, and its images."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from manyhands.sandboxes.images.unpacked import CACHE_VARIABLE
from manyhands.sandboxes.remote.driver import FOLDER, OWNER, RUN
from tests.crash.rounds import Site, Work
from tests.support.commands import SimulatedProcess
from tests.support.engines import Engine, engine_of, started
from tests.support.image_tars import full_image

IMAGES = 20


class WorldSite(Site):
    """A site whose items work in worlds of images. ``images``: names that items take in turn; ``bare``: one without bash, that of every
    second item; ``image``: that of all."""

    def __init__(
        self,
        folder: Path,
        server: SimulatedProcess,
        environ: Mapping[str, str],
        *,
        images: Sequence[str] = (),
        bare: str | None = None,
        image: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, server)
        self._images = images
        self._bare = bare
        self._image = image
        self._environ = environ

    def words(self, work: Work, name: str, executor: str) -> list[str]:
        return [*super().words(work, name, executor), *([f"--image={self._image}"] if self._image else [])]

    @property
    def environ(self) -> Mapping[str, str]:
        return self._environ

    def rows(self, work: Work) -> Iterator[dict[str, Any]]:
        """Items with a command at least, so that each has a sandbox of its own."""
        for number in range(work.prompts):
            subject = ("tides", "harbours", "leap years", "sorting words", "prime numbers")[number % 5]
            prompt = f"Case {number}: work through {subject}. [simulate: tools={1 + (number % 5 == 0)}]"
            yield {"prompt": prompt, "case": number, **self._named(work, number)}

    def _named(self, work: Work, number: int) -> dict[str, str]:
        if not work.images:
            return {}
        if number % 2 and self._bare is not None and work.calm_in is None:  # bubblewrap's sandboxes need a bash
            return {"image": self._bare}
        return {"image": self._images[number % work.images]}


class ContainerSite(WorldSite):
    """A site with an engine."""

    def __init__(self, folder: Path, server: SimulatedProcess, engine: Engine, images: int = IMAGES) -> None:
        made = made_images(engine, images)
        super().__init__(folder / engine.kind, server, engine.environment, images=made, bare=engine.bare)
        self.engine = engine

    def containers(self, folder: Path, *, running: bool) -> list[dict[str, Any]]:
        """Those of runs below a folder."""
        listed = self.engine.ask("GET", f"containers/json?all={int(not running)}")
        return [each for each in listed if str((each.get("Labels") or {}).get(FOLDER, "")).startswith(f"{folder}/")]

    def running(self, folder: Path, owner: int | None = None) -> list[int]:
        """The first processes of the containers that run, as this machine sees them. ``owner``: only those of this process."""
        found = []
        for each in self.containers(folder, running=True):
            if owner is None or str(each["Labels"].get(OWNER, "")).endswith(f" {owner}"):
                said = self.engine.ask("GET", f"containers/{each['Id']}/json", missing={})
                found.append(int((said.get("State") or {}).get("Pid") or 0))
        return [pid for pid in found if pid > 0]

    def left(self, run_id: str) -> list[str]:
        """All that an engine has of a run."""
        containers = self.engine.ask("GET", "containers/json?all=1")
        images = self.engine.ask("GET", "images/json?all=1")
        networks = self.engine.ask("GET", "networks")
        kinds = {"container": containers, "image": images, "network": networks}
        return [
            f"{kind} {each.get('Id')}"
            for kind, listed in kinds.items()
            for each in listed
            if f"{(each.get('Labels') or {}).get(RUN, '')}.".startswith(f"{run_id}.")
        ]


def made_images(engine: Engine, count: int) -> list[str]:
    """So many images, each with a file of its own."""
    names = [f"crash-{number}:1" for number in range(count)]
    there = {tag for image in engine.ask("GET", "images/json") for tag in image.get("RepoTags") or ()}
    for number, name in enumerate(names):
        if not any(tag.endswith(f"/{name}") or tag == name for tag in there):
            _make_image(engine, name, number)
    return names


def _make_image(engine: Engine, name: str, number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "of-this-image").write_text(f"{number}\n")
        made = engine.client("create", engine.full, "true").strip()
        engine.client("cp", f"{folder}/of-this-image", f"{made}:/of-this-image")
        engine.client("commit", made, name)
        engine.client("rm", made)


def unpacked_site(folder: Path, server: SimulatedProcess) -> WorldSite:
    """A site for bubblewrap sandboxes of an image, which tests have unpacked in the same folder."""
    cache = Path(tempfile.gettempdir()) / f"manyhands-test-images-{os.getuid()}" / "unpacked"
    return WorldSite(folder / "unpacked", server, {CACHE_VARIABLE: str(cache)}, image=f"tar:{full_image()}")


@contextmanager
def container_site(kind: str, folder: Path, server: SimulatedProcess) -> Iterator[ContainerSite]:
    """A site with an engine that lives as long as this is open. Raises Unavailable."""
    with ExitStack() as stack:
        place = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="mh-")
        )  # short, as sockets have their place in it
        yield ContainerSite(folder, server, engine_of(kind, stack.enter_context(started(kind, Path(place) / kind))))
