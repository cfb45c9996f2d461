"""Commands in namespaces of their own, made by bubblewrap.

One bubblewrap a sandbox makes the namespaces and then only waits on a pipe of ours (so it ends with us, whatever happens
to us); every command enters them by nsenter. So commands see each other's processes, ports and ``/tmp``, a start costs
little, and killing the process that is number 1 inside kills everything inside.

The root is narrow: ``/usr`` and a handful of harmless files of ``/etc``, read-only; ``/workspace`` and ``/tmp``, which
are folders of the sandbox; ``/proc`` and ``/dev``. Neither a home folder of the host nor any key is in reach, and there
is no network unless the limits allow it, or name hosts: to these a proxy leads (``network.egress``). A project (``sandboxes.project``) is
seen read-only at ``/project``.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from manyhands.core.errors import ItemError, ManyhandsError
from manyhands.core.failures import Cause
from manyhands.io.files import make_private
from manyhands.network.connecting import LookUp, look_up
from manyhands.processes.children import to_the_end
from manyhands.sandboxes.base import CommandSandbox, made_ready, prepared
from manyhands.sandboxes.bubblewrap.anchor import Anchor, start_anchor
from manyhands.sandboxes.bubblewrap.as_root import User, hand_over, stand_in_for_root
from manyhands.sandboxes.bubblewrap.held import HeldLauncher
from manyhands.sandboxes.bubblewrap.image_world import make_image_world
from manyhands.sandboxes.bubblewrap.root import (
    EMPTY,
    OWN_FILES,
    WORKSPACE,
    copies,
    folders,
    mounts,
    own_folder,
    search_path,
    start_directory,
)
from manyhands.sandboxes.commands import launch
from manyhands.sandboxes.confinement import missing_for
from manyhands.sandboxes.files.access import RunInside, read_inside, read_plain, write_inside, write_plain
from manyhands.sandboxes.files.checkpoint import Checkpoint
from manyhands.sandboxes.files.disk_watch import with_space
from manyhands.sandboxes.files.trees import open_folder
from manyhands.sandboxes.project import PROJECT, data_folders, project_of
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest

_NEEDED = {"bwrap": "bubblewrap", "nsenter": "util-linux", "bash": "bash"}
_TRIAL_SECONDS = 20.0
_WRITABLE = ("workspace", "tmp")
_LANGUAGE = ("LANG", "LC_ALL")


class BubblewrapBackend:
    """Makes sandboxes by bubblewrap: of the host's programs, or of an image that was unpacked (``images.unpacked``).

    ``look_up``: what finds the addresses of names that commands ask the egress proxy for.
    """

    def __init__(self, *, look_up: LookUp = look_up) -> None:
        self._look_up = look_up

    @property
    def kind(self) -> str:
        return "bubblewrap"

    def unavailable(self) -> str | None:
        """Found out once a process, by making a sandbox and running a command in it."""
        return _why_not()

    async def create(self, request: SandboxRequest) -> Sandbox:
        """Raises ItemError: SANDBOX_LOST if it can't be made, INVALID_INPUT for a ``cwd`` that can't be used."""
        project = None
        if request.project is not None:
            project = await asyncio.to_thread(project_of, request, isolated=True)
        if project is not None:
            found = await asyncio.to_thread(data_folders, project)
            request = replace(request, hidden=(*request.hidden, *found))
        if request.image is not None:
            return await make_image_world(request, project, self._look_up)
        directory, alias = start_directory(request.cwd, project)
        folder = await with_space(lambda: to_the_end(asyncio.to_thread(_make_folders, request, directory)))
        launcher = _BubblewrapLauncher(request, folder, directory, alias, project, self._look_up)
        try:
            await prepared(launcher)
        except BaseException:
            await to_the_end(launcher.stop())
            raise
        writable = _writable(request)
        checkpoint = Checkpoint(folder, (*writable, "state"))
        files = _InsideFiles(folder, alias, launcher.project, request.folders)
        sandbox = CommandSandbox(folder, launcher, files, checkpoint, request.limits, trees=writable, fronted=True)
        return await made_ready(sandbox, ahead=request.ahead)


class _BubblewrapLauncher(HeldLauncher[Anchor]):
    def __init__(
        self,
        request: SandboxRequest,
        folder: Path,
        directory: str,
        alias: str | None,
        project: Path | None,
        look_up: LookUp,
    ) -> None:
        inside = None if project is None else PROJECT
        super().__init__(request, directory, workspace=WORKSPACE, project=inside, look_up=look_up)
        self._folder = folder
        self._alias = alias
        self._project = project
        # Commands carry no marks, which would show in what they print: all of them end with the anchor, which is marked.
        self._given = dict(request.environment or {})
        own = replace(request, environment=None)
        environment = launch.scrubbed_environment(own, home=WORKSPACE, path=search_path(), project=self.project)
        # What brings a command into the sandbox says nothing in any language: to read a locale takes such a program a quarter longer.
        self._language = {name: environment.pop(name) for name in _LANGUAGE if name in environment}
        self.environment = {**environment, **self.proxies, **launch.handed_on(self._given)}

    def command(
        self, command: Sequence[str], directory: str, user: str | None = None, *, variables: Collection[str] = ()
    ) -> list[str]:
        anchor = self._running()
        launch.check_no_other_user(self.kind, user)
        entered = anchor.command(launch.in_directory(command, directory, self._language, {*self._given, *variables}))
        return launch.limited(entered, self._request.limits, self._group, self._max_processes(), door=anchor.door)

    async def _started(self, marks: Mapping[str, str]) -> Anchor:
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise ItemError(Cause.SANDBOX_LOST, "bubblewrap is not installed")
        user = _stand_in()
        _make_alias(self._folder, self._alias)
        request = self._request
        shown = folders(self._folder, self._alias, self._project, request.hidden, request.folders)
        arguments = mounts(shown, request.limits, attached=user is not None)
        marked = {**self.environment, **marks}
        anchor = await start_anchor(bwrap, arguments, OWN_FILES, copies(request.limits.network), marked, user)
        if user is not None:
            await self._attach(anchor, shown, user)
        return anchor


class _InsideFiles:
    """Files of the workspace, of ``/tmp`` and of further folders are reached directly, unless a link is on the way; all others by a command
    inside, also the project's, so that nothing of it can be read that is hidden there."""

    def __init__(self, folder: Path, alias: str | None, project: str | None, own: Iterable[str] = ()) -> None:
        self._project = project
        self._roots = {WORKSPACE: folder / "workspace", "/tmp": folder / "tmp"}
        self._roots |= {path: own_folder(folder, path) for path in own}
        if alias is not None:
            self._roots[alias] = folder / "workspace"

    async def read(self, path: str, max_bytes: int, run: RunInside) -> bytes:
        location = self._location(path)
        if location is not None:
            data = await asyncio.to_thread(read_plain, *location, path, max_bytes)
            if data is not None:
                return data
        return await read_inside(run, path, max_bytes)

    async def write(self, path: str, data: bytes, run: RunInside) -> None:
        location = self._location(path)
        if location is None or not await asyncio.to_thread(write_plain, *location, path, data):
            await write_inside(run, path, data, secrets.token_hex(8), project=self._project, workspace=WORKSPACE)

    def _location(self, path: str) -> tuple[Path, list[str]] | None:
        """The host's folder and the names below it; None for paths that only the inside can resolve."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts or path.endswith("/"):
            return None
        for root in sorted(self._roots, key=len, reverse=True):
            above = root.strip("/").split("/")
            if parts[: len(above)] == above:
                return self._roots[root], parts[len(above) :]
        return None


def _make_folders(request: SandboxRequest, directory: str) -> Path:
    try:
        folder = request.folder.resolve()
        make_private(folder)
        for name in (*_writable(request), "state", EMPTY):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "tmp").chmod(0o1777)
        (folder / EMPTY).chmod(0o755)
        if directory.startswith(f"{WORKSPACE}/"):
            below = posixpath.relpath(directory, WORKSPACE).split("/")
            with suppress(NotADirectoryError), open_folder(folder / "workspace", below, make=True):
                pass
        user = _stand_in()
        if user is not None:
            for name in _writable(request):
                hand_over(folder / name, user)
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"can't make the sandbox's folder: {error}") from error
    return folder


def _writable(request: SandboxRequest) -> tuple[str, ...]:
    """The folders in a sandbox's host folder that commands write to."""
    return (*_WRITABLE, *(own_folder(request.folder, path).name for path in request.folders))


def _make_alias(folder: Path, alias: str | None) -> None:
    """Make the folder in ``/tmp`` where the workspace is also visible. Mounts, and the mount points that bubblewrap makes, would follow a
    link that an agent left there: such a sandbox does not start. Nothing may be running inside."""
    if alias is None or not alias.startswith("/tmp/"):
        return
    try:
        with open_folder(folder / "tmp", alias.split("/")[2:], make=True):
            pass
    except OSError as error:
        raise ItemError(
            Cause.SANDBOX_LOST, f"can't show the workspace at {alias}: {error.strerror or error}"
        ) from error


def _stand_in() -> User | None:
    try:
        return stand_in_for_root()
    except OSError as error:
        raise ItemError(Cause.SANDBOX_LOST, str(error)) from error


@cache
def _why_not() -> str | None:
    for program, package in _NEEDED.items():
        if shutil.which(program) is None:
            return f"{program} is missing (install the package {package})"
    if (problem := missing_for()) is not None:
        return problem
    found: list[str | None] = ["bubblewrap gave no answer"]
    trial = threading.Thread(target=lambda: found.insert(0, asyncio.run(_trial())), daemon=True)
    trial.start()
    trial.join(_TRIAL_SECONDS)
    return found[0]


async def _trial() -> str | None:
    """What goes wrong with a first sandbox, in one line. A command that was killed in it says nothing of what this machine can do."""
    with tempfile.TemporaryDirectory(prefix="manyhands-") as folder:
        try:
            sandbox = await BubblewrapBackend().create(SandboxRequest(Path(folder), run_id="trial"))
            try:
                for _ in range(3):
                    result = await sandbox.run(["true"], timeout=_TRIAL_SECONDS / 4)
                    if result.exit_code == 0:
                        return None
            finally:
                await sandbox.close()
        except (ManyhandsError, OSError) as error:
            return " ".join(f"bubblewrap can't be used here: {error}".split())
    text = result.output.decode(errors="replace")
    return " ".join(f"bubblewrap can't be used here: {text or result.exit_code}".split())
