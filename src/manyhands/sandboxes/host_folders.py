"""Sandboxes that are mere folders of the host: how ``local`` makes them."""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
import subprocess
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.io.files import make_private
from manyhands.processes.children import Guard, Spawn, to_the_end
from manyhands.processes.strays import SANDBOX_VARIABLE, Tags, kill_left, tagged_or_marked
from manyhands.sandboxes.base import CommandSandbox, made_ready
from manyhands.sandboxes.commands import launch
from manyhands.sandboxes.commands.cgroups import Group, make_group
from manyhands.sandboxes.files.access import RunInside, read_on_host, write_on_host
from manyhands.sandboxes.files.checkpoint import Checkpoint
from manyhands.sandboxes.files.disk_watch import with_space
from manyhands.sandboxes.project import project_of
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest


async def make_sandbox(request: SandboxRequest, *, control_groups: bool) -> Sandbox:
    """Raises as ``LocalBackend.create`` does."""
    folder, project, directory = await with_space(lambda: to_the_end(asyncio.to_thread(_make_folders, request)))
    workspace = folder / "workspace"
    inside = project is None and (directory == workspace or workspace in directory.parents)
    seen = None if project is None else str(project)
    sandbox = CommandSandbox(
        folder,
        _LocalLauncher(request, str(workspace), str(directory), seen, control_groups=control_groups),
        _HostFiles(),
        Checkpoint(folder, ("workspace", "state")),
        request.limits,
        trees=("workspace",),
        fronted=False,
        whole=inside,
    )
    return await made_ready(sandbox, ahead=request.ahead)


class _Family:
    """What the sandboxes of this process have in common: how their ids and tags begin. A guard ends what carries these when the
    process ends; one for each sandbox would cost as much as its shell."""

    def __init__(self) -> None:
        self.tags = Tags()
        self._id = secrets.token_hex(8)
        self._guard: Guard | None = None

    def new_id(self) -> str:
        return self._id + secrets.token_hex(8)

    def watch(self) -> None:
        """Have a guard. Raises ItemError(SANDBOX_LOST)."""
        if self._guard is None or not self._guard.alive:
            self._guard = Guard(f"{SANDBOX_VARIABLE}={self._id}", self.tags, family=True)


@cache
def _family(process: int) -> _Family:
    """Of a process of ours: one that is forked has a guard of its own."""
    return _Family()


class _LocalLauncher:
    other_users = False

    def __init__(
        self,
        request: SandboxRequest,
        workspace: str,
        start_directory: str,
        project: str | None,
        *,
        control_groups: bool,
    ) -> None:
        self._request = request
        self._control_groups = control_groups
        self._family = _family(os.getpid())
        self._id = self._family.new_id()
        self._group: Group | None = None
        self._used = False
        self.tag: int | None = None
        self.kind = "local"
        self.spawn: Spawn = subprocess.Popen
        self.workspace = workspace
        self.project = project
        self.start_directory = start_directory
        scrubbed = launch.scrubbed_environment(request, home=workspace, path=launch.host_path(), project=project)
        self.environment = launch.marked(scrubbed, request, self._id)

    async def prepare(self) -> bool:
        if not self._used:
            self._family.watch()
            self._used = True
            limits = self._request.limits
            if self._control_groups:
                self._group = make_group(memory=limits.memory, processes=limits.processes)
            self.tag = self._family.tags.new()  # also beside a group, which the guard does not know
        return False

    @property
    def keep(self) -> Sequence[int]:
        return ()

    def command(
        self, command: Sequence[str], directory: str, user: str | None = None, *, variables: Collection[str] = ()
    ) -> list[str]:
        launch.check_no_other_user(self.kind, user)
        # No limit on processes without a group: the per-user one would count everything else that the user runs.
        return launch.limited(command, self._request.limits, self._group, processes=None, directory=directory)

    def handed(self, variables: Mapping[str, str]) -> Mapping[str, str]:
        return variables

    def members(self) -> set[int] | None:
        return None if self._group is None else self._group.members()

    def processes(self) -> set[int]:
        if self._group is not None:
            return self._group.members()
        return tagged_or_marked(self.tag, SANDBOX_VARIABLE, self._id)

    async def kill(self) -> None:
        if self._used:
            await asyncio.to_thread(self._kill)

    async def stop(self) -> None:
        if self._used:
            await asyncio.to_thread(self._end)

    def _kill(self) -> None:
        if self._group is None:
            kill_left({self._id: self.tag})
        else:
            self._group.kill()

    def _end(self) -> None:
        self._kill()
        if self._group is not None:
            self._group.remove()


class _HostFiles:
    async def read(self, path: str, max_bytes: int, run: RunInside) -> bytes:
        return await asyncio.to_thread(read_on_host, Path(path), path, max_bytes)

    async def write(self, path: str, data: bytes, run: RunInside) -> None:
        await asyncio.to_thread(write_on_host, Path(path), path, data)


def _make_folders(request: SandboxRequest) -> tuple[Path, Path | None, Path]:
    """The sandbox's folder, the project, and where commands start."""
    try:
        folder = request.folder.resolve()
        make_private(folder)
        for name in ("workspace", "state"):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't make the sandbox's folder: {error}") from error
    project = project_of(request, isolated=False)
    return folder, project, _start_directory(folder / "workspace", request.cwd, project)


def _start_directory(workspace: Path, cwd: str | None, project: Path | None) -> Path:
    """Where commands start. A relative ``cwd`` is made under the workspace; an absolute one must exist."""
    if not cwd:
        return workspace if project is None else project
    if "\0" in cwd:
        raise ItemError(Cause.INVALID_INPUT, "cwd holds a NUL character")
    directory = Path(posixpath.normpath(workspace / cwd))
    if workspace in directory.parents and not posixpath.isabs(cwd):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} can't be made: {error.strerror}") from error
    elif not posixpath.isabs(cwd) and directory != workspace:
        raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} leads out of the workspace")
    if not directory.is_dir():
        raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} is no folder on this machine (sandbox: local)")
    return directory
