"""Images in files: what ``docker save`` writes, layouts of the OCI (a folder, or an archive of one), and archives of a bare file system.

Formats: the OCI image specification (``image-layout.md``, ``image-index.md``, ``manifest.md``, ``config.md``), and Docker's
``image/spec/v1.2.md``. What has a digest is compared with it when it is read.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import platform
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from manyhands.sandboxes.images.extraction import BadArchive, Extraction, open_archive

_MAX_JSON = 16 << 20
_MAX_INDEXES = 4
_CHUNK = 1 << 20
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_NAME = "org.opencontainers.image.ref.name"
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MAX_NAMES = 200_000
"""Entries of an archive that is looked through for its parts."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an image in a file."""

    blob: str
    """Its name there."""
    digest: str | None = None
    """Of what it is when it is not compressed: ``sha256:…``."""


@dataclass(frozen=True, slots=True)
class FoundImage:
    """An image in a file."""

    digest: str
    """By which it is known: ``sha256:…`` of its manifest, of its configuration (``docker save``), or of the whole archive."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """``Env``, ``WorkingDir``, ``User`` …"""
    layers: tuple[Layer, ...] = ()
    platform: str = "linux/amd64"
    size: int = 0
    """Bytes of its layers as they lie there."""
    bare: bool = False
    """Whether the file is the archive of a file system."""


class _Blobs(Protocol):
    def names(self) -> set[str]: ...
    def size(self, name: str) -> int: ...
    def open(self, name: str) -> IO[bytes]:
        """Raises BadArchive if it is not there."""
        ...


@dataclass(slots=True)
class _Folder:
    path: Path

    def names(self) -> set[str]:
        return {name for name in ("index.json", "oci-layout", "manifest.json") if (self.path / name).is_file()}

    def size(self, name: str) -> int:
        with suppress(OSError):
            return (self.path / name).stat().st_size
        return 0

    def open(self, name: str) -> IO[bytes]:
        try:
            return (self.path / name).open("rb")
        except OSError as error:
            raise BadArchive(f"lacks {name} ({error.strerror})") from error


@dataclass(slots=True)
class _Archive:
    archive: tarfile.TarFile
    _members: dict[str, tarfile.TarInfo] = field(default_factory=dict)

    def names(self) -> set[str]:
        if not self._members:
            for count, member in enumerate(self.archive):
                self._members[os.path.normpath(member.name)] = member
                if count > _MAX_NAMES:
                    break  # no archive of layers: the names that tell one are found early, or not needed
        return set(self._members)

    def size(self, name: str) -> int:
        self.names()
        return self._members[name].size if name in self._members else 0

    def open(self, name: str) -> IO[bytes]:
        self.names()
        try:
            opened = self.archive.extractfile(self._members[os.path.normpath(name)])
        except (KeyError, tarfile.TarError) as error:
            raise BadArchive(f"lacks {name}") from error
        if opened is None:
            raise BadArchive(f"lacks {name}")
        return opened


def find_image(path: Path, tag: str | None, *, machine: str | None = None) -> FoundImage:
    """The image in a folder or an archive. ``tag``: which one, if there are several; ``machine``: as images name it, ours if None. Raises
    BadArchive, and OSError."""
    machine = machine or machine_of_images()
    with _opened(path) as blobs:
        names = blobs.names()
        if "index.json" in names and ("oci-layout" in names or "manifest.json" not in names):
            return _in_layout(blobs, tag, machine)
        if "manifest.json" in names and not path.is_dir():
            return _saved(blobs, tag)
    if path.is_dir():
        raise BadArchive("is no layout of the OCI: it has no index.json")
    return _bare(path, machine)


def unpack_image(path: Path, image: FoundImage, into: Extraction) -> None:
    """Unpack an image that ``find_image`` found there. Raises BadArchive, and OSError."""
    if image.bare:
        with path.open("rb") as file:
            _unpack_layer(file, Layer(path.name), into, whiteouts=False)
        return
    with _opened(path) as blobs:
        for layer in image.layers:
            with blobs.open(layer.blob) as file:
                _unpack_layer(file, layer, into, whiteouts=True)


def machine_of_images() -> str:
    """This machine's architecture, as images name it."""
    return _MACHINES.get(platform.machine(), platform.machine())


@contextmanager
def _opened(path: Path) -> Iterator[_Blobs]:
    if path.is_dir():
        yield _Folder(path)
        return
    with path.open("rb") as file, _plain(file) as plain:
        try:
            with open_archive(plain, stream=False) as archive:
                yield _Archive(archive)
        except (tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError) as error:
            raise BadArchive(f"is no archive, or damaged: {error}") from error


def _bare(path: Path, machine: str) -> FoundImage:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config: Mapping[str, Any] = {}
    beside = path.with_name(f"{path.name}.json")
    if beside.is_file():
        with beside.open("rb") as file:
            config = _parsed(file.read(_MAX_JSON + 1), beside.name)
        digest = hashlib.sha256(f"{digest} {json.dumps(config, sort_keys=True)}".encode()).hexdigest()
    return FoundImage(f"sha256:{digest}", config, (), f"linux/{machine}", path.stat().st_size, bare=True)


def _saved(blobs: _Blobs, tag: str | None) -> FoundImage:
    """What ``docker save`` wrote."""
    entries = _json(blobs, "manifest.json")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadArchive("has a manifest.json that is none")
    chosen = [entry for entry in entries if tag is None or tag in (entry.get("RepoTags") or ())]
    entry = _only(chosen, tag, [name for entry in entries for name in entry.get("RepoTags") or ()])
    name, layers = str(entry.get("Config")), entry.get("Layers")
    with blobs.open(name) as file:
        content = file.read(_MAX_JSON + 1)
    config = _parsed(content, name)
    contents = (config.get("rootfs") or {}).get("diff_ids") or []
    if not isinstance(layers, list) or len(layers) != len(contents):
        raise BadArchive("has not the layers that its configuration names")
    found = tuple(Layer(str(layer), _digest(digest)) for layer, digest in zip(layers, contents, strict=True))
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    size = sum(blobs.size(os.path.normpath(layer.blob)) for layer in found)
    return FoundImage(digest, config.get("config") or {}, found, _platform(config), size)


def _in_layout(blobs: _Blobs, tag: str | None, machine: str) -> FoundImage:
    entries = _manifests(_json(blobs, "index.json"))
    if tag is not None:
        entries = [each for each in entries if tag in (each["digest"], (each.get("annotations") or {}).get(_NAME))]
    descriptor = _only(entries, tag, [str((each.get("annotations") or {}).get(_NAME)) for each in entries])
    for _ in range(_MAX_INDEXES):
        manifest = _json(blobs, _blob(descriptor["digest"]), descriptor["digest"])
        if descriptor.get("mediaType") not in _INDEXES and "layers" in manifest:
            break
        fitting = [each for each in _manifests(manifest) if _fits(each, machine)]
        descriptor = _only(fitting, f"linux/{machine}", [])
    else:
        raise BadArchive("has indexes within each other")
    config_digest = _digest((manifest.get("config") or {}).get("digest"))
    config = _json(blobs, _blob(config_digest), config_digest)
    contents = (config.get("rootfs") or {}).get("diff_ids") or []
    layers = [each for each in manifest["layers"] if isinstance(each, dict)]
    if len(layers) != len(contents):
        raise BadArchive("has not the layers that its configuration names")
    found = tuple(
        Layer(_blob(_digest(layer.get("digest"))), _digest(content))
        for layer, content in zip(layers, contents, strict=True)
    )
    size = sum(blobs.size(layer.blob) for layer in found)
    return FoundImage(descriptor["digest"], config.get("config") or {}, found, _platform(config), size)


def _manifests(index: Any) -> list[dict[str, Any]]:
    entries = index.get("manifests") if isinstance(index, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadArchive("has an index that is none")
    for entry in entries:
        _digest(entry.get("digest"))
    return entries


def _fits(descriptor: Mapping[str, Any], machine: str) -> bool:
    wanted = descriptor.get("platform") or {}
    return (wanted.get("os", "linux"), wanted.get("architecture", machine)) == ("linux", machine)


def _only(entries: list[dict[str, Any]], wanted: str | None, names: list[str]) -> dict[str, Any]:
    if len(entries) == 1:
        return entries[0]
    if not entries:
        raise BadArchive(f"has no image {wanted}" if wanted else "has no image")
    raise BadArchive(f"has {len(entries)} images; name one of them behind a #: {', '.join(names[:10])}")


def _platform(config: Mapping[str, Any]) -> str:
    return f"{config.get('os') or 'linux'}/{config.get('architecture') or machine_of_images()}"


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest(value: object) -> str:
    """Raises BadArchive for anything but a digest: it becomes part of a path."""
    if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
        raise BadArchive(f"has something else where a digest should be: {str(value)[:80]!r}")
    return value


def _json(blobs: _Blobs, name: str, digest: str | None = None) -> Any:
    with blobs.open(name) as file:
        content = file.read(_MAX_JSON + 1)
    if digest is not None and f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise BadArchive(f"is damaged: {name} has another digest")
    return _parsed(content, name, any_type=True)


def _parsed(content: bytes, name: str, *, any_type: bool = False) -> Any:
    try:
        if len(content) > _MAX_JSON:
            raise ValueError("too long")
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadArchive(f"has a {name} that can't be read: {error}") from error
    if not any_type and not isinstance(value, dict):
        raise BadArchive(f"has a {name} that is no object")
    return value


# --- Layers

_OPENERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
_ZSTANDARD = b"\x28\xb5\x2f\xfd"


class _Hashed(io.RawIOBase):
    """A file that is read to its end only once, with the digest of what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def check(self, digest: str | None, what: str) -> None:
        """Read the rest, and compare. Raises BadArchive."""
        while self.read(_CHUNK):
            pass
        if digest is not None and f"sha256:{self._hash.hexdigest()}" != digest:
            raise BadArchive(f"is damaged: {what} has another digest")


def _unpack_layer(file: IO[bytes], layer: Layer, into: Extraction, *, whiteouts: bool) -> None:
    try:
        with _plain(file) as plain:
            content = _Hashed(plain)
            into.add_layer(content, whiteouts=whiteouts)  # type: ignore[arg-type] # reads are all that it needs
            content.check(layer.digest, layer.blob)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile) and error.errno is not None:
            raise
        raise BadArchive(f"is damaged: {error}") from error


@contextmanager
def _plain(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """What a file is when it is not compressed."""
    start = file.read(8)
    file.seek(0)
    if start.startswith(_ZSTANDARD):
        raise BadArchive("is compressed by zstd, which can't be read here: use gzip, or an engine")
    for magic, opener in _OPENERS:
        if start.startswith(magic):
            with opener(file, "rb") as opened:
                yield opened  # type: ignore[misc] # a binary one
            return
    yield file
