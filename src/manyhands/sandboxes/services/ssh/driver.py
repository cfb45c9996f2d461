"""``--sandbox ssh``: worlds are folders of an account on another machine.

Nothing is isolated there: commands can do whatever the account can, and see the worlds of other items. What a world has of its own is its
folder, which is also its home.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.processes.children import to_the_end
from manyhands.sandboxes.remote.driver import FOLDER, OWNER, RUN, ExecStream, Listed, World, WorldSpec, has_labels
from manyhands.sandboxes.services.commands import ended
from manyhands.sandboxes.services.ssh import scripts
from manyhands.sandboxes.services.ssh.connections import (
    Connections,
    Machine,
    NotBegun,
    SshTarget,
    complaint,
    found,
    machine_of,
)
from manyhands.sandboxes.services.ssh.scripts import called, exports, start_of, tag_of, word
from manyhands.sandboxes.settings import SandboxSettings

_WORLD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_SNAPSHOT = re.compile(r"snapshot-[0-9a-f]{32}")
_SECONDS = 60.0
"""How long an ordinary script may take."""
_COPY_SECONDS = 600.0
"""How long copying or removing a world may take, or sending one part of an archive."""
_SIZE_SECONDS = 20
_PARTS_OF_MARK = 4
"""Of a run's mark behind the run's id, see ``processes.strays``."""
_MAX_SAID = 1 << 26
_LANGUAGE = "C.UTF-8"


def target_of(options: SandboxSettings) -> SshTarget | str:
    """The machine that the settings name, or one line on what is missing."""
    if options.ssh_host is None:
        return "needs --ssh_host"
    return SshTarget(
        options.ssh_host,
        options.ssh_user,
        options.ssh_port,
        None if options.ssh_key is None else Path(options.ssh_key),
        None if options.ssh_config is None else Path(options.ssh_config),
        options.ssh_dir.removeprefix("~/"),
    )


def ssh_driver(name: str, options: SandboxSettings) -> SshDriver:
    """The driver of a run's settings."""
    return SshDriver(target_of(options))


class SshDriver:
    """Keeps worlds on another machine. A world ends with the connection with which it was made or started."""

    def __init__(self, target: SshTarget | str) -> None:
        """``target``: or one line on why there is none."""
        self._target = target
        self._machine: Machine | None = None
        self._connections: Connections | None = None
        self._connecting = asyncio.Lock()

    @property
    def kind(self) -> str:
        return "ssh"

    @property
    def ends_with_owner(self) -> bool:
        return True

    def unavailable(self) -> str | None:
        """Logs in, once a process."""
        if isinstance(self._target, str):
            return self._target
        machine = found(self._target)
        return machine if isinstance(machine, str) else None

    async def identity(self) -> str:
        _, output, _ = await self._run(called(scripts.PREPARE, (await self._known()).folder))
        machine = machine_of(b"\n.\n" + output)
        if isinstance(machine, str):
            raise ItemError(Cause.SANDBOX_LOST, f"ssh: {machine}")
        return machine.id

    async def unenforced(self) -> tuple[str, ...]:
        return ("memory", "processes", "network", "network_allow", "cpus")

    async def create(self, spec: WorldSpec) -> World:
        machine = await self._known()
        _check(spec, machine)
        name = _name(spec)
        workspace = posixpath.join(machine.folder, "files", name, "workspace")
        inside, outside = _directory(spec.directory)
        directory = outside or posixpath.normpath(posixpath.join(workspace, inside))
        tag = tag_of(machine.folder, name)
        with _refusing():
            variables = {**_variables(spec, workspace), scripts.WORLD: name}
            begins = start_of(variables, spec.limits, directory, tag)
        connection = await (await self._connected()).keeper()
        words = (spec.name, json.dumps(dict(spec.labels)), begins, spec.image or "", inside, outside)
        script = called(scripts.CREATE, *words, connection.token, str(tag), name, folder=_worlds(machine))
        accepted = (scripts.EXISTS, scripts.NO_FOLDER, scripts.MISSING)
        code, _, _ = await self._run(script, seconds=_COPY_SECONDS, accepted=accepted)
        if code == scripts.EXISTS:
            raise ItemError(Cause.SANDBOX_LOST, f"ssh: the world {spec.name} exists already")
        if code == scripts.NO_FOLDER:
            raise ItemError(Cause.INVALID_INPUT, f"cwd {spec.directory!r} is no folder on {self._host}")
        if code == scripts.MISSING:
            raise ItemError(Cause.SANDBOX_LOST, f"ssh: the snapshot {spec.image} is gone")
        return World(spec.name, workspace, directory, workspace, alone=False)

    async def start(self, world: str) -> None:
        connection = await (await self._connected()).keeper()
        script = called(scripts.START, _checked(world), connection.token, folder=_worlds(await self._known()))
        await self._in_world(script, world)

    async def stop(self, world: str) -> None:
        await self._run(called(scripts.STOP, _checked(world), folder=_worlds(await self._known())))

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
    ) -> ExecStream:
        machine = await self._known()
        _check_user(user, machine)
        with _refusing():
            lines = [
                f"[ -f {word(_checked(world))}/start ] || exit {scripts.GONE}",
                f". ./{word(world)}/start",
                *exports(environment),
                *(
                    []
                    if directory is None
                    else [f"cd -- {word(directory)} || exit {scripts.NO_FOLDER}", "unset OLDPWD"]
                ),
                "begun",
                " ".join(map(word, command)),
                "exit $?",
            ]
        connections = await self._connected()
        try:
            return await connections.start(called("\n".join(lines), folder=_worlds(machine)), output, errors)
        except NotBegun as error:
            if error.code == scripts.NO_FOLDER:
                raise ItemError(Cause.INVALID_INPUT, f"there is no folder {directory or ''} in the sandbox") from None
            raise self._lost(world, error.code, error.noise) from None

    async def put(self, world: str, archive: BinaryIO, path: str) -> None:
        """Raises FileNotFoundError if there is no such folder."""
        machine = await self._known()
        folder = posixpath.join(_worlds(machine), _checked(world), "workspace", path)
        code, _, errors = await self._run(
            called(scripts.PUT, folder), archive, seconds=_COPY_SECONDS, accepted=(scripts.NO_FOLDER, 1, 2)
        )
        if code == scripts.NO_FOLDER:
            raise FileNotFoundError(f"there is no folder {path}")
        if code:
            raise ItemError(Cause.SANDBOX_LOST, f"ssh: can't unpack an archive in {path}: {complaint(errors)}")

    async def get(self, world: str, path: str, archive: BinaryIO, *, max_bytes: int) -> None:
        machine = await self._known()
        whole = posixpath.normpath(posixpath.join(_worlds(machine), _checked(world), "workspace", path))
        folder, name = posixpath.split(whole)
        size = 0

        def keep(data: bytes) -> None:
            nonlocal size
            size += len(data)
            if size <= max_bytes:
                archive.write(data)

        code, _, errors = await self._run(
            called(scripts.GET, folder, name or "."),
            seconds=_COPY_SECONDS,
            accepted=(scripts.MISSING, 2),
            output=keep,
            enough=lambda: size > max_bytes,
        )
        if size > max_bytes:
            raise ValueError(f"{path} has more than {max_bytes} bytes")
        if code == scripts.MISSING:
            raise FileNotFoundError(f"there is no {path}")
        if code:
            raise ItemError(Cause.SANDBOX_LOST, f"ssh: can't read {path}: {complaint(errors)}")

    async def snapshot(self, world: str, labels: Mapping[str, str]) -> str:
        snapshot = f"snapshot-{secrets.token_hex(16)}"
        words = _checked(world), snapshot, json.dumps(dict(labels))
        script = called(scripts.SNAPSHOT, *words, folder=_worlds(await self._known()))
        await self._in_world(script, world, seconds=_COPY_SECONDS)
        return snapshot

    async def size(self, world: str) -> int | None:
        script = called(scripts.SIZE, _checked(world), str(_SIZE_SECONDS), folder=_worlds(await self._known()))
        code, output, _ = await self._run(script, accepted=(scripts.GONE, 1, 124))
        sizes = [int(line.split()[0]) << 10 for line in output.splitlines() if line[:1].isdigit()]
        return sum(sizes) if len(sizes) == 2 and code == 0 else None

    async def delete(self, world: str) -> None:
        script = called(scripts.DELETE, _checked(world), folder=_worlds(await self._known()))
        await self._run(script, seconds=_COPY_SECONDS)

    async def delete_snapshot(self, snapshot: str) -> None:
        if _SNAPSHOT.fullmatch(snapshot):
            script = called(scripts.DELETE_SNAPSHOT, snapshot, folder=_worlds(await self._known()))
            await self._run(script, seconds=_COPY_SECONDS)

    async def listed(self, labels: Mapping[str, str]) -> list[Listed]:
        script = called(scripts.LIST, str(_SIZE_SECONDS), folder=_worlds(await self._known()))
        _, output, _ = await self._run(script)
        entries, _, sizes = output.decode(errors="surrogateescape").partition("\n\n")
        kib = {path: int(size) << 10 for size, path in _pairs(sizes) if size.isdecimal()}
        found = (_entry(line, kib) for line in entries.splitlines())
        return [each for each in found if each is not None and has_labels(each.labels, labels)]

    async def close(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            await to_the_end(connections.close())

    @property
    def _host(self) -> str:
        return self._target if isinstance(self._target, str) else self._target.host

    async def _known(self) -> Machine:
        if self._machine is None:
            machine = self._target if isinstance(self._target, str) else await asyncio.to_thread(found, self._target)
            if isinstance(machine, str):
                raise ItemError(Cause.SANDBOX_LOST, f"ssh: {machine}")
            self._machine = machine
        return self._machine

    async def _connected(self) -> Connections:
        machine = await self._known()
        assert isinstance(self._target, SshTarget)
        if self._connections is None:
            self._connections = Connections(self._target, machine)
        return self._connections

    async def _in_world(self, script: str, world: str, *, seconds: float = _SECONDS) -> None:
        code, _, errors = await self._run(script, seconds=seconds, accepted=(scripts.GONE,))
        if code:
            raise self._lost(world, code, errors)

    async def _run(
        self,
        script: str,
        input: BinaryIO | None = None,
        *,
        seconds: float = _SECONDS,
        accepted: Sequence[int] = (),
        output: Callable[[bytes], None] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> tuple[int, bytes, bytes]:
        """Run a script to its end: its exit code, what it wrote, and what it complained of. ``enough``: whether nothing more is wanted.
        Raises ItemError(SANDBOX_LOST) for an exit code other than 0 and those ``accepted``, and at the time limit, ``seconds`` without
        anything written or read."""
        said, complaints = _Kept(), _Kept()
        moved = asyncio.Event()

        def keep(data: bytes) -> None:
            moved.set()
            (output or said.feed)(data)

        connections = await self._connected()
        try:
            stream = await connections.start(f"begun\n{script}", keep, complaints.feed)
        except NotBegun as error:
            raise self._lost("", error.code, error.noise) from None
        try:
            code = await ended(stream, input, moved, enough=enough, seconds=seconds)
        except TimeoutError:
            waited = f"no answer of {self._host} within {seconds:.0f} seconds"
            raise ItemError(Cause.SANDBOX_LOST, f"ssh: {waited}") from None
        if code is None or (code and code not in accepted):
            raise self._lost("", code, complaints.data)
        return code, said.data, complaints.data

    def _lost(self, world: str, code: int | None, said: bytes) -> ItemError:
        if code == scripts.GONE:
            return ItemError(Cause.SANDBOX_LOST, f"ssh: the world {world} is gone from {self._host}".replace("  ", " "))
        return ItemError(Cause.SANDBOX_LOST, f"ssh: {self._host}: {complaint(said)}")


class _Kept:
    """What was written, up to a limit."""

    def __init__(self) -> None:
        self.data = b""

    def feed(self, data: bytes) -> None:
        if len(self.data) < _MAX_SAID:
            self.data += data


@contextmanager
def _refusing() -> Iterator[None]:
    """Within this, a ValueError is about a value of the item's own."""
    try:
        yield
    except ValueError as error:
        raise ItemError(Cause.INVALID_INPUT, str(error)) from error


def _check(spec: WorldSpec, machine: Machine) -> None:
    if not _WORLD.fullmatch(spec.name):
        raise ItemError(Cause.INVALID_INPUT, f"{spec.name!r} is no name for a world")
    if spec.image is not None and not _SNAPSHOT.fullmatch(spec.image):
        raise ItemError(Cause.INVALID_INPUT, "ssh has no container images")
    if spec.project is not None:
        raise ItemError(Cause.INVALID_INPUT, "a project of this machine can't be seen on another one (--sandbox ssh)")
    if spec.limits.network_allow:
        raise ItemError(Cause.INVALID_INPUT, "the network can't be restricted on another machine (--sandbox ssh)")
    _check_user(spec.user, machine)


def _check_user(user: str | None, machine: Machine) -> None:
    if user not in (None, "", machine.user, str(machine.number)):
        raise ItemError(
            Cause.INVALID_INPUT, f"user {user!r}: on {machine.user}'s account everything runs as {machine.user}"
        )


def _checked(world: str) -> str:
    if not _WORLD.fullmatch(world):
        raise ItemError(Cause.SANDBOX_LOST, f"{world!r} is no world of ssh")
    return world


def _directory(directory: str | None) -> tuple[str, str]:
    """Where commands start: a folder to be made below the workspace, and one that is to be there; one of them is empty. Raises
    ItemError(INVALID_INPUT)."""
    if not directory:
        return "", ""
    if "\0" in directory:
        raise ItemError(Cause.INVALID_INPUT, f"cwd {directory!r} is no path")
    if directory.startswith("/"):
        return "", directory
    inside = posixpath.normpath(directory)
    if inside == ".." or inside.startswith("../"):
        raise ItemError(Cause.INVALID_INPUT, f"cwd {directory!r} leads out of the workspace")
    return ("" if inside == "." else inside), ""


def _variables(spec: WorldSpec, workspace: str) -> dict[str, str]:
    basics = {"HOME": workspace, "TMPDIR": posixpath.join(posixpath.dirname(workspace), "tmp"), "LANG": _LANGUAGE}
    return {**basics, "TERM": "dumb", "SHELL": "/bin/sh", **spec.environment}


def _worlds(machine: Machine) -> str:
    return posixpath.join(machine.folder, "worlds")


def _pairs(lines: str) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (line.partition("\t") for line in lines.splitlines())]


def _entry(line: str, sizes: Mapping[str, int]) -> Listed | None:
    kind, runs, name, labels = (*line.split("\t", 3), "", "", "", "")[:4]
    try:
        said = json.loads(labels)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    labels_of = {str(key): str(value) for key, value in said.items()}
    return Listed(name, labels_of, runs == "1", kind == "snapshots", sizes.get(f"{kind}/{name}"))


def _name(spec: WorldSpec) -> str:
    """The name of a world's folder: of the attempt that it is made for, whichever process makes it, and out of which snapshot."""
    run = spec.labels.get(RUN, "").rsplit(".", _PARTS_OF_MARK)[0]
    machine = spec.labels.get(OWNER, "").partition(" ")[0]
    parts = (machine, run, spec.labels[FOLDER]) if FOLDER in spec.labels else (spec.name,)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
