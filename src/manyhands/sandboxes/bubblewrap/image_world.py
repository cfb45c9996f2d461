"""Sandboxes whose root is a container image, unpacked once, under an overlay of their own.

One bubblewrap a sandbox holds its namespaces, as without an image. Its number 1, and what brings commands inside, is a program of our own
(``entering.program``), as nothing of the image may run before it has no rights on the host. Commands run as the image's user, which is
nobody on the host (``own_ids``), with a container's usual capabilities over what is inside.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.io.files import make_private
from manyhands.network.connecting import LookUp
from manyhands.processes.children import Process, to_the_end
from manyhands.processes.system import children
from manyhands.sandboxes.base import CommandSandbox, made_ready, prepared
from manyhands.sandboxes.bubblewrap.anchor import HeldNamespaces, namespace_link, start_held
from manyhands.sandboxes.bubblewrap.as_root import User
from manyhands.sandboxes.bubblewrap.entering.program import entering, missing_for, program_file
from manyhands.sandboxes.bubblewrap.held import HeldLauncher
from manyhands.sandboxes.bubblewrap.image_root import (
    UPPER,
    WORK,
    Programs,
    bubblewrap_arguments,
    bubblewrap_words,
    fill_upper,
    has_folder,
    make_workspace,
    missing_program,
    read_merged,
    shown_folders,
)
from manyhands.sandboxes.bubblewrap.image_users import ROOT, ImageUser, user_of
from manyhands.sandboxes.bubblewrap.own_ids import OwnIds, own_ids, user_namespace
from manyhands.sandboxes.bubblewrap.root import EMPTY, WORKSPACE
from manyhands.sandboxes.commands import launch
from manyhands.sandboxes.files.access import RunInside, read_inside, write_inside
from manyhands.sandboxes.files.checkpoint import Checkpoint
from manyhands.sandboxes.files.disk_watch import with_space
from manyhands.sandboxes.files.removing import clear_folder
from manyhands.sandboxes.images.unpacked import Unpacked, UnpackedImages
from manyhands.sandboxes.project import PROJECT, variables
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAMESPACES = {
    "mnt": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
"""Files of /proc/PID/ns, and flags of setns(2)."""
_CAPABILITIES = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 10, 18))
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE, SYS_CHROOT (linux/capability.h)."""
_FILLED = "filled"
"""In the sandbox's folder: a file that says that its overlay has what every world has."""
_SECONDS = 20.0
_HAVE_FOLDER = '[ -d "$1" ] && exit 0; [ -n "$2" ] || exit 20; mkdir -p -- "$1" && chown -- "$2" "$1"'
_NO_FOLDER = 20


class ImageAnchor(HeldNamespaces):
    """Namespaces whose root is an image. ``program``: a descriptor of ``entering.program``."""

    def __init__(self, process: Process, lifeline: int, inner: int, program: int) -> None:
        super().__init__(process, lifeline, inner)
        # The descriptor of number 1 was opened by its id: it must not have become that of another process.
        if inner not in children(process.pid):
            raise OSError("it ended at once")
        self._program = program
        self._joined = sum(
            flag for file, flag in _NAMESPACES.items() if namespace_link("self", file) != namespace_link(inner, file)
        )

    @property
    def outer_user(self) -> int:
        return user_namespace()

    @property
    def keep(self) -> Sequence[int]:
        return (self._watch, self._program)

    def command(self, command: Sequence[str], user: ImageUser, *, groups: bool) -> list[str]:
        """The host's command that runs ``command`` inside, at the root."""
        theirs = user.groups if groups else None
        words = entering(self._watch, self._program, self._joined, _CAPABILITIES, theirs, user.uid, user.gid)
        return [f"/proc/self/fd/{self._program}", *words, *command]


class _ImageLauncher(HeldLauncher[ImageAnchor]):
    other_users = True

    def __init__(
        self,
        request: SandboxRequest,
        folder: Path,
        image: Unpacked,
        ids: OwnIds,
        directory: str,
        project: Path | None,
        held: int,
        look_up: LookUp,
    ) -> None:
        """``held``: a descriptor that keeps the image where it is, to be closed at the end."""
        inside = None if project is None else PROJECT
        workspace = image.directory or WORKSPACE
        super().__init__(request, directory, workspace=workspace, project=inside, look_up=look_up)
        self._held = held
        self._folder = folder
        self._image = image
        self._ids = ids
        self._project = project
        self.user = self._user(request.user) if request.user is not None else self._own_user()
        given = {"PATH": _PATH, "HOME": self.user.home, "LANG": "C.UTF-8", "TERM": "dumb", **image.variables}
        given |= {**variables(inside, workspace), **(request.environment or {}), **self.proxies}
        # Of these nothing is for what brings a command inside: a loader that heeds them runs with more rights than the image has.
        self.environment = launch.handed_on(given)

    @property
    def keep(self) -> Sequence[int]:
        return () if self._anchor is None else self._anchor.keep

    def command(
        self, command: Sequence[str], directory: str, user: str | None = None, *, variables: Collection[str] = ()
    ) -> list[str]:
        who = self.user if user is None else self._user(user)
        inside = launch.in_directory(command, directory, {} if user is None else {"HOME": who.home})
        entered = self._running().command(inside, who, groups=self._ids.as_root)
        return launch.limited(entered, self._request.limits, self._group, self._max_processes())

    async def stop(self) -> None:
        await super().stop()
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)

    def _own_user(self) -> ImageUser:
        """The image's user; root where ids are too few for any other."""
        if self._image.user is None or self._ids.owners.count == 1:
            return ROOT if self._home_of_root() is None else ImageUser(0, 0, (), self._home_of_root() or "/")
        return self._user(self._image.user)

    def _home_of_root(self) -> str | None:
        try:
            return user_of("0", read_merged(self._folder, self._image.root, "etc/passwd"), "").home
        except LookupError:
            return None

    def _user(self, said: str) -> ImageUser:
        passwd, group = (read_merged(self._folder, self._image.root, f"etc/{name}") for name in ("passwd", "group"))
        try:
            user = user_of(said, passwd, group)
        except LookupError as error:
            raise ItemError(Cause.INVALID_INPUT, f"user {said!r}: {error} in image {self._request.image}") from error
        if not (self._ids.has(user.uid) and self._ids.has(user.gid)):
            why = (
                "only root is there where an ordinary user starts the run"
                if self._ids.owners.count == 1
                else "no such id"
            )
            raise ItemError(Cause.INVALID_INPUT, f"user {said!r}: {why}")
        return ImageUser(user.uid, user.gid, tuple(filter(self._ids.has, user.groups)), user.home)

    async def _started(self, marks: Mapping[str, str]) -> ImageAnchor:
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise ItemError(Cause.SANDBOX_LOST, "bubblewrap is not installed")
        namespace = await asyncio.to_thread(user_namespace)
        root = self._ids.owners.of(0, 0)
        program = program_file(os.getpid(), *root)
        shown = shown_folders(self._folder, self._project, self._request.hidden)
        arguments = bubblewrap_arguments(shown, self._request.limits, attached=self._ids.as_root)
        anchor = await start_held(
            bubblewrap_words(self._image.root, self._folder, self._ids, namespace, bwrap),
            arguments,
            [f"/proc/self/fd/{program}"],
            {"PATH": f"{launch.host_path()}:{_PATH}", **marks},
            keep=[namespace, program],
            enter=lambda process, lifeline, inner: ImageAnchor(process, lifeline, inner, program),
        )
        if self._ids.as_root:
            await self._attach(anchor, shown, User(*root))
        return anchor


class _ImageFiles:
    """Files are reached by commands inside: only these know how the overlay's parts fit together."""

    def __init__(self, project: str | None, workspace: str) -> None:
        self._project = project
        self._workspace = workspace

    async def read(self, path: str, max_bytes: int, run: RunInside) -> bytes:
        return await read_inside(run, path, max_bytes)

    async def write(self, path: str, data: bytes, run: RunInside) -> None:
        aside = secrets.token_hex(8)
        await write_inside(run, path, data, aside, project=self._project, workspace=self._workspace)


async def make_image_world(request: SandboxRequest, project: Path | None, look_up: LookUp) -> Sandbox:
    """A sandbox of ``request.image``. ``look_up`` as of the backend. Raises ItemError: SANDBOX_LOST if it can't be made, INVALID_INPUT
    for a directory, a user or an image
    that can't be used."""
    _check_machine()
    try:
        ids = own_ids()
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, str(error)) from error
    image, held, bash = await to_the_end(asyncio.to_thread(_unpacked, request, ids))
    try:
        directory = _start_directory(request, image, project)
        folder = await with_space(lambda: to_the_end(asyncio.to_thread(_make_folders, request, image, ids)))
        launcher = _ImageLauncher(request, folder, image, ids, directory, project, held, look_up)
    except BaseException:
        os.close(held)
        raise
    checkpoint = Checkpoint(folder, (UPPER, "state"), overlays=(UPPER,))
    files = _ImageFiles(launcher.project, launcher.workspace)
    sandbox = CommandSandbox(
        folder, launcher, files, checkpoint, request.limits, trees=(UPPER,), fronted=True, bash=bash
    )
    if checkpoint.open_step is not None:  # what may have to be brought back first can't be while it is mounted
        return sandbox
    try:
        if launcher.workspace == WORKSPACE:
            who = launcher.user
            await asyncio.to_thread(make_workspace, folder, image.root, WORKSPACE[1:], ids, who.uid, who.gid)
        await prepared(launcher)
        await _have_directory(sandbox, folder, image, request, launcher)
    except BaseException as error:
        await to_the_end(sandbox.close())
        if isinstance(error, OSError):
            raise ItemError(Cause.SANDBOX_LOST, f"can't make the sandbox's folder: {error}") from error
        raise
    return await made_ready(sandbox, ahead=request.ahead)


async def _have_directory(
    sandbox: CommandSandbox, folder: Path, image: Unpacked, request: SandboxRequest, launcher: _ImageLauncher
) -> None:
    """Have the folder where commands start; one that a row names by its whole path must be there. Raises ItemError(INVALID_INPUT)."""
    directory = launcher.start_directory
    if launcher.project is not None and f"{directory}/".startswith(f"{PROJECT}/"):
        return
    if await asyncio.to_thread(has_folder, folder, image.root, directory):
        return
    named = request.cwd is not None and posixpath.isabs(request.cwd)
    owner = "" if named else f"{launcher.user.uid}:{launcher.user.gid}"
    command = ["sh", "-c", _HAVE_FOLDER, "sh", directory, owner]
    result = await sandbox.run(command, timeout=_SECONDS, cwd="/", user="0")
    if result.exit_code == _NO_FOLDER:
        raise ItemError(Cause.INVALID_INPUT, f"cwd {request.cwd!r} is no folder of image {request.image}")
    if result.exit_code != 0:
        said = result.output.decode(errors="replace").strip()[-300:]
        raise ItemError(Cause.SANDBOX_LOST, f"can't make {directory}: {said or result.exit_code}")


def _start_directory(request: SandboxRequest, image: Unpacked, project: Path | None) -> str:
    """Where commands start. Raises ItemError(INVALID_INPUT)."""
    base = image.directory or WORKSPACE
    cwd = request.cwd
    if not cwd:
        return base if project is None else PROJECT
    if "\0" in cwd:
        raise ItemError(Cause.INVALID_INPUT, "cwd holds a NUL character")
    path = "/" + posixpath.normpath(posixpath.join(base, cwd)).lstrip("/")
    if not posixpath.isabs(cwd) and not f"{path}/".startswith(f"{base.rstrip('/')}/"):
        raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} leads out of the workspace")
    within = project is not None and f"{path}/".startswith(f"{PROJECT}/")
    if project is not None and within and not (project / posixpath.relpath(path, PROJECT)).is_dir():
        raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} is no folder of the project")
    return path


def _unpacked(request: SandboxRequest, ids: OwnIds) -> tuple[Unpacked, int, bool]:
    """The image, a descriptor that keeps it where it is, and whether it has a bash."""
    assert request.image is not None
    images = UnpackedImages(ids.giving)
    try:
        held = images.hold(request.image)
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't use unpacked images: {error}") from error
    try:
        image = images.unpacked(request.image)
        if image is None:
            raise ItemError(Cause.SANDBOX_LOST, f"image {request.image} is not unpacked here")
        programs = _programs(image.root)
        if not programs.sh:
            raise ItemError(Cause.INVALID_INPUT, f"image {request.image} has no /bin/sh")
    except BaseException:
        os.close(held)
        raise
    return image, held, programs.bash


@cache
def _programs(root: Path) -> Programs:
    try:
        return Programs.of(root)
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't read an unpacked image: {error}") from error


def _check_machine() -> None:
    problem = missing_for()
    program = missing_program()
    if program is not None:
        problem = f"{program} is missing"
    if problem is not None:
        raise ItemError(Cause.SANDBOX_LOST, problem)


def _make_folders(request: SandboxRequest, image: Unpacked, ids: OwnIds) -> Path:
    try:
        folder = request.folder.resolve()
        make_private(folder)
        filled = (folder / _FILLED).exists()
        for name in (UPPER, WORK, "state", EMPTY):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / EMPTY).chmod(0o755)
        if not filled:
            clear_folder(folder / UPPER)
            fill_upper(folder, image.root, ids, network=request.limits.network)
            (folder / _FILLED).touch()
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't make the sandbox's folder: {error}") from error
    return folder
