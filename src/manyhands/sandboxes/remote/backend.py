"""The backend whose sandboxes are worlds of a driver."""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import secrets
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from manyhands.core import VERSION as OURS
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.io.files import make_private
from manyhands.network.connecting import LookUp, look_up
from manyhands.network.egress import Egress
from manyhands.network.namespaces import proxy_variables
from manyhands.processes.children import to_the_end
from manyhands.processes.system import boot
from manyhands.sandboxes.project import data_folders, project_of
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest
from manyhands.sandboxes.remote.driver import FOLDER, OWNER, RUN, VERSION, Driver, Enterable, WorldOptions, WorldSpec
from manyhands.sandboxes.remote.kept import Notes
from manyhands.sandboxes.remote.sandbox import RemoteSandbox

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME = 100


class RemoteBackend:
    """Makes a sandbox of a world of ``driver`` for each request. ``options``: what the run says of all its worlds; ``look_up``: what finds
    the addresses of names that commands ask the egress proxy for."""

    def __init__(self, driver: Driver, options: WorldOptions | None = None, *, look_up: LookUp = look_up) -> None:
        self._look_up = look_up
        self.driver = driver
        self._options = options or WorldOptions()

    @property
    def kind(self) -> str:
        return self.driver.kind

    def unavailable(self) -> str | None:
        return self.driver.unavailable()

    async def create(self, request: SandboxRequest) -> Sandbox:
        """A sandbox over a world that is made, or over the one that an earlier process left in the request's folder. Raises ItemError:
        SANDBOX_LOST if it can't be made, INVALID_INPUT for an image, a user, or a ``cwd`` that can't be used."""
        _check_cwd(request.cwd)
        folder, notes, spec = await to_the_end(asyncio.to_thread(_prepared, request))
        if self._is_proxied(request):
            spec = replace(spec, environment={**spec.environment, **proxy_variables()})
        egress = (
            Egress(request.limits.network_allow, request.hosts, look_up=self._look_up)
            if self._is_proxied(request)
            else None
        )
        sandbox = RemoteSandbox(self.driver, spec, notes, folder, self._options, request.cwd, egress)
        try:
            await sandbox.make()
            if request.ahead:
                await sandbox.get_ready()
        except BaseException:
            await to_the_end(sandbox.close())
            raise
        return sandbox

    def _is_proxied(self, request: SandboxRequest) -> bool:
        """Whether commands reach hosts by our proxy. Services have means of their own for that."""
        limits = request.limits
        return bool(limits.network_allow) and not limits.network and isinstance(self.driver, Enterable)

    async def processes(self, run_id: str) -> list[str]:
        """The command lines of all that runs in the worlds of a run, of whatever owner."""
        found: list[str] = []
        for world in await self.driver.listed({RUN: ""}):
            if world.running and f"{world.labels[RUN]}.".startswith(f"{run_id}."):
                with suppress(ItemError):  # it ended meanwhile
                    found += await _command_lines(self.driver, world.id)
        return found

    async def close(self) -> None:
        """Close the driver. Worlds that end with their owner end now."""
        await self.driver.close()


_LINES = """\
for file in /proc/[0-9]*; do
  [ "${file#/proc/}" = $$ ] && continue
  echo; tr '\\0' ' ' <"$file/cmdline"
done 2>/dev/null
"""


async def _command_lines(driver: Driver, world: str) -> list[str]:
    parts: list[bytes] = []
    stream = await driver.execute(
        world,
        ["/bin/sh", "-c", _LINES],
        environment={},
        user=None,
        directory="/",
        output=parts.append,
        errors=lambda data: None,
    )
    try:
        async with asyncio.timeout(30):
            await stream.close_input()
            await stream.wait()
    finally:
        await stream.close()
    lines = b"".join(parts).decode(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("tr ")]


def _check_cwd(cwd: str | None) -> None:
    if cwd is None:
        return
    if "\0" in cwd:
        raise ItemError(Cause.INVALID_INPUT, "cwd holds a NUL character")
    if not posixpath.isabs(cwd) and posixpath.normpath(cwd).split("/")[0] == "..":
        raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} leads out of the workspace")


def _prepared(request: SandboxRequest) -> tuple[Path, Notes, WorldSpec]:
    try:
        folder = request.folder.resolve()
        make_private(folder)
        (folder / "state").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't make the sandbox's folder: {error}") from error
    project = project_of(request, isolated=True)
    found = () if project is None else data_folders(project)
    name = _UNFIT.sub("-", request.name or folder.name)[:_MAX_NAME]
    labels = {RUN: request.run_id, FOLDER: str(folder), OWNER: _owner(), VERSION: OURS}
    spec = WorldSpec(
        name=f"manyhands-{name}-{secrets.token_hex(4)}",
        labels=labels,
        image=request.image,
        environment={"TERM": "dumb", **(request.environment or {})},
        user=request.user,
        limits=request.limits,
        project=project,
        hidden=(*request.hidden, *found),
    )
    return folder, Notes(folder), spec


def _owner() -> str:
    return f"{socket.gethostname()} {boot()} {os.getpid()}"
