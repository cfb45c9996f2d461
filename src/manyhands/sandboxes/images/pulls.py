"""Bringing the images of a run here when they are first needed: each once, whatever the number of processes that wait for it.

The processes of a run meet in its folder ``images/``. Of each image there are three files, named after a digest of its pin: ``.lock`` is
held by whoever pulls it; ``.use`` (shared) by whoever makes a sandbox of it, and its time says when that was last; ``.pull`` says how far
it is, for progress. ``turn-1.lock`` to ``turn-3.lock`` are held by pulls: so many go on at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from manyhands.core.errors import ItemError, StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import line
from manyhands.io.files import make_private, written_aside
from manyhands.io.json_files import read_object
from manyhands.runs.progress import BEAT, IMAGES_WANTED, PULLED
from manyhands.sandboxes.images.store import Image, ImageStore, PullProgress

Policy = Literal["missing", "always", "never"]
AT_ONCE = 3
STALLED = 900.0
"""Seconds without any progress after which a pull is given up."""
_ROUNDS = 5
"""How often an image is pulled again that was removed before it could be used."""
_NOTED_EVERY = 0.5
_PAUSES = (0.02, 0.05, 0.1, 0.2)
"""Seconds between looks at a lock that another process has; the last one repeats."""


class Pulls:
    """The images of a run, as one of its processes has them brought here."""

    def __init__(
        self, folder: Path, store: ImageStore, *, policy: Policy = "missing", cache: int | None = None
    ) -> None:
        """``folder``: ``images/`` of the run, which is made; ``cache``: bytes that images pulled by this run may take, None: any."""
        self._folder = folder
        self._store = store
        self._policy = policy
        self._cache = cache
        self._pulling: dict[str, asyncio.Task[None]] = {}

    def announce(self, images: Sequence[Image]) -> None:
        """Note for progress which images the run is made of."""
        distinct = {image.pin: image for image in images}.values()
        make_private(self._folder)
        size = sum(image.size or 0 for image in distinct if not image.present)
        _write(self._folder / IMAGES_WANTED, {"images": len(distinct), "bytes": size})

    @asynccontextmanager
    async def using(self, image: Image) -> AsyncIterator[None]:
        """An image that is here, and stays here until a sandbox of it is made. Raises ItemError(SANDBOX_LOST), with the registry's words,
        if it can't be pulled."""
        for _ in range(_ROUNDS):
            async with _locked(self._path(image, ".use"), fcntl.LOCK_SH) as descriptor:
                if await self._store.present(image.pin):
                    os.utime(descriptor)
                    self._note_present(image)
                    yield
                    return
            await self._pulled(image)
        raise ItemError(Cause.SANDBOX_LOST, f"the image {image.reference} was pulled and is not here all the same")

    async def close(self) -> None:
        """End the pulls that go on."""
        tasks = list(self._pulling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pulled(self, image: Image) -> None:
        """Wait for the pull of an image, which this process makes once for all that need it."""
        task = self._pulling.get(image.pin)
        if task is None:
            task = self._pulling[image.pin] = asyncio.create_task(self._pull(image))
            task.add_done_callback(lambda done: self._forget(image.pin, done))
        await asyncio.shield(task)

    def _forget(self, pin: str, done: asyncio.Task[None]) -> None:
        del self._pulling[pin]
        if not done.cancelled():
            done.exception()  # whoever waited has it

    async def _pull(self, image: Image) -> None:
        failures = self._noted(image).get("failures", 0)
        async with _locked(self._path(image, ".lock"), fcntl.LOCK_EX):
            noted = self._noted(image)
            if noted.get("failures", 0) > failures:  # of the pull that was waited for
                raise ItemError(Cause.SANDBOX_LOST, str(noted.get("message")))
            if await self._store.present(image.pin):
                return
            if self._policy == "never":
                raise ItemError(Cause.SANDBOX_LOST, f"the image {image.reference} is not here, and --pull is never")
            async with self._turn():
                await self._make_room(image.size or 0)
                await self._perform(image, noted.get("failures", 0))

    async def _perform(self, image: Image, failures: int) -> None:
        noting = _Noting(self._path(image, PULLED), image, failures)
        pull = asyncio.create_task(self._store.pull(image, noting.progress))
        try:
            while not (await asyncio.wait([pull], timeout=1.0))[0]:
                noting.beat()
                if noting.silent > STALLED:
                    raise ItemError(Cause.SANDBOX_LOST, f"nothing came for {STALLED:g} s")
            await pull
        except ItemError as error:
            message = f"the image {image.reference} can't be pulled: {error.message}"
            noting.failed(message)
            raise ItemError(Cause.SANDBOX_LOST, message) from None
        finally:
            if not pull.done():
                pull.cancel()
                await asyncio.gather(pull, return_exceptions=True)
        noting.ended()

    async def _make_room(self, size: int) -> None:
        """Remove images that this run pulled, the longest unused first, as far as they would take more than they may."""
        if self._cache is None:
            return
        kept = {path.stem: found for path in self._folder.glob(f"*{PULLED}") if (found := _read(path)).get("pulled")}
        here = {name: found for name, found in kept.items() if found.get("state") == "here"}
        taken = size + sum(int(found.get("size") or found.get("done") or 0) for found in here.values())
        for name in sorted(here, key=lambda each: _used_at(self._folder / f"{each}.use")):
            if taken <= self._cache:
                return
            if await self._removed(name, here[name]):
                taken -= int(here[name].get("size") or here[name].get("done") or 0)

    async def _removed(self, name: str, found: dict[str, Any]) -> bool:
        """Remove an image that nobody uses. ``name``: of its files."""
        with _taken(self._folder / f"{name}.use", fcntl.LOCK_EX) as descriptor:
            if descriptor is None:
                return False
            await self._store.remove(str(found["pin"]))
            if await self._store.present(str(found["pin"])):
                return False
            _write(self._folder / f"{name}{PULLED}", {**found, "state": "removed"})
            return True

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One of the pulls that may go on at once."""
        paths = [self._folder / f"turn-{number}.lock" for number in range(1, AT_ONCE + 1)]
        async with _one_locked(paths, fcntl.LOCK_EX):
            yield

    def _note_present(self, image: Image) -> None:
        path = self._path(image, PULLED)
        if _read(path).get("state") not in ("here", "pulling"):
            _write(path, {"state": "here", "reference": image.reference, "pin": image.pin, "size": image.size})

    def _noted(self, image: Image) -> dict[str, Any]:
        return _read(self._path(image, PULLED))

    def _path(self, image: Image, suffix: str) -> Path:
        if not self._folder.is_dir():
            make_private(self._folder)
        return self._folder / f"{hashlib.sha256(image.pin.encode()).hexdigest()[:24]}{suffix}"


class _Noting:
    """Notes how far one pull is."""

    def __init__(self, path: Path, image: Image, failures: int) -> None:
        self._path = path
        self._noted: dict[str, Any] = {
            "reference": image.reference,
            "pin": image.pin,
            "size": image.size,
            "done": 0,
            "total": image.size or 0,
            "failures": failures,
        }
        self._written_at = 0.0
        self._heard_at = time.monotonic()
        self._write("pulling")

    @property
    def silent(self) -> float:
        """Seconds since something came."""
        return time.monotonic() - self._heard_at

    def progress(self, progress: PullProgress) -> None:
        if progress.done != self._noted["done"]:
            self._heard_at = time.monotonic()
        self._noted |= {"done": progress.done, "total": progress.total or self._noted["total"]}
        if time.monotonic() - self._written_at >= _NOTED_EVERY:
            self._write("pulling")

    def beat(self) -> None:
        """It goes on, though nothing may come."""
        if time.monotonic() - self._written_at >= BEAT:
            self._write("pulling")

    def failed(self, message: str) -> None:
        self._noted |= {"message": message, "failures": self._noted["failures"] + 1}
        self._write("failed")

    def ended(self) -> None:
        self._noted |= {"pulled": time.time(), "done": max(self._noted["done"], self._noted["total"])}
        self._write("here")

    def _write(self, state: str) -> None:
        self._written_at = time.monotonic()
        _write(self._path, {"state": state, **self._noted})


def _write(path: Path, value: dict[str, Any]) -> None:
    with (
        suppress(StorageError),
        written_aside(path) as handle,
    ):  # only progress: a full disk is reported by what matters
        handle.write(line(value))


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(read_object(path, within=path.parent))
    except UserError:
        return {}


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _taken(path: Path, kind: int) -> Iterator[int | None]:
    """A file's lock, if nobody else has it: its descriptor, else None."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@asynccontextmanager
async def _locked(path: Path, kind: int) -> AsyncIterator[int]:
    """A file's lock, waited for as long as another process has it; the kernel takes it from one that dies."""
    async with _one_locked([path], kind) as descriptor:
        yield descriptor


@asynccontextmanager
async def _one_locked(paths: Sequence[Path], kind: int) -> AsyncIterator[int]:
    """The lock of one of several files."""
    looks = 0
    while True:
        for path in paths:
            with _taken(path, kind) as descriptor:
                if descriptor is not None:
                    yield descriptor
                    return
        await asyncio.sleep(_PAUSES[min(looks, len(_PAUSES) - 1)])
        looks += 1
