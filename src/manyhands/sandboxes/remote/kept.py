"""What is noted of a world in the folder of its attempt, so that a later process can go on in it.

In the folder::

    world.json    the world, whose it is, and its checkpoint: written aside, then renamed
    open_step     JSON {place, complete}: the last step begun, and whether the checkpoint is the world from before it
    live          there while processes run in the background: they die with their owner, and no snapshot brings them back
    state/shell   the persistent shell's last state
    copy-0, -1    one of them the checkpoint, where that is no snapshot; two in turn, as none is used before it is whole and noted

Nothing is synced: like the checkpoints of folders, this guards against the death of processes, not against that of the machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.sandboxes.commands.shell_state import ShellState
from manyhands.sandboxes.files.overlay_copy import TooLarge, copy_upper
from manyhands.sandboxes.files.removing import remove_tree
from manyhands.sandboxes.remote.driver import FOLDER, RUN, Driver, Overlaid, World, WorldSpec

_WORLD, _STEP, _LIVE = "world.json", "open_step", "live"
_SECONDS = 120.0
COPIES = ("copy-0", "copy-1")
"""Names of folders with copies of a world's changes."""


@dataclass(frozen=True, slots=True)
class KeptWorld:
    """A world as its folder tells."""

    driver: str
    """The kind of its driver."""
    identity: str
    """Of the engine, see ``Driver.identity``."""
    world: World
    name: str
    labels: dict[str, str]
    image: str | None
    """What the item asked for."""
    snapshot: str | None = None
    """The checkpoint, as the driver's; None, without a copy either: the image itself is the world before the first change."""
    copy: str | None = None
    """The checkpoint, as one of COPIES in the folder: what the world had beyond its image, or beyond ``base``."""
    shell: ShellState | None = None
    """The shell's state that belongs to the checkpoint."""
    after: str | None = None
    """The address of the last step begun before the checkpoint was taken; None before the first."""
    base: str | None = None
    """The snapshot that the world itself was made of."""

    @property
    def has_checkpoint(self) -> bool:
        return self.snapshot is not None or self.copy is not None

    def to_json(self) -> dict[str, Any]:
        shell = None if self.shell is None else [self.shell.directory, self.shell.script]
        return {**asdict(replace(self, shell=None)), "shell": shell}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> KeptWorld:
        """Raises ValueError for the name of a folder that is no copy's, and KeyError and TypeError."""
        shell = value["shell"]
        if value.get("copy") not in (None, *COPIES):
            raise ValueError(f"no copy is called {value['copy']!r}")
        return cls(
            **{**value, "world": World(**value["world"]), "shell": None if shell is None else ShellState(*shell)}
        )


@dataclass(frozen=True, slots=True)
class OpenStep:
    """What ``open_step`` says."""

    address: str
    complete: bool


def read_world(folder: Path) -> KeptWorld | None:
    """The world that belongs to an attempt's folder; None if none was made, or it can't be read."""
    try:
        return KeptWorld.from_json(json.loads((folder / _WORLD).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_of_copy(kept: KeptWorld, folder: Path) -> bool:
    """Whether a world belongs to the folder that this one was copied from, and not to this one. A folder that was moved keeps its world."""
    made_in = Path(kept.labels[FOLDER])
    return made_in != folder.resolve() and made_in.exists()


async def discard_world(folder: Path, driver: Driver) -> None:
    """Remove the world that belongs to an attempt's folder, whatever state it is in, with its snapshots. Does nothing if there is none.
    The folder stays. Raises ItemError(SANDBOX_LOST) if the engine does not answer."""
    kept = await asyncio.to_thread(read_world, folder)
    if kept is None or kept.driver != driver.kind:
        return
    try:
        async with asyncio.timeout(_SECONDS):
            if not is_of_copy(kept, folder):
                if kept.identity == await driver.identity():  # else its id may be that of another world
                    await driver.delete(kept.world.id)
                await _discard_listed(kept, driver, folder)
    except TimeoutError as error:
        raise ItemError(Cause.SANDBOX_LOST, f"{driver.kind}: a world could not be removed in time") from error
    (folder / _WORLD).unlink(missing_ok=True)
    await asyncio.to_thread(_remove_copies, folder)


def _remove_copies(folder: Path) -> None:
    for name in COPIES:
        with suppress(OSError):  # it goes with the folder
            remove_tree(folder / name)


async def _discard_listed(kept: KeptWorld, driver: Driver, folder: Path) -> None:
    """Remove what has its labels: also after a restart of the machine, and what later sessions made of it, whose mark of the run is another
    one, and whose folder, if that was moved."""
    for place in dict.fromkeys((kept.labels[FOLDER], str(folder.resolve()))):
        found = await driver.listed({FOLDER: place})
        own = [each for each in found if _run_id(each.labels) == _run_id(kept.labels)]
        for each in sorted(own, key=lambda each: each.snapshot):  # a world goes before the snapshot that it is made of
            await (driver.delete_snapshot if each.snapshot else driver.delete)(each.id)


def _run_id(labels: Mapping[str, str]) -> str:
    return labels.get(RUN, "").partition(".")[0]


# --- The checkpoint: what a world was before its last step began. Where the driver shows what a world has beyond its image, that is a copy,
# which costs a fraction of a snapshot at the driver.


async def take_checkpoint(
    driver: Driver, kept: KeptWorld, folder: Path, labels: Mapping[str, str], *, max_bytes: int
) -> KeptWorld:
    """The world with a further checkpoint; the former one stays. ``folder``: of its attempt; ``labels``: of a snapshot. Raises ItemError,
    also for files of more than ``max_bytes``."""
    upper = await driver.upper(kept.world.id) if isinstance(driver, Overlaid) else None
    if upper is not None:
        name = next(name for name in COPIES if name != kept.copy)
        try:
            await asyncio.to_thread(_copy, upper, folder / name, max_bytes)
            return replace(kept, snapshot=None, copy=name)
        except TooLarge as error:
            raise ItemError(Cause.SANDBOX_LIMIT, f"no checkpoint of {max_bytes:,} bytes and more") from error
        except OSError:  # a file system that can't hold it, or more entries than are worth copying
            pass
    return replace(kept, snapshot=await driver.snapshot(kept.world.id, labels), copy=None)


def checkpoint_spec(kept: KeptWorld, spec: WorldSpec, folder: Path) -> WorldSpec:
    """How a world like the checkpoint is made. ``spec``: how one of the bare image is."""
    if kept.copy is not None:
        return replace(spec, image=kept.base or spec.image, changes=folder / kept.copy)
    return replace(spec, image=kept.snapshot or spec.image)


async def drop_checkpoint(driver: Driver, kept: KeptWorld, folder: Path, *, copies: bool) -> None:
    """Remove a checkpoint that is not the world's any more. ``copies``: all of them, too, of which the next one is else made. What the
    driver can't remove now is removed with the item."""
    if copies:
        await asyncio.to_thread(_remove_copies, folder)
    if kept.snapshot not in (None, kept.base):
        with suppress(ItemError):
            await driver.delete_snapshot(kept.snapshot)


def _copy(upper: Path, target: Path, max_bytes: int) -> None:
    try:
        copy_upper(upper, target, max_bytes=max_bytes)
    except OSError:
        remove_tree(target)
        raise


class Notes:
    """The notes in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.world = read_world(folder)
        self._is_live: bool | None = None

    @property
    def step(self) -> OpenStep | None:
        """The step begun last; None if there is none."""
        try:
            value = json.loads((self._folder / _STEP).read_bytes())
            return OpenStep(str(value["place"]), bool(value["complete"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def begun(self) -> bool:
        """Whether any step was begun, also if its note can't be read."""
        return (self._folder / _STEP).exists()

    @property
    def live(self) -> bool:
        """Whether processes ran in the background when it was last noted."""
        if self._is_live is None:
            self._is_live = (self._folder / _LIVE).exists()
        return self._is_live

    def note_world(self, world: KeptWorld | None) -> None:
        """Raises ItemError(SANDBOX_LOST)."""
        if world is None:
            with suppress(OSError):
                (self._folder / _WORLD).unlink(missing_ok=True)
        else:
            self._write(_WORLD, world.to_json())
        self.world = world  # only now: the copy that the disk names is not to be written over

    def note_step(self, step: OpenStep) -> None:
        """Raises ItemError(SANDBOX_LOST)."""
        self._write(_STEP, {"place": step.address, "complete": step.complete})

    def note_live(self, live: bool) -> None:
        """Raises ItemError(SANDBOX_LOST)."""
        if live == self._is_live:
            return
        try:
            if live:
                (self._folder / _LIVE).touch()
            else:
                (self._folder / _LIVE).unlink(missing_ok=True)
        except OSError as error:
            raise _unwritten(error) from error
        self._is_live = live

    def forget(self) -> None:
        """The world is gone: whatever was begun in it can't go on."""
        self.note_world(None)
        with suppress(OSError):
            (self._folder / _STEP).unlink(missing_ok=True)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        aside = self._folder / f".{name}.new"
        try:
            aside.write_bytes(json.dumps(value).encode())
            aside.replace(self._folder / name)
        except OSError as error:
            raise _unwritten(error) from error


def _unwritten(error: OSError) -> ItemError:
    return ItemError(Cause.SANDBOX_LOST, f"can't keep what is known of the sandbox: {error.strerror}")
