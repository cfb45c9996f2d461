"""Worlds that are containers of an engine on this machine, Docker or Podman.

Beyond aiodocker: archives as streams, whether a folder is there, Podman's own account of what it can enforce (by
``EngineClient.request``), and what ``streams`` adds to commands.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from aiodocker.exceptions import DockerError
from aiodocker.stream import Stream

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes import system
from manyhands.processes.children import to_the_end
from manyhands.sandboxes.containers.accounts import MAX_PASSWD, ROOT, Account, account, passwd_in
from manyhands.sandboxes.containers.addresses import can_enter_worlds, is_local, rlimits, unreachable
from manyhands.sandboxes.containers.changes import keep_layers
from manyhands.sandboxes.containers.client import EngineClient, quoted
from manyhands.sandboxes.containers.requests import (
    DIRECTORY_LABEL,
    LIMITS_LABEL,
    USER_LABEL,
    WORKSPACE,
    EngineBounds,
    container_request,
    limited,
    user_of,
    workspace_of,
)
from manyhands.sandboxes.containers.streams import ContainerExec, mark_closed, not_startable, response_of, started
from manyhands.sandboxes.files.overlay_copy import fill_upper
from manyhands.sandboxes.files.walking import filled_size
from manyhands.sandboxes.images.extraction import BadArchive
from manyhands.sandboxes.remote.driver import Listed, World, WorldSpec

SNAPSHOT_SECONDS = 1800.0
ARCHIVE_SECONDS = 1800.0
_ENDING_SECONDS = 5.0
"""How long a container may take to end after its owner has."""
_CHUNK = 1 << 18
_SIZE_SECONDS = 5.0
_CONTROLLERS = {"memory": "memory", "processes": "pids", "cpus": "cpu"}
_DOCKER_CHECKS = {"memory": "MemoryLimit", "processes": "PidsLimit", "cpus": "CpuCfsQuota"}
_DIRECTORY, _LINK = 1 << 31, 1 << 27
"""Bits of a file's mode as engines give it (Go's ``os.FileMode``)."""
_STAT = "X-Docker-Container-Path-Stat"
_MAX_LINKS = 10


class ContainerDriver:
    """A ``Driver`` of one engine. ``runtime``: the engine's runtime, None for its default."""

    ends_with_owner = True

    def __init__(self, kind: str, address: str, *, runtime: str | None = None) -> None:
        self._kind = kind
        self._client = EngineClient(kind, address)
        self._runtime = runtime
        self._lifelines: dict[str, Stream] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._places: dict[str, tuple[str | None, bool]] = {}
        self._passwd: dict[str, str] = {}
        self._unenforced: tuple[str, ...] | None = None
        self._bounds_storage: bool | None = None
        self._is_native: bool | None = None
        self._rlimits: Mapping[str, int] | None = None
        self._in_use: set[str] = set()
        """Snapshots that could not be removed yet, as another one or a container is made of them."""

    @property
    def kind(self) -> str:
        return self._kind

    def unavailable(self) -> str | None:
        return unreachable(self._kind, self._client.address)

    def why_not_entered(self) -> str | None:
        if can_enter_worlds(self._client.address):
            return None
        return (
            "--network_allow: only root, or the user whose own engine it is, can enter the network of a container, and the engine at "
            f"{self._client.address} is somebody else's (start a rootless podman, or the run as root)"
        )

    async def identity(self) -> str:
        said = await self._client.info()
        if await self._client.is_podman():  # whose own id is another one each time
            host, store = said.get("host") or {}, said.get("store") or {}
            engine = f"{host.get('hostname')}:{store.get('graphRoot')}"
        else:
            engine = str(said.get("ID"))
        return f"{engine} {system.boot()}"

    async def unenforced(self) -> tuple[str, ...]:
        if self._unenforced is None:
            said = await self._client.info()
            if await self._client.is_podman():
                controllers = (said.get("host") or {}).get("cgroupControllers") or ()
                found = [name for name, controller in _CONTROLLERS.items() if controller not in controllers]
            else:
                found = [name for name, check in _DOCKER_CHECKS.items() if said.get(check) is False]
            self._unenforced = tuple(found)
        return self._unenforced

    async def create(self, spec: WorldSpec) -> World:
        if spec.image is None:
            raise ItemError(Cause.INVALID_INPUT, f"a {self._kind} container needs an image")
        if spec.project is not None and not is_local(self._client.address):
            raise ItemError(
                Cause.INVALID_INPUT,
                f"a project can't be shown to the engine of another machine ({self._client.address})",
            )
        image = await self._image(spec.image)
        body = container_request(spec, image, await self._bounds())
        made = await self._made(spec.name, body)
        self._labels[made] = body["Labels"]
        try:
            return await self._begun(made, spec, image)
        except BaseException:
            await to_the_end(self._removed(made))
            raise

    async def start(self, world: str) -> None:
        state = await self._state(world)
        if state.get("Running") and world in self._lifelines:
            return
        deadline = time.monotonic() + _ENDING_SECONDS
        while state.get("Running") and time.monotonic() < deadline:  # an owner of before is ending with it
            await asyncio.sleep(0.05)
            state = await self._state(world)
        if state.get("Running"):
            await self.stop(world)
        await self._start(world)

    async def stop(self, world: str) -> None:
        self._let_go(world)
        async with self._client.calls("stop a container") as docker:
            try:
                await docker.containers.container(world).stop(t=0)
            except DockerError as error:
                if error.status not in (304, 404, 409):
                    raise

    async def execute(
        self,
        world: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        user: str | None,
        directory: str | None,
        output: Callable[[bytes], None],
        errors: Callable[[bytes], None],
    ) -> ContainerExec:
        labels = await self._known_labels(world)
        if await self._is_rootless_podman():  # which does not set them
            command = limited(command, labels.get(LIMITS_LABEL, ""))
        if directory is None:
            directory = labels.get(DIRECTORY_LABEL)
        if user is None:
            user = labels.get(USER_LABEL)
        async with self._client.calls("start a command") as docker:
            try:
                made = await docker.containers.container(world).exec(
                    list(command), stdin=True, user=user or "", environment=dict(environment), workdir=directory
                )
            except DockerError as error:
                if error.status == 404:
                    raise
                raise not_startable(self._kind, error.message) from error
        return await started(self._client, made, output, errors)

    async def put(self, world: str, archive: BinaryIO, path: str) -> None:
        async with self._client.calls("copy files into a container", seconds=ARCHIVE_SECONDS) as docker:
            try:
                await docker.containers.container(world).put_archive(path, _chunks(archive))  # type: ignore[no-untyped-call]
            except DockerError as error:
                if error.status == 404 and not _no_container(error):
                    raise FileNotFoundError(path) from error
                raise

    async def get(self, world: str, path: str, archive: BinaryIO, *, max_bytes: int) -> None:
        size = 0
        async with self._client.calls("copy files from a container", seconds=ARCHIVE_SECONDS):
            try:
                async with self._client.request(
                    "GET", f"containers/{world}/archive", params={"path": path}
                ) as response:
                    async for data in response.content.iter_chunked(_CHUNK):
                        size += len(data)
                        if size > max_bytes:
                            raise ValueError(f"more than {max_bytes:,} bytes")
                        archive.write(data)
            except DockerError as error:
                if error.status == 404 and not _no_container(error):
                    raise FileNotFoundError(path) from error
                raise

    async def snapshot(self, world: str, labels: Mapping[str, str]) -> str:
        """Without a pause: the caller sees to it that nothing changes meanwhile. Not for images that declare volumes: what is in them
        belongs to no snapshot."""
        _, volumes = await self._place(world)
        if volumes:
            raise self._client.lost("keep a container's files", "what its image declares as volumes would be left out")
        word = _plain_word if await self._client.is_podman() else _quoted_word
        changes = [f"LABEL {word(name)}={word(value)}" for name, value in labels.items()]
        async with self._client.calls("keep a container's files", seconds=SNAPSHOT_SECONDS) as docker:
            kept = await docker.containers.container(world).commit(pause=False, changes=changes or None, config={})
        identity = str(kept["Id"])
        return identity if identity.startswith("sha256:") else f"sha256:{identity}"

    async def upper(self, world: str) -> Path | None:
        """None if the file system is not the kernel's own, or not this machine's, if we are not root, or with volumes."""
        upper, volumes = await self._place(world)
        if upper is None or volumes or os.geteuid() != 0 or not is_local(self._client.address):
            return None
        if self._is_native is None:
            self._is_native = await self._has_native_overlays()
        return Path(upper) if self._is_native and os.path.isdir(upper) else None

    async def changes(self, snapshot: str, image: str | None, folder: Path, *, max_bytes: int) -> list[Path]:
        """By commits and saved images, as only layers have everything: links, owners, and names that no JSON can tell."""
        below = await self._layers(image or "")
        layers = await self._layers(snapshot)
        doing = "export a container's files"
        if layers[: len(below)] != below:
            raise self._client.lost(doing, f"they are no changes of the image {image}")
        wanted = layers[len(below) :]
        if not wanted:
            return []
        call = self._client.request("GET", f"images/{quoted(snapshot)}/get")
        async with self._client.calls(doing, seconds=SNAPSHOT_SECONDS), call as response:
            saved = response.content.iter_chunked(_CHUNK)
            try:
                found = await keep_layers(saved, wanted, folder, max_bytes=max_bytes)
            except BadArchive as error:
                raise self._client.lost(doing, f"what the engine saved {error}") from error
        return [found[each] for each in wanted]

    async def _layers(self, image: str) -> list[str]:
        async with self._client.calls(f"look up the image {image}") as docker:
            found = await docker.images.inspect(quoted(image))
        return list((found.get("RootFS") or {}).get("Layers") or ())

    async def size(self, world: str) -> int | None:
        upper, _ = await self._place(world)
        if upper is not None and is_local(self._client.address) and os.access(upper, os.R_OK | os.X_OK):
            found = await asyncio.to_thread(filled_size, Path(upper), _SIZE_SECONDS)
            if found is not None:
                return found
        async with self._client.calls("ask for a container's size") as docker:
            counted = (await docker.containers.container(world).show(size=True)).get("SizeRw")
        return counted if isinstance(counted, int) else None

    async def delete(self, world: str) -> None:
        self._let_go(world)
        self._labels.pop(world, None)
        self._places.pop(world, None)
        await self._removed(world)
        for snapshot in list(self._in_use):
            await self.delete_snapshot(snapshot)

    async def delete_snapshot(self, snapshot: str) -> None:
        """One that is still in use is removed together with what uses it."""
        async with self._client.calls("remove a snapshot") as docker:
            try:
                await docker.images.delete(quoted(snapshot))
            except DockerError as error:
                if error.status == 409 or "in use" in error.message:
                    self._in_use.add(snapshot)
                    return
                if error.status != 404:
                    raise
        self._in_use.discard(snapshot)

    async def listed(self, labels: Mapping[str, str]) -> list[Listed]:
        wanted = {"label": [f"{name}={value}" if value else name for name, value in labels.items()]}
        async with self._client.calls("list containers") as docker:
            containers = await docker.containers.list(all=True, filters=json.dumps(wanted))
            images = await docker.images.list(filters=wanted, all=True)
        return [
            *(Listed(each.id, each["Labels"] or {}, running=each["State"] == "running") for each in containers),
            *(
                Listed(_sha(each["Id"]), each.get("Labels") or {}, snapshot=True, size=each.get("Size"))
                for each in images
            ),
        ]

    async def process(self, world: str) -> int:
        """The id of a world's first process, as this machine sees it: by it the namespaces of the world are found."""
        state = await self._state(world)
        if not state.get("Running") or not state.get("Pid"):
            raise self._client.lost("look for a container's process", "it does not run")
        return int(state["Pid"])

    async def close(self) -> None:
        for world in list(self._lifelines):
            self._let_go(world)
        await self._client.close()

    async def _image(self, name: str) -> dict[str, Any]:
        async with self._client.calls(f"look up the image {name}") as docker:
            try:
                found = await docker.images.inspect(quoted(name))
            except DockerError as error:
                if error.status == 404:
                    raise ItemError(Cause.INVALID_INPUT, f"{self._kind} has no image {name}") from error
                raise
        return found.get("Config") or {}

    async def _made(self, name: str, body: dict[str, Any]) -> str:
        async with self._client.calls("make a container") as docker:
            try:
                return (await docker.containers.create(body, name=name)).id
            except DockerError as error:
                if "StorageOpt" not in body["HostConfig"] or "torage" not in error.message:
                    raise
            self._bounds_storage = False
            del body["HostConfig"]["StorageOpt"]
            return (await docker.containers.create(body, name=name)).id

    async def _begun(self, world: str, spec: WorldSpec, image: Mapping[str, Any]) -> World:
        user = user_of(spec, image)
        owner = ROOT if user in ("", "0", "root") else await self._account(world, user, spec.image or "")
        workspace = workspace_of(image)
        if spec.changes is not None:
            await self._fill(world, spec.changes)
        elif workspace == WORKSPACE and owner.user != 0:
            await self.put(world, _folder(WORKSPACE, owner), "/")
        await self._start(world)
        directory = spec.directory or workspace
        if spec.directory is not None and not await self._is_folder(world, directory):
            raise ItemError(Cause.INVALID_INPUT, f"cwd: there is no folder {directory} in the image {spec.image}")
        return World(world, workspace, directory, owner.home)

    async def _start(self, world: str) -> None:
        """Attach, then start: what is attached before is the container's input from its first moment on."""
        self._let_go(world)
        async with self._client.calls("start a container") as docker:
            container = docker.containers.container(world)
            lifeline = container.attach(stdin=True)
            self._lifelines[world] = lifeline
            try:
                await self._attach(lifeline)
                await container.start()
            except DockerError as error:
                self._let_go(world)
                if error.status == 404 and _no_container(error):
                    raise
                raise not_startable(self._kind, error.message) from error

    async def _attach(self, lifeline: Stream) -> None:
        """Podman refuses it while a container that has just ended is being cleaned up."""
        deadline = time.monotonic() + _ENDING_SECONDS
        while True:
            try:
                await lifeline.__aenter__()
                return
            except DockerError as error:
                if "state improper" not in error.message or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.05)

    def _let_go(self, world: str) -> None:
        lifeline = self._lifelines.pop(world, None)
        if lifeline is None:
            return
        mark_closed(lifeline)  # its own close waits for nothing either, but fails where the other end was first
        response = response_of(lifeline)
        if response is not None:
            response.close()

    async def _removed(self, world: str) -> None:
        self._let_go(world)
        async with self._client.calls("remove a container") as docker:
            container = docker.containers.container(world)
            if await self._client.is_podman():  # which would give it ten seconds to end
                with suppress(DockerError):
                    await container.kill()
            try:
                await container.delete(force=True, v=True)
            except DockerError as error:
                if error.status not in (404, 409):
                    raise

    async def _state(self, world: str) -> Mapping[str, Any]:
        async with self._client.calls("look for a container") as docker:
            state: Mapping[str, Any] = (await docker.containers.container(world).show())["State"]
            return state

    async def _place(self, world: str) -> tuple[str | None, bool]:
        """The folder with what a container has beyond its image, if the engine tells it, and whether there are volumes besides. Neither
        changes as long as the container is there."""
        if world not in self._places:
            async with self._client.calls("look for a container") as docker:
                said = await docker.containers.container(world).show()
            upper = ((said.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir")
            volumes = any(each.get("Type") == "volume" for each in said.get("Mounts") or ())
            self._places[world] = (upper if isinstance(upper, str) else None, volumes)
        return self._places[world]

    async def _has_native_overlays(self) -> bool:
        if await self._is_rootless_podman():
            return False
        said = await self._client.info()
        if not await self._client.is_podman():
            return said.get("Driver") == "overlay2"
        store = said.get("store") or {}
        return store.get("graphDriverName") == "overlay" and "overlay.mount_program" not in (
            store.get("graphOptions") or {}
        )

    async def _fill(self, world: str, changes: Path) -> None:
        """Begin a container that does not run yet with a copy of what another one had."""
        upper = await self.upper(world)
        try:
            if upper is None:
                raise FileNotFoundError("the engine does not show a container's files any more")
            await asyncio.to_thread(fill_upper, changes, upper)
        except OSError as error:
            raise self._client.lost("make a container anew from its checkpoint", str(error)) from error

    async def _known_labels(self, world: str) -> Mapping[str, str]:
        if world not in self._labels:
            async with self._client.calls("look for a container") as docker:
                said = (await docker.containers.container(world).show())["Config"]
            self._labels[world] = said.get("Labels") or {}
        return self._labels[world]

    async def _is_rootless_podman(self) -> bool:
        if not await self._client.is_podman():
            return False
        host = (await self._client.info()).get("host") or {}
        return bool((host.get("security") or {}).get("rootless"))

    async def _account(self, world: str, user: str, image: str) -> Account:
        if image not in self._passwd:
            content = io.BytesIO()
            with suppress(FileNotFoundError, ValueError):
                await self.get(world, "/etc/passwd", content, max_bytes=MAX_PASSWD)
            self._passwd[image] = passwd_in(content.getvalue())
        found = account(user, self._passwd[image])
        if found is None:
            raise ItemError(Cause.INVALID_INPUT, f"the image {image} has no user {user.partition(':')[0]}")
        return found

    async def _is_folder(self, world: str, path: str) -> bool:
        for _ in range(_MAX_LINKS):
            said = await self._stat(world, path)
            if said is None or not said.get("mode", 0) & _LINK:
                return said is not None and bool(said["mode"] & _DIRECTORY)
            path = os.path.join(os.path.dirname(path), said.get("linkTarget") or "")
        return False

    async def _stat(self, world: str, path: str) -> dict[str, Any] | None:
        async with self._client.calls("look for a folder"):
            try:
                async with self._client.request(
                    "HEAD", f"containers/{world}/archive", params={"path": path}
                ) as response:
                    said: dict[str, Any] = json.loads(base64.b64decode(response.headers.get(_STAT, "")))
                    return said
            except DockerError as error:
                if error.status == 404:
                    return None
                raise

    async def _bounds(self) -> EngineBounds:
        if self._rlimits is None:
            self._rlimits = await asyncio.to_thread(rlimits, self._client.address)
        return EngineBounds(
            self._runtime,
            await self.unenforced(),
            await self._can_bound_storage(),
            self._rlimits,
            await self._client.is_podman(),
        )

    async def _can_bound_storage(self) -> bool:
        """Whether it is worth a try: only some file systems count what a container takes."""
        if self._bounds_storage is None:
            said = await self._client.info()
            kept = json.dumps(
                [said.get("Driver"), said.get("DriverStatus"), (said.get("store") or {}).get("graphStatus")]
            )
            self._bounds_storage = any(word in kept for word in ("xfs", "btrfs", "zfs"))
        return self._bounds_storage


def _no_container(error: DockerError) -> bool:
    return "o such container" in error.message or "no container with" in error.message


def _sha(identity: str) -> str:
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"


def _plain_word(text: str) -> str:
    """A word of a ``LABEL`` instruction as Podman reads it: as it is, to the end of the line."""
    return " ".join(text.splitlines())


def _quoted_word(text: str) -> str:
    """The same as Docker reads it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


async def _chunks(archive: BinaryIO) -> AsyncIterator[bytes]:
    while data := await asyncio.to_thread(archive.read, _CHUNK):
        yield data


def _folder(path: str, owner: Account) -> BinaryIO:
    """An archive of one empty folder."""
    member = tarfile.TarInfo(path.lstrip("/"))
    member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, 0o755, owner.user, owner.group
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(member)
    content.seek(0)
    return content
