"""Images in files for tests: layers, layouts of the OCI, and what ``docker save`` writes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.sandboxes.images.archives import machine_of_images


def member(name: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """An entry of an archive; a file unless ``type`` says another kind."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, content


def folder(name: str, mode: int = 0o755, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=mode, **fields)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """The archive of a layer."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for entry, content in members:
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def config_of(layers: Sequence[bytes], config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The configuration of an image with these layers."""
    return {
        "architecture": machine_of_images(),
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [sha256(each) for each in layers]},
    }


def layout(where: Path, layers: Sequence[bytes], config: Mapping[str, Any] | None = None, tag: str = "one") -> str:
    """Add an image to a layout of the OCI; the digest of its manifest."""
    blobs = where / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def blob(content: bytes) -> dict[str, Any]:
        digest = sha256(content)
        (blobs / digest.partition(":")[2]).write_bytes(content)
        return {"digest": digest, "size": len(content), "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"}

    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config_of(layers, config)).encode()),
        "layers": [blob(gzip.compress(each)) for each in layers],
    }
    described = {
        **blob(json.dumps(manifest).encode()),
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "annotations": {"org.opencontainers.image.ref.name": tag},
    }
    index = where / "index.json"
    before = json.loads(index.read_bytes())["manifests"] if index.exists() else []
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": [*before, described]}))
    (where / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(described["digest"])


def saved(file: Path, layers: Sequence[bytes], config: Mapping[str, Any] | None = None) -> str:
    """Write what ``docker save`` does; the image's id."""
    content = json.dumps(config_of(layers, config)).encode()
    digest = sha256(content)
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    entry = {"Config": f"{digest[7:]}.json", "RepoTags": ["made:1"], "Layers": names}
    with tarfile.open(file, "w") as archive:
        for name, data in (
            *zip(names, layers, strict=True),
            (entry["Config"], content),
            ("manifest.json", json.dumps([entry]).encode()),
        ):
            found, _ = member(str(name), data)
            archive.addfile(found, io.BytesIO(data))
    return digest


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
