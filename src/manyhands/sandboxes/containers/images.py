"""The images of a container engine, as an ``ImageStore``.

Beyond aiodocker: Docker's look-up of an image at its registry (``/distribution``), Podman's account of its registries and our own look-up
there (``registry``), and the streamed export of a container's file system.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from aiodocker.exceptions import DockerError
from aiodocker.utils import compose_auth_header

from manyhands.core import VERSION as OUR_VERSION
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.containers import registry
from manyhands.sandboxes.containers.building import build_image
from manyhands.sandboxes.containers.client import EngineClient, quoted
from manyhands.sandboxes.containers.credentials import credentials
from manyhands.sandboxes.images.store import Image, PullProgress
from manyhands.sandboxes.remote.driver import VERSION

PULL_SECONDS = 4 * 3600.0
EXPORT_SECONDS = 3600.0
_NOT_THERE = (401, 403, 404)
_ID = re.compile(r"^(sha256:)?[0-9a-f]{64}$")
_NORMALISED = re.compile(r"(\S+/\S+): (?:No such image|image not known)")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i386": "386", "i686": "386"}


class EngineImages:
    """The image store of one engine."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._platform: str | None = None
        self._pulls: dict[str, asyncio.Task[None]] = {}

    async def find(
        self, reference: str, *, platform: str | None = None, newest: bool = False, pulled: bool = False
    ) -> Image | None:
        inspected, here = await self._inspected(reference), None
        if inspected is not None and (platform is None or _same_platform(platform, _platform(inspected))):
            here = Image(
                reference, _pin(reference, inspected), _platform(inspected), inspected.get("Size"), present=True
            )
        if pulled or _ID.match(reference) or (here is not None and not newest):
            return here
        if await self._client.is_podman():
            there = await self._at_registries(reference, platform)
        else:
            there = await self._distributed(reference, platform)
        if there is None or here is None:
            return there or here
        return replace(there, present=await self.present(there.pin))

    async def present(self, pin: str) -> bool:
        return await self._inspected(pin) is not None

    async def pull(self, image: Image, progress: Callable[[PullProgress], None]) -> None:
        """One pull at a time for each pin: who asks meanwhile waits for that."""
        task = self._pulls.get(image.pin)
        if task is None:
            task = self._pulls[image.pin] = asyncio.create_task(self._pull(image, progress))
            task.add_done_callback(lambda done: self._pulls.pop(image.pin, None))
        await asyncio.shield(task)

    async def build(self, folder: Path, *, tag: str, timeout: float, log: Path) -> Image:
        if await self._inspected(tag) is None:
            kind = "podman" if await self._client.is_podman() else "docker"
            await build_image(kind, self._client.address, folder, tag=tag, timeout=timeout, log=log)
        here = await self._inspected(tag)
        if here is None:
            raise self._client.lost(f"build {tag}", "the engine does not have what was built")
        return Image(tag, _identity(here), _platform(here), here.get("Size"), present=True)

    async def export(self, pin: str, archive: Path) -> None:
        here = await self._inspected(pin)
        if here is None:
            raise self._client.lost(f"export {pin}", "no such image")
        config = here.get("Config") or {}
        archive.with_name(f"{archive.name}.json").write_bytes(
            orjson.dumps({name: config.get(name) for name in ("Env", "WorkingDir", "User")})
        )
        async with self._client.calls(f"export {pin}", seconds=EXPORT_SECONDS) as docker:
            made = await docker.containers.create(
                {
                    "Image": pin,
                    "Cmd": ["/bin/sh"],
                    "Labels": {VERSION: OUR_VERSION},
                    "HostConfig": {"NetworkMode": "none"},
                },
                name=f"manyhands-export-{secrets.token_hex(6)}",
            )
            try:
                async with self._client.request("GET", f"containers/{made.id}/export") as response:
                    with archive.open("wb") as file:
                        async for chunk in response.content.iter_chunked(1 << 20):
                            await asyncio.to_thread(file.write, chunk)
            finally:
                await made.delete(force=True, v=True)

    async def remove(self, pin: str) -> None:
        async with self._client.calls(f"remove {pin}") as docker:
            try:
                await docker.images.delete(quoted(pin))
            except DockerError as error:
                if error.status not in (404, 409) and "in use" not in error.message:
                    raise

    async def close(self) -> None:
        for task in list(self._pulls.values()):
            task.cancel()
        await asyncio.gather(*self._pulls.values(), return_exceptions=True)
        await self._client.close()

    async def _inspected(self, name: str) -> dict[str, Any] | None:
        async with self._client.calls(f"look up the image {name}") as docker:
            try:
                return await docker.images.inspect(quoted(name))
            except DockerError as error:
                if error.status == 404 or (error.status == 400 and "invalid reference" in error.message):
                    return None
                raise

    async def _distributed(self, reference: str, platform: str | None) -> Image | None:
        """What Docker says of an image at its registry."""
        name = registry.parsed(reference)
        headers = _authorization(await asyncio.to_thread(credentials, "docker", name.repository), name.host)
        async with self._client.calls(f"look up the image {reference} at its registry"):
            try:
                async with self._client.request(
                    "GET", f"distribution/{quoted(reference)}/json", headers=headers
                ) as response:
                    said = await response.json()
            except DockerError as error:
                if (
                    error.status in _NOT_THERE
                    or "manifest unknown" in error.message
                    or "invalid reference" in error.message
                ):
                    return None
                raise
        wanted = platform or await self._own_platform()
        offered = [
            _platform({key.title(): value for key, value in each.items()}) for each in said.get("Platforms") or ()
        ]
        if platform is not None and offered and not any(_same_platform(platform, each) for each in offered):
            return None
        return Image(reference, f"{name.repository}@{said['Descriptor']['digest']}", wanted)

    async def _at_registries(self, reference: str, platform: str | None) -> Image | None:
        """What an image's name means at its registry, or at the first of Podman's search registries that has it."""
        said = await self._client.info()
        known: Mapping[str, Any] = said.get("registries") or {}
        insecure = [host for host, about in known.items() if isinstance(about, dict) and about.get("Insecure")]
        name = registry.parsed(reference)
        problem: registry.RegistryError | None = None
        for candidate in [name] if name.host else await self._full_names(name, known):
            try:
                digest = await registry.digest_of(
                    candidate, insecure=insecure, credentials=lambda repository: credentials("podman", repository)
                )
            except registry.RegistryError as error:
                problem = error
                continue
            if digest is not None:
                return Image(reference, f"{candidate.repository}@{digest}", platform or await self._own_platform())
        if problem is not None:
            raise self._client.lost(f"look up the image {reference} at its registry", str(problem))
        return None

    async def _full_names(self, name: registry.Name, known: Mapping[str, Any]) -> list[registry.Name]:
        """What a short name may stand for. Where Podman has no list, its own words on a missing image say what it takes it for."""
        if hosts := known.get("search"):
            return [registry.Name(host, name.path, name.tag, name.digest) for host in hosts]
        async with self._client.calls(f"look up the image {name.path}") as docker:
            try:
                await docker.images.inspect(quoted(f"{name.path}:{name.tag}"))
            except DockerError as error:
                found = _NORMALISED.search(error.message)
                return [registry.parsed(found[1])] if found else []
        return []

    async def _own_platform(self) -> str:
        if self._platform is None:
            info = await self._client.info()
            host = info.get("host") or {}
            machine = str(host.get("arch") or info.get("Architecture") or "amd64")
            self._platform = f"{host.get('os') or info.get('OSType') or 'linux'}/{_MACHINES.get(machine, machine)}"
        return self._platform

    async def _pull(self, image: Image, progress: Callable[[PullProgress], None]) -> None:
        if await self.present(image.pin):
            return
        name = registry.parsed(image.pin)
        if name.digest is None or _ID.match(image.pin):
            raise ItemError(
                Cause.SANDBOX_LOST,
                f"{self._client.kind}: the image {image.reference} ({image.pin}) is gone, and no registry has it",
            )
        kind = "podman" if await self._client.is_podman() else "docker"
        known = await asyncio.to_thread(credentials, kind, name.repository)
        layers = _Layers()
        async with self._client.calls(f"pull {image.reference}", seconds=PULL_SECONDS) as docker:
            pin = image.pin if name.host or known is None or "/" in name.path else f"library/{image.pin}"
            auth = None if known is None else {"username": known[0], "password": known[1]}
            platform = None if _same_platform(image.platform, await self._own_platform()) else image.platform
            async for line in docker.images.pull(pin, auth=auth, platform=platform, stream=True):
                if layers.take(line):
                    progress(layers.progress())
        if not await self.present(image.pin):
            raise self._client.lost(f"pull {image.reference}", f"the engine does not have {image.pin} after it")


class _Layers:
    """How much of each layer of a pull came, from the engine's lines."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}

    def take(self, line: Mapping[str, Any]) -> bool:
        """Note a line; whether it said something new."""
        detail = line.get("progressDetail") or {}
        layer, status = line.get("id"), line.get("status")
        if not isinstance(layer, str):
            return False
        done, total = self._layers.get(layer, (0, 0))
        if status == "Downloading" and detail.get("total"):
            new = (int(detail.get("current") or 0), int(detail["total"]))
        elif status in ("Download complete", "Pull complete"):
            new = (total, total)
        else:
            return False
        self._layers[layer] = new
        return new != (done, total)

    def progress(self) -> PullProgress:
        total = sum(total for _, total in self._layers.values())
        return PullProgress(sum(done for done, _ in self._layers.values()), total or None)


def _pin(reference: str, inspected: Mapping[str, Any]) -> str:
    """By what an image here is made again: the digest of its reference; else its digest at a registry, best the one that its reference
    names; else its id."""
    if _ID.match(reference):
        return _identity(inspected)
    name = registry.parsed(reference)
    if name.digest is not None:
        return f"{name.repository}@{name.digest}"
    kept = inspected.get("RepoDigests") or ()
    digests = [digest for digest in kept if not digest.startswith(("localhost/", "<none>"))]
    names = (name.repository, f"library/{name.repository}")
    fitting = [digest for digest in digests if digest.partition("@")[0] in names]
    return next(iter(fitting or digests), _identity(inspected))


def _identity(inspected: Mapping[str, Any]) -> str:
    identity = str(inspected["Id"])
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"


def _platform(inspected: Mapping[str, Any]) -> str:
    machine = str(inspected.get("Architecture") or "amd64")
    variant = inspected.get("Variant")
    return f"{inspected.get('Os') or 'linux'}/{_MACHINES.get(machine, machine)}" + (f"/{variant}" if variant else "")


def _same_platform(asked: str, given: str) -> bool:
    """Whether what is given fits what is asked for; a variant counts only if it is asked for."""
    parts = asked.split("/")
    return given.split("/")[: len(parts)] == parts


def _authorization(known: tuple[str, str] | None, host: str) -> dict[str, str]:
    if known is None:
        return {}
    return {"X-Registry-Auth": compose_auth_header({"username": known[0], "password": known[1]}, host or None)}
