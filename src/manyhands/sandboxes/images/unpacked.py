"""Images unpacked into folders, for sandboxes that show one as their root.

They lie in a cache of the user's (``MANYHANDS_IMAGE_CACHE``, else ``manyhands/images`` in ``XDG_CACHE_HOME``, else in ``~/.cache``), one
folder an image::

    KEY/rootfs        the image's files, by the ids of this machine that stand for its own
    KEY/image.json    {reference, pin, platform, size, config}
    KEY.lock          held by who unpacks it
    KEY.use           held by who has sandboxes of it
    KEY.source        where it was found: a reference
    KEY.NUMBER.partial  what is being unpacked

A folder gets its name when it is complete. Images come from an engine, or from files: ``oci:FOLDER`` and ``tar:FILE``.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.text import expand_home
from manyhands.io.files import make_private
from manyhands.processes.children import to_the_end
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.images.archives import FoundImage, find_image, machine_of_images, unpack_image
from manyhands.sandboxes.images.extraction import BadArchive, Bounds, Extraction, Owners
from manyhands.sandboxes.images.store import Image, ImageStore, PullProgress
from manyhands.sandboxes.images.templates import names_file

CACHE_VARIABLE = "MANYHANDS_IMAGE_CACHE"
MOUNT_POINTS = ("proc", "dev", "project")
"""Folders that every unpacked image has at its root."""
_DIGEST = re.compile(r"(?:.*@)?sha256:([0-9a-f]{64})")
_CONFIG = ("Env", "WorkingDir", "User")


def cache_folder() -> Path:
    """Where unpacked images lie."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base if base and os.path.isabs(base) else Path.home() / ".cache") / "manyhands" / "images"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An image in the cache."""

    root: Path
    """Its files."""
    config: Mapping[str, Any]
    """``Env``, ``WorkingDir``, ``User``."""
    platform: str = "linux/amd64"
    size: int | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Its environment."""
        lines = [line for line in self.config.get("Env") or () if isinstance(line, str) and "\0" not in line]
        return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals and name}

    @property
    def directory(self) -> str | None:
        """Its working directory; None if that is the root."""
        directory = self.config.get("WorkingDir")
        return directory if isinstance(directory, str) and directory.strip("/") and "\0" not in directory else None

    @property
    def user(self) -> str | None:
        """Who runs commands, as the image says; None if that is root."""
        user = self.config.get("User")
        return user if isinstance(user, str) and user else None


class UnpackedImages:
    """An ``ImageStore`` of unpacked images. ``owners``: the ids that stand for those of images; None where everything belongs to who
    unpacks it. ``engine``: makes the store of images that are no files, when it is needed; it raises UserError if there is none."""

    def __init__(
        self, owners: Owners | None, *, engine: Callable[[], ImageStore] | None = None, cache: Path | None = None
    ) -> None:
        self._owners = owners
        self._make_engine = engine
        self._engine: ImageStore | None = None
        self._cache = cache or cache_folder()

    def hold(self, pin: str) -> int:
        """A descriptor that keeps a pinned image from being removed while it is open. Raises OSError."""
        folder = self._folder(pin)
        make_private(folder.parent)
        held = os.open(f"{folder}.use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(held, fcntl.LOCK_SH)
        return held

    def unpacked(self, pin: str) -> Unpacked | None:
        """A pinned image, if it is here."""
        folder = self._folder(pin)
        try:
            said = json.loads((folder / "image.json").read_bytes())
            if not (folder / "rootfs").is_dir():
                return None
            return Unpacked(folder / "rootfs", said["config"], said["platform"], said.get("size"))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def find(
        self, reference: str, *, platform: str | None = None, newest: bool = False, pulled: bool = False
    ) -> Image | None:
        """Raises ItemError(INVALID_INPUT) for a file that holds no image, or another platform's."""
        if names_file(reference):
            return await asyncio.to_thread(self._find_file, reference, platform)
        if (pinned := await asyncio.to_thread(self._find_pinned, reference)) is not None:
            return pinned
        found = await self._needed_engine().find(reference, platform=platform, newest=newest, pulled=pulled)
        return found and replace(found, present=await self.present(found.pin))

    async def present(self, pin: str) -> bool:
        return await asyncio.to_thread(self.unpacked, pin) is not None

    async def pull(self, image: Image, progress: Callable[[PullProgress], None]) -> None:
        """Unpack a pinned image, unless it is here; one process at a time."""
        if await self.present(image.pin):
            return
        source = await asyncio.to_thread(self._source, image)
        if names_file(source):
            await to_the_end(asyncio.to_thread(self._unpack_file, image, source))
        else:
            await self._unpack_from_engine(image, progress)
        progress(PullProgress(image.size or 0, image.size))

    async def build(self, folder: Path, *, tag: str, timeout: float, log: Path) -> Image:
        built = await self._needed_engine().build(folder, tag=tag, timeout=timeout, log=log)
        return replace(built, present=await self.present(built.pin))

    async def export(self, pin: str, archive: Path) -> None:
        await self._needed_engine().export(pin, archive)

    async def remove(self, pin: str) -> None:
        await to_the_end(asyncio.to_thread(self._removed, pin))
        if self._engine is not None:
            await self._engine.remove(pin)

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()

    def _needed_engine(self) -> ImageStore:
        """Raises ItemError(SANDBOX_LOST)."""
        if self._engine is None:
            try:
                if self._make_engine is None:
                    raise UserError("there is no container engine to ask; name a file (oci:FOLDER or tar:FILE)")
                self._engine = self._make_engine()
            except UserError as error:
                raise ItemError(Cause.SANDBOX_LOST, str(error)) from error
        return self._engine

    # Files

    def _find_file(self, reference: str, platform: str | None) -> Image | None:
        path, tag = _file(reference)
        if not path.exists():
            return None
        machine = platform.rpartition("/")[2] if platform else machine_of_images()
        try:
            image = find_image(path, tag, machine=machine)
            if image.platform.split("/")[:2] != ["linux", machine]:
                raise BadArchive(f"is for {image.platform}, not for linux/{machine}")
            folder = self._folder(image.digest)
            make_private(folder.parent)
            folder.with_name(f"{folder.name}.source").write_text(reference, encoding="utf-8")
        except (BadArchive, OSError) as error:
            raise ItemError(Cause.INVALID_INPUT, f"{path} {_said(error)}") from error
        return Image(reference, image.digest, image.platform, image.size, self.unpacked(image.digest) is not None)

    def _find_pinned(self, pin: str) -> Image | None:
        """What a pin means that this cache knows; with the pin as its reference."""
        if _DIGEST.fullmatch(pin) is None:
            return None
        if (here := self.unpacked(pin)) is not None:
            return Image(pin, pin, here.platform, here.size, present=True)
        source = self._source(Image(pin, pin))
        found = self._find_file(source, None) if names_file(source) else None
        return replace(found, reference=pin) if found is not None and found.pin == pin else None

    def _source(self, image: Image) -> str:
        """Where an image was found: of one that is known by its pin, too."""
        if names_file(image.reference):
            return image.reference
        folder = self._folder(image.pin)
        try:
            return folder.with_name(f"{folder.name}.source").read_text(encoding="utf-8")
        except OSError:
            return image.reference

    # Unpacking

    def _unpack_file(self, image: Image, source: str) -> None:
        path, tag = _file(source)
        with _explained(image), self._alone(image.pin) as needed:
            if needed:
                found = find_image(path, tag, machine=image.platform.rpartition("/")[2])
                if found.digest != image.pin:
                    raise BadArchive(f"is another image by now than it was ({found.digest}, not {image.pin})")
                self._unpack(image, found, path)

    async def _unpack_from_engine(self, image: Image, progress: Callable[[PullProgress], None]) -> None:
        engine = self._needed_engine()
        await engine.pull(image, progress)
        with _explained(image):
            make_private(self._cache)
        with tempfile.TemporaryDirectory(prefix="export-", dir=self._cache) as folder:
            archive = Path(folder) / "rootfs.tar"
            await engine.export(image.pin, archive)
            await to_the_end(asyncio.to_thread(self._unpack_export, image, archive))

    def _unpack_export(self, image: Image, archive: Path) -> None:
        with _explained(image), self._alone(image.pin) as needed:
            if needed:
                config = json.loads(archive.with_name(f"{archive.name}.json").read_bytes())
                found = FoundImage(image.pin, config, (), image.platform, archive.stat().st_size, bare=True)
                self._unpack(image, found, archive)

    def _unpack(self, image: Image, found: FoundImage, path: Path) -> None:
        folder = self._folder(image.pin)
        aside = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.partial")
        try:
            (aside / "rootfs").mkdir(parents=True)
            with Extraction(aside / "rootfs", self._owners, Bounds()) as extraction:
                unpack_image(path, found, extraction)
                for name in MOUNT_POINTS:
                    extraction.make_folder(name)
            config = {name: found.config.get(name) for name in _CONFIG}
            said = {**image.to_json(), "config": config}
            (aside / "image.json").write_text(json.dumps(said), encoding="utf-8")
            aside.rename(folder)
        except BaseException:
            with suppress(OSError):
                remove_tree(aside)
            raise

    @contextmanager
    def _alone(self, pin: str) -> Iterator[bool]:
        """While nobody else unpacks this image; whether it has to be unpacked. What a killed process left is removed."""
        folder = self._folder(pin)
        make_private(folder.parent)
        with open(f"{folder}.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in folder.parent.glob(f"{folder.name}.*.partial"):
                remove_tree(left)
            if self.unpacked(pin) is not None:
                yield False
                return
            remove_tree(folder)
            yield True

    def _removed(self, pin: str) -> None:
        """Remove an unpacked image, unless somebody has sandboxes of it."""
        folder = self._folder(pin)
        if not folder.exists():
            return
        held = os.open(f"{folder}.use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with self._alone(pin):
                aside = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.partial")
                with suppress(FileNotFoundError):
                    folder.rename(aside)
                    remove_tree(aside)
        except BlockingIOError:
            return
        finally:
            os.close(held)

    def _folder(self, pin: str) -> Path:
        match = _DIGEST.fullmatch(pin)
        if match is None:
            raise ItemError(Cause.INVALID_INPUT, f"image {pin!r} is not pinned by a digest")
        owners = "own" if self._owners is None else f"{self._owners.uid}-{self._owners.gid}-{self._owners.count}"
        return self._cache / owners / match[1]


def _file(reference: str) -> tuple[Path, str | None]:
    """A reference's file or folder, and the name of the image in it."""
    path, mark, tag = reference.partition(":")[2].partition("#")
    return expand_home(path).absolute(), tag if mark else None


@contextmanager
def _explained(image: Image) -> Iterator[None]:
    """Raises ItemError(SANDBOX_LOST) for what goes wrong with an image."""
    try:
        yield
    except (BadArchive, OSError, ValueError) as error:
        raise ItemError(Cause.SANDBOX_LOST, f"image {image.reference}: {_said(error)}") from error


def _said(error: Exception) -> str:
    return f"{error.strerror} ({error.filename})" if isinstance(error, OSError) and error.strerror else str(error)
