"""The sandbox that is made of a driver's world."""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.network.egress import Egress
from manyhands.processes.children import ExecResult, to_the_end
from manyhands.processes.output import Capture
from manyhands.sandboxes.base import RESTARTED, check_words
from manyhands.sandboxes.commands.shell import ShellNotStarted
from manyhands.sandboxes.commands.shell_state import ShellState, StateFile
from manyhands.sandboxes.images.extraction import BadArchive
from manyhands.sandboxes.project import PROJECT, variables
from manyhands.sandboxes.protocol import BackgroundProcess
from manyhands.sandboxes.remote import files, scripts
from manyhands.sandboxes.remote.background import KEPT_OUTPUT, RemoteBackground
from manyhands.sandboxes.remote.disk import WorldWatch
from manyhands.sandboxes.remote.driver import FOLDER, RUN, Driver, Enterable, World, WorldOptions, WorldSpec
from manyhands.sandboxes.remote.exported.applying import apply_export
from manyhands.sandboxes.remote.exported.archive import export_place, read_export
from manyhands.sandboxes.remote.kept import (
    KeptWorld,
    Notes,
    OpenStep,
    checkpoint_spec,
    discard_world,
    drop_checkpoint,
    is_of_copy,
    take_checkpoint,
)
from manyhands.sandboxes.remote.place import Place
from manyhands.sandboxes.remote.service import Service
from manyhands.sandboxes.remote.shell import RemoteShell, Shells

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MAX_STATE = 100_000
_SECOND_TRIES = (0.1, 0.5, None)
_KILLED = 137
_TO_END = 0.1
_PROBED_AFTER = 5.0
_PROBE = 5.0
_DEAR = 5.0
"""Seconds of a snapshot after which no further one is taken."""
_SNAPSHOT_SECONDS = 600.0
_STOP_SECONDS = 120.0


class RemoteSandbox:
    """A ``Sandbox`` in a world of a driver. ``spec``: how its world is made; ``notes``: what is known of it from an earlier process;
    ``cwd``: where commands start, as the item says; ``egress``: its way out, for a driver that is ``Enterable``."""

    def __init__(
        self,
        driver: Driver,
        spec: WorldSpec,
        notes: Notes,
        folder: Path,
        options: WorldOptions,
        cwd: str | None,
        egress: Egress | None = None,
    ) -> None:
        self._driver = driver
        self._spec = spec
        self._notes = notes
        self._options = options
        self._cwd = cwd
        self._folder = folder
        self._egress = egress
        self._state: StateFile | None = None
        self._start_directory = "/"
        self._place: Place | None = None
        self._service: Service | None = None
        self._shells: Shells | None = None
        self._background: dict[str, RemoteBackground] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._preparing = asyncio.Lock()
        self._restarts = 0
        self._running = 0
        self._answered = 0.0
        self._changed = notes.step is not None
        """Whether the world differs from its checkpoint, as far as is known."""
        self._stepped = notes.step is not None
        self._dear = False
        self._checkpointing: asyncio.Task[None] | None = None
        self._frozen = False
        self._closing: asyncio.Task[None] | None = None
        self.lost_because: str | None = None
        """Why the world could not be brought back."""
        self._disk = WorldWatch(spec.limits.disk, size=self._size, end=self._remove, busy=self._is_busy)

    @property
    def kind(self) -> str:
        return self._driver.kind

    @property
    def other_users(self) -> bool:
        return True

    @property
    def workspace(self) -> str:
        return self._world.workspace

    @property
    def project(self) -> str | None:
        return None if self._spec.project is None else PROJECT

    @property
    def open_step(self) -> str | None:
        step = self._notes.step
        return None if step is None else step.address

    @property
    def can_undo(self) -> bool:
        step = self._notes.step
        return step is not None and step.complete

    async def make(self) -> None:
        """Have a world, unless there is one to be brought back. Raises ItemError."""
        kept = self._notes.world
        if kept is not None and not self._notes.begun and not await self._is_there(kept):
            self._notes.note_world(None)
        if self._notes.world is None and not self._notes.begun:
            await self._create()
        if self._cwd is not None and self._notes.step is None:
            await self._prepare()

    async def get_ready(self) -> None:
        """Start the shells, in a sandbox that has nothing to be brought back. Raises ItemError(SANDBOX_LOST)."""
        if self._notes.step is None:
            await self._prepare()
            with suppress(ShellNotStarted):  # whoever needs it tries again, and learns why
                await self._running_shells.start()

    # Commands

    async def run(
        self,
        command: Sequence[str],
        *,
        timeout: float,
        input: bytes | None = None,
        cwd: str | None = None,
        max_output: int = 100_000,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> ExecResult:
        check_words(command)
        _check_names(environment or {})
        await self._prepare()
        service = self._running_service
        result = await self._watched(
            service.run(
                command,
                self._inside(cwd),
                timeout=timeout,
                input=input,
                max_output=max_output,
                user=user,
                environment=environment,
            )
        )
        await self._note_liveness(None if service.left_behind or user is not None else service.processes)
        self._disk.check()
        return result

    async def shell(self, command: str, *, timeout: float, max_output: int = 100_000) -> ExecResult:
        shells, shell = await self._taken_shell()
        try:
            result = await self._watched(shell.run(command, timeout=timeout, max_output=max_output))
        finally:
            await shells.give_back(shell)
        await self._note_liveness(shell.processes, jobs=shell.state.jobs)
        self._disk.check()
        return result

    async def spawn(self, command: str, *, cwd: str | None = None) -> BackgroundProcess:
        """Start a command line in the background. Without ``cwd`` it starts where the persistent shell is, with its variables."""
        check_words([command])
        await self._prepare()
        service = self._running_service
        state = self._shell_state.last
        directory = self._inside(cwd) if cwd is not None else state.directory
        script = state.script if len(os.fsencode(state.script)) <= _MAX_STATE else ""
        self._note_change()
        self._notes.note_live(True)
        number = f"p{len(self._background) + 1}"
        capture = Capture(KEPT_OUTPUT)
        words = _in_state(await self._has_bash(), directory, command)
        own = await service.spawned(words, "/", capture, {scripts.STATE_VARIABLE: script})
        process = self._background[number] = RemoteBackground(number, command, own, capture, service.end)
        self._in_background(self._after_background(process))
        self._disk.watch()
        return process

    def background(self) -> Mapping[str, BackgroundProcess]:
        return dict(self._background)

    # Files

    async def read_file(self, path: str, *, max_bytes: int = 50_000_000) -> bytes:
        await self._prepare()
        return await files.read_file(self._running_service, self._inside(path), max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._prepare()
        self._note_change()
        await files.write_file(
            self._running_service, self._inside(path), data, project=self.project, workspace=self.workspace
        )

    async def put(self, archive: BinaryIO, path: str) -> None:
        await self._prepare()
        self._note_change()
        await files.put(self._running_service, self._running_place, archive, self._inside(path))

    async def get(self, path: str, archive: BinaryIO, *, max_bytes: int) -> None:
        await self._prepare()
        await files.get(self._running_service, self._running_place, self._inside(path), archive, max_bytes)

    # Steps

    async def begin_step(self, address: str) -> None:
        self._check_open()
        checkpointing = self._checkpointing
        if checkpointing is not None:
            await asyncio.wait([checkpointing])
        if self._notes.live:
            await self._prepare()
            await self._note_liveness(None)
        if self._changed:
            await to_the_end(self._checkpoint())
        self._disk.check()
        self._notes.note_step(OpenStep(address, complete=not self._changed and not self._notes.live))
        self._stepped = self._changed = True

    async def end_step(self) -> None:
        self._check_open()
        if self._checkpointing is None or self._checkpointing.done():
            self._checkpointing = asyncio.ensure_future(self._checkpoint())

    async def reattach(self, recorded: bool, address: str) -> bool:
        self._check_open()
        self.lost_because = await self._lost_because(recorded, address)
        return self.lost_because is None

    async def end_processes(self) -> bool:
        await self._prepare()
        await self._note_liveness(None)
        left = self._notes.live
        self._frozen = False
        await self._restart()  # nothing inside can hide from the end of the world
        await self._prepare()
        self._shell_state.take(ShellState(self._start_directory))
        self._notes.note_live(False)
        return left

    async def freeze(self) -> None:
        self._check_open()
        if self._frozen or self._service is None or self._service.broken:
            return
        self._frozen = True
        if not await self._service.freeze([] if self._shells is None else self._shells.pids):
            await self._restart()

    async def thaw(self) -> None:
        frozen, self._frozen = self._frozen, False
        if frozen and self._service is not None and not self._service.broken:
            await to_the_end(self._service.thaw())

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await to_the_end(_outcome(self._closing))

    async def discard(self) -> None:
        await self.close()
        with suppress(ItemError):
            await to_the_end(discard_world(self._folder, self._driver))

    async def _close(self) -> None:
        if self._checkpointing is not None:  # a snapshot half taken would be nobody's
            await asyncio.wait([self._checkpointing])
        for task in self._tasks:
            task.cancel()
        await self._disk.close()
        with suppress(
            ItemError, TimeoutError
        ):  # what the engine does not end now, it ends with its owner, or the next sweep does
            async with asyncio.timeout(_STOP_SECONDS):
                if self._notes.world is not None:
                    await self._driver.stop(self._notes.world.world.id)
        await self._leave()
        if self._egress is not None:
            await self._egress.close()

    async def _leave(self) -> None:
        """Give up all streams of what does not run any more."""
        shells, self._shells = self._shells, None
        service, self._service = self._service, None
        for each in (shells, service):
            if each is not None:
                await each.close()

    # The world

    @property
    def _world(self) -> World:
        if self._notes.world is None:
            raise ItemError(Cause.SANDBOX_LOST, "the sandbox has no world")
        return self._notes.world.world

    @property
    def _running_service(self) -> Service:
        if self._service is None:
            raise ItemError(Cause.SANDBOX_LOST, "the sandbox does not run")
        return self._service

    @property
    def _running_shells(self) -> Shells:
        if self._shells is None:
            raise ItemError(Cause.SANDBOX_LOST, "the sandbox does not run")
        return self._shells

    @property
    def _running_place(self) -> Place:
        if self._place is None:
            raise ItemError(Cause.SANDBOX_LOST, "the sandbox does not run")
        return self._place

    async def _create(self) -> None:
        """Make the world of the checkpoint; of the image if there is none."""
        identity = await self._driver.identity()
        before = self._notes.world
        spec = self._spec if before is None else checkpoint_spec(before, self._spec, self._folder)
        world = await self._driver.create(spec)
        kept = KeptWorld(self._driver.kind, identity, world, self._spec.name, dict(self._spec.labels), self._spec.image)
        if before is not None:
            base = before.base if before.snapshot is None else before.snapshot
            checkpoint = {name: getattr(before, name) for name in ("snapshot", "copy", "shell", "after")}
            kept = replace(kept, **checkpoint, base=base)
        self._notes.note_world(kept)

    async def _prepare(self) -> None:
        """Have the world running, and its service shell: somebody outside may have ended it. Raises ItemError."""
        if not self._preparing.locked() and self._has_just_answered():  # as before most commands
            self._check_open()
            return
        async with self._preparing:
            self._check_open()
            service = self._service
            if self._has_just_answered() or (
                service is not None and not service.broken and await self._answers(service)
            ):
                return
            if self._service is not None:
                await self._end_inside()
                self._restarts += 1
            await self._start()

    def _has_just_answered(self) -> bool:
        recent = time.monotonic() - self._answered <= _PROBED_AFTER
        return recent and self._service is not None and not self._service.broken

    async def _answers(self, service: Service) -> bool:
        try:
            await service.inner(":", timeout=_PROBE)
        except ItemError:
            return False
        self._answered = time.monotonic()
        return True

    async def _end_inside(self) -> None:
        """End all that may run in the world, for a fresh start of it."""
        await self._leave()
        await self._driver.stop(self._world.id)

    async def _restart(self) -> None:
        async with self._preparing:
            await self._end_inside()
            self._restarts += 1

    async def _start(self) -> None:
        await self._driver.start(self._world.id)
        world = self._world
        if self._egress is not None and isinstance(self._driver, Enterable):
            await self._egress.open(await self._driver.process(world.id))
        place = Place(self._driver, world, self._spec.limits, variables(self.project, world.workspace))
        service = Service(place)
        await service.start()
        self._place, self._service = place, service
        self._answered = time.monotonic()
        await self._find_start(place, service)
        self._check_open()

    async def _find_start(self, place: Place, service: Service) -> None:
        """Make, or look for, the directory where commands start, and have shells start there."""
        cwd, world = self._cwd, self._world
        if cwd is None:
            self._start_directory = world.directory if self.project is None else PROJECT
        else:
            self._start_directory = posixpath.normpath(posixpath.join(world.workspace, cwd))
            made = "" if posixpath.isabs(cwd) else 'mkdir -p -- "$1" && '
            code, _ = await service.inner(f'{made}cd -- "$1"', self._start_directory)
            if code != 0:
                raise ItemError(Cause.INVALID_INPUT, f"cwd {cwd!r} is no folder in the sandbox")
        if self._state is None:
            self._state = StateFile(self._folder / "state" / "shell", self._start_directory)
        self._shells = Shells(place, service, self._state, self._start_directory)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ItemError(Cause.SANDBOX_LOST, "the sandbox is closed")
        self._disk.check()

    def _inside(self, path: str | None) -> str:
        """A path as seen inside, made absolute."""
        if path is None:
            return self._start_directory
        if "\0" in path or not path:
            raise ToolError("a path can't be empty or hold a NUL character")
        return posixpath.join(self._start_directory, path)

    async def _watched(self, command: Awaitable[ExecResult]) -> ExecResult:
        """What a command of people's runs came to. One that ended because the whole world was ended meanwhile says so, and the next finds
        it started anew, with its files."""
        service = self._service
        self._note_change()
        self._running += 1
        self._disk.watch()
        try:
            result = await command
            self._answered = time.monotonic()
            if result.exit_code in (0, None) or self._closing is not None or service is None:
                return result
            if result.exit_code == _KILLED and not service.broken:
                await asyncio.sleep(_TO_END)  # what is ended with the world ends a little before it
                if not service.broken and not await self._answers(service):
                    service.give_up()
            if not service.broken:
                return result
            await self._prepare()
            return replace(result, exit_code=_KILLED, output=result.output + RESTARTED)
        finally:
            self._running -= 1

    async def _taken_shell(self) -> tuple[Shells, RemoteShell]:
        """A shell for one command, and whom to give it back to. Tries several times: something may just have ended everything, so that the
        first one can't start."""
        for pause in _SECOND_TRIES:
            await self._prepare()
            try:
                shells = self._running_shells
                return shells, await shells.take()
            except ShellNotStarted as error:
                if pause is None:
                    raise ItemError(Cause.SANDBOX_LOST, f"the shell does not start: {error}") from error
                await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    @property
    def _shell_state(self) -> StateFile:
        if self._state is None:
            raise ItemError(Cause.SANDBOX_LOST, "the sandbox does not run")
        return self._state

    async def _has_bash(self) -> bool:
        return (await self._running_service.inner("command -v bash >/dev/null"))[0] == 0

    # What is left running

    async def _after_background(self, process: RemoteBackground) -> None:
        await process.ended()
        with suppress(ItemError):  # whoever uses the world learns what is wrong with it
            await self._note_liveness(None)

    async def _note_liveness(self, processes: set[int] | None, *, jobs: bool = False) -> None:
        """Note whether anything runs that commands left behind. ``processes``: all that there are, if that is known."""
        service = self._service
        if self._closing is not None or service is None or service.broken:
            return
        if jobs or any(process.exit_code is None for process in self._background.values()):
            self._notes.note_live(True)
        elif self._running:
            return  # the last command sees to it
        elif processes is not None and self._running_place.world.alone and processes <= self._running_place.own:
            self._notes.note_live(False)
        else:
            try:
                left = bool(await service.left())
            except ItemError:  # nothing is left in it
                service.give_up()
                left = False
            self._notes.note_live(left)
        if self._notes.live:
            self._disk.watch()

    def _is_busy(self) -> bool:
        """Whether anything runs in the world, as far as is known."""
        return self._running > 0 or self._notes.live

    def _note_change(self) -> None:
        """The world is about to change. What tools do that only look is no change: once there are steps, only these count."""
        if not self._stepped:
            self._changed = True

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Checkpoints

    async def _checkpoint(self) -> None:
        """Take a snapshot, unless that would be in vain or too dear."""
        size = await self._disk.look()
        if not self._changed or not self._options.checkpoints or self._dear or self._closing is not None:
            return
        if self._notes.live or (size is not None and size > self._options.checkpoint_limit):
            return
        kept = self._notes.world
        if kept is None:
            return
        state = None if self._state is None else self._state.last
        began = time.monotonic()
        try:
            async with asyncio.timeout(_SNAPSHOT_SECONDS):
                taken = await take_checkpoint(
                    self._driver, kept, self._folder, self._spec.labels, max_bytes=self._options.checkpoint_limit
                )
        except ItemError:  # then it is not there, and the next step is only marked
            return
        except TimeoutError:  # what copies may still be at it, so that no other one is begun
            self._dear = True
            return
        self._dear = time.monotonic() - began > _DEAR
        await self._sync()  # before it takes the former one's place, and after that
        self._notes.note_world(replace(taken, shell=state, after=self.open_step))
        await self._sync()
        self._changed = False
        await drop_checkpoint(self._driver, kept, self._folder, copies=taken.copy is None)

    async def _sync(self) -> None:
        if self._options.durable:
            await asyncio.to_thread(os.sync)

    async def _lost_because(self, recorded: bool, address: str) -> str | None:
        """Bring the world back, or what was exported of it; why that can't be done, or None."""
        lost = await self._not_here(recorded, address)
        if lost is None:
            return None
        exported = await self._not_exported(recorded, address)
        return None if exported is None else lost + exported

    async def _not_here(self, recorded: bool, address: str) -> str | None:
        """Bring the world back from where it is; why that can't be done, or None."""
        kept, step = self._notes.world, self._notes.step
        if kept is None:
            return "its world is not known"
        if self._notes.live and (recorded or step is None or not step.complete):
            return "background processes ran in it"
        if step is None:
            return "its step is not known" if self._notes.begun else None
        if step.address != address:
            return "it belongs to another step"
        identity = await self._driver.identity()
        same = kept.driver == self._driver.kind and kept.identity == identity
        if not same and not (kept.driver == self._driver.kind and self._outlasts(kept, identity)):
            return f"its world is at another engine, or the machine was started anew ({kept.driver})"
        if is_of_copy(kept, Path(self._spec.labels[FOLDER])):
            return "its world belongs to the folder that this one was copied from"
        if recorded and same and await self._is_there(kept):
            await self._go_on(kept)
            return None
        if recorded and (not kept.has_checkpoint or kept.after != address):
            return "its world is gone"
        if not recorded and not step.complete:
            return "its world was too large or too busy for a checkpoint"
        await self._driver.delete(kept.world.id)
        await self._restore(kept)
        return None

    async def _not_exported(self, recorded: bool, address: str) -> str | None:
        """Make the world anew from what was exported of it; why that can't be done, as the end of a sentence (empty: nothing was exported),
        or None."""
        place = export_place(Path(self._spec.labels[FOLDER]))
        said = None if place is None else await asyncio.to_thread(read_export, place)
        if place is None or said is None:
            return ""
        run_id = self._spec.labels[RUN].partition(".")[0]
        if (said.run_id, said.name, said.step, said.recorded) != (run_id, place.name, address, recorded):
            return "; what was exported of it is not from this step"
        if said.image != self._spec.image:
            return "; what was exported of it belongs to another image"
        identity = await self._driver.identity()
        world = await self._driver.create(self._spec)
        try:
            await apply_export(self._driver, world.id, place)
            # Before a step that was cut off, the checkpoint is the world: a further crash finds it, never the bare image.
            keeps = said.layers > 0 and not recorded
            snapshot = await self._driver.snapshot(world.id, self._spec.labels) if keeps else None
        except (BadArchive, ItemError, OSError, TimeoutError) as error:
            await to_the_end(self._driver.delete(world.id))
            return (
                f"; what was exported of it can't be used: it {error}"
                if isinstance(error, BadArchive)
                else (f"; what was exported of it can't be used: {error}")
            )
        except BaseException:
            await to_the_end(self._driver.delete(world.id))
            raise
        kept = KeptWorld(self._driver.kind, identity, world, self._spec.name, dict(self._spec.labels), self._spec.image)
        self._notes.note_world(replace(kept, snapshot=snapshot, shell=None if recorded else said.shell))
        self._changed = recorded
        await self._prepare()
        self._shell_state.take(said.shell or ShellState(self._start_directory))
        return None

    def _outlasts(self, kept: KeptWorld, identity: str) -> bool:
        """Whether its checkpoint can be trusted although the machine was started anew: identities end with the start."""
        engine = kept.identity.rpartition(" ")[0]
        return self._options.durable and bool(engine) and engine == identity.rpartition(" ")[0] and kept.has_checkpoint

    async def _go_on(self, kept: KeptWorld) -> None:
        """Start the same world, in which nothing is to run any more."""
        if not self._driver.ends_with_owner:
            await self._driver.stop(kept.world.id)
        await self._prepare()

    async def _is_there(self, kept: KeptWorld) -> bool:
        """Whether the engine has that very world."""
        if kept.driver != self._driver.kind or kept.identity != await self._driver.identity():
            return False
        if is_of_copy(kept, Path(self._spec.labels[FOLDER])):
            return False
        found = await self._driver.listed({FOLDER: kept.labels[FOLDER]})
        return any(each.id == kept.world.id for each in found)

    async def _restore(self, kept: KeptWorld) -> None:
        """Make the world anew as it was at the checkpoint."""
        await self._create()
        self._changed = False
        self._notes.note_live(False)
        await self._prepare()
        self._shell_state.take(kept.shell or ShellState(self._start_directory))

    # Space

    async def _size(self) -> int | None:
        return await self._driver.size(self._world.id)

    async def _remove(self) -> None:
        """End the world, and free its space at once."""
        kept = self._notes.world
        self._notes.forget()
        if kept is None:
            return
        with suppress(ItemError):
            await self._driver.delete(kept.world.id)
            await drop_checkpoint(self._driver, replace(kept, base=None), self._folder, copies=True)
            if kept.base not in (None, kept.snapshot):
                await self._driver.delete_snapshot(kept.base)


async def _outcome(task: asyncio.Task[None]) -> None:
    await task


def _check_names(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if _NAME.match(name) is None or "\0" in value:
            raise ItemError(Cause.INVALID_INPUT, f"environment: {name!r} can't be set")


def _in_state(bash: bool, directory: str, command: str) -> list[str]:
    if bash:
        return ["bash", "--noprofile", "--norc", "-c", scripts.IN_BASH_STATE, "bash", directory, command]
    return ["/bin/sh", "-c", scripts.IN_SH_STATE, "sh", directory, command]
