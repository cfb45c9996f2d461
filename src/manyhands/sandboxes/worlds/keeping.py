"""What becomes of the worlds of a run that an engine or a service keeps: removed with their items, swept up after a crash, counted.

A world is found by its labels, never by an item's number alone: the run's id, and the folder of its attempt. What a copy of the run's
folder made, or a run that is not this one, is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.text import counted
from manyhands.engine.journal.reader import run_id_of
from manyhands.engine.workspaces import WORKSPACES
from manyhands.sandboxes.images.pins import Pins
from manyhands.sandboxes.kinds import AUTO, kind_named, part_of
from manyhands.sandboxes.remote.driver import FOLDER, RUN, Driver, Listed
from manyhands.sandboxes.remote.exported.archive import export_place, read_export, remove_exports
from manyhands.sandboxes.remote.kept import KeptWorld, Notes, discard_world, read_world
from manyhands.sandboxes.settings import SandboxSettings

AT_ONCE = 4
"""Worlds that are removed at the same time."""
PARTS = "stage-*"
"""Folders within that of an attempt that have a world of their own: those of the stages of a job's row."""
SECONDS = 60.0
"""For the list of an engine's worlds."""
AFRESH = "another engine, or were left behind by a restart of the machine"


@dataclass(frozen=True, slots=True)
class Kept:
    """A world, or the snapshot of one, with what its labels say."""

    listed: Listed
    run_id: str
    folder: Path
    """Of its attempt, or of a part of that; as it was when the world was made."""

    @property
    def attempt(self) -> tuple[Path, str] | None:
        """The folder of its run and the name of that of its attempt, ``<item>-<attempt>``; None if it belongs to no run."""
        parts = self.folder.parts
        if WORKSPACES not in parts[:-1]:
            return None
        place = len(parts) - 1 - parts[::-1].index(WORKSPACES)
        return Path(*parts[:place]), parts[place + 1]


async def kept_by(driver: Driver) -> list[Kept]:
    """All worlds and snapshots of ours at a driver. Raises ItemError if it does not answer."""
    try:
        async with asyncio.timeout(SECONDS):
            found = await driver.listed({RUN: ""})
    except TimeoutError:
        raise _silent(driver) from None
    return [
        Kept(each, each.labels[RUN].partition(".")[0], Path(each.labels[FOLDER]))
        for each in found
        if FOLDER in each.labels and RUN in each.labels
    ]


async def size_of(driver: Driver, listed: Listed) -> int | None:
    """The size of a world in bytes; None if it is not known, as of one that is just being removed."""
    if listed.size is not None:
        return listed.size
    try:
        return await driver.size(listed.id)
    except ItemError:
        return None


async def removed(driver: Driver, kept: Iterable[Kept]) -> int:
    """Remove worlds and snapshots; how many worlds these were. Raises ItemError if the driver does not answer."""
    everything = list(kept)
    turns = asyncio.Semaphore(AT_ONCE)

    async def remove(each: Kept) -> None:
        async with turns:
            await driver.delete(each.listed.id)

    worlds = [each for each in everything if not each.listed.snapshot]
    await asyncio.gather(*map(remove, worlds))
    for each in everything:  # worlds are made of snapshots, which go after them
        if each.listed.snapshot:
            await driver.delete_snapshot(each.listed.id)
    return len(worlds)


def worlds_of(options: SandboxSettings, pins: Iterable[Pins], run_folder: Path) -> RunWorlds | None:
    """The worlds of a run; None if it has none that are kept elsewhere than in its folder. ``pins``: of all its kinds of sandboxes."""
    kinds = {each.kind for each in pins if each.kind is not None}
    if options.sandbox != AUTO:
        kinds.add(options.sandbox)
    driven = {name for name in kinds if kind_named(name).driver is not None}
    return RunWorlds(options, sorted(driven), run_folder) if driven else None


class RunWorlds:
    """The ``Worlds`` of a run."""

    def __init__(self, options: SandboxSettings, kinds: Sequence[str], run_folder: Path) -> None:
        """``kinds``: those of its sandboxes that a driver makes."""
        self._options = options
        self._kinds = kinds
        self._folder = run_folder
        self._drivers: dict[str, Driver] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def sweep(self, needed: Callable[[Path], bool]) -> Sequence[str]:
        lines: list[str] = []
        for kind in self._kinds:
            try:
                lines += await self._sweep(self._driver(kind), needed)
            except (ItemError, UserError) as error:
                lines.append(f"what ended items left at {kind} can't be removed now: {error}")
        root = self._folder / WORKSPACES
        remove_exports(self._folder, lambda name: not needed(root / name))
        return lines

    async def discard(self, folders: Sequence[Path]) -> None:
        """What can't be removed now is found by its labels when the run is next opened."""
        found = [(folder, kept) for each in folders for folder, kept in kept_in(each)]
        await asyncio.gather(*(self._discard(folder, kept) for folder, kept in found))
        names = {folder.name for folder in folders}
        await asyncio.to_thread(remove_exports, self._folder, names.__contains__)

    async def kept(self) -> str | None:
        worlds: list[Listed] = []
        size = 0
        for kind in self._kinds:
            try:
                driver = self._driver(kind)
                own = [each.listed for each in await self._own(driver) if not each.listed.snapshot]
                sizes = [await size_of(driver, each) for each in own]
            except (ItemError, UserError):
                continue
            worlds += own
            size += sum(each or 0 for each in sizes)
        if not worlds:
            return None
        return f"{counted(len(worlds), 'world')} kept, {shown_size(size)}"

    async def close(self) -> None:
        drivers, self._drivers = self._drivers, {}
        for driver in drivers.values():
            await driver.close()

    async def _sweep(self, driver: Driver, needed: Callable[[Path], bool]) -> list[str]:
        identity = await driver.identity()
        own = await self._own(driver)
        unneeded = [each for each in own if not self._is_needed(each, needed, driver, identity)]
        lines: list[str] = []
        if unneeded and (worlds := await removed(driver, unneeded)):
            lines.append(f"{counted(worlds, 'world')} of ended items or former attempts removed ({driver.kind})")
        strange, exported = self._elsewhere(driver, needed, identity)
        if exported:
            go = "item goes on from its exported world" if exported == 1 else "items go on from their exported worlds"
            lines.append(f"{exported} unfinished {go}")
        if strange:
            have = "item has its world" if strange == 1 else "items have their worlds"
            lines.append(f"{strange} unfinished {have} in {AFRESH}, and start{'s' * (strange == 1)} afresh")
        return lines

    def _is_needed(self, kept: Kept, needed: Callable[[Path], bool], driver: Driver, identity: str) -> bool:
        """Whether an unfinished attempt goes on in a world, or from a snapshot."""
        found = kept.attempt
        folder = self._folder / WORKSPACES / ("" if found is None else found[1])
        if found is None or not needed(folder):
            return False
        noted = [each for _, each in kept_in(folder) if not self._is_strange(each, driver, identity)]
        return any(kept.listed.id in (each.world.id, each.snapshot) for each in noted)

    async def _own(self, driver: Driver) -> list[Kept]:
        """What belongs to this run: made in its folder, or in one that was moved and is not there any more."""
        run_id, here = run_id_of(self._folder), self._folder.resolve()
        own: list[Kept] = []
        for each in await kept_by(driver):
            found = each.attempt
            if each.run_id == run_id and found is not None and (found[0] == here or not found[0].exists()):
                own.append(each)
        return own

    def _elsewhere(self, driver: Driver, needed: Callable[[Path], bool], identity: str) -> tuple[int, int]:
        """How many unfinished attempts had a world that can't be trusted, or reached; and how many more of these there are that were
        exported."""
        root = self._folder.resolve() / WORKSPACES
        if not root.is_dir():
            return 0, 0
        strange = exported = 0
        for folder in root.iterdir():
            if needed(folder):
                lost = [path for path, kept in kept_in(folder) if self._is_strange(kept, driver, identity)]
                moved = bool(lost) and all(map(_is_exported, lost))
                exported += moved
                strange += bool(lost) and not moved
        return strange, exported

    def _is_strange(self, kept: KeptWorld, driver: Driver, identity: str) -> bool:
        if kept.driver != driver.kind:
            return True
        if self._options.durable_worlds and kept.snapshot is not None:  # only the start of the machine is another one
            return kept.identity.rpartition(" ")[0] != identity.rpartition(" ")[0]
        return kept.identity != identity

    async def _discard(self, folder: Path, kept: KeptWorld) -> None:
        async with self._turns:
            try:
                await discard_world(folder, self._driver(kept.driver))
            except (ItemError, UserError):
                return

    def _driver(self, kind: str) -> Driver:
        if kind not in self._drivers:
            factory = kind_named(kind).driver
            if factory is None:
                raise UserError(f"--sandbox {kind} keeps no worlds")
            self._drivers[kind] = part_of(kind, factory, self._options)
        return self._drivers[kind]


def kept_in(folder: Path) -> Iterator[tuple[Path, KeptWorld]]:
    """The worlds that belong to the folder of an attempt, as this program itself noted them. What agents write is further below."""
    for each in (folder, *sorted(folder.glob(PARTS))):
        kept = read_world(each)
        if kept is not None:
            yield each, kept


def _is_exported(folder: Path) -> bool:
    """Whether the world that belongs to a folder was exported after the step begun last."""
    place, step = export_place(folder), Notes(folder).step
    said = None if place is None or step is None else read_export(place)
    return said is not None and step is not None and said.step == step.address


def shown_size(size: int) -> str:
    """Bytes for people: ``340 MB``."""
    if size < 1e6:
        return f"{size / 1e3:.0f} kB"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _silent(driver: Driver) -> ItemError:
    return ItemError(Cause.SANDBOX_LOST, f"{driver.kind}: no answer within {SECONDS:g} s")


@asynccontextmanager
async def opened_driver(kind: str, options: SandboxSettings) -> AsyncIterator[Driver]:
    """The driver of a kind. Raises UserError if there is none, or it can't be used here."""
    factory = kind_named(kind).driver
    if factory is None:
        raise UserError(f"--sandbox {kind} keeps no worlds")
    driver: Driver = part_of(kind, factory, options)
    try:
        if (problem := driver.unavailable()) is not None:
            raise UserError(f"--sandbox {kind}: {problem}")
        yield driver
    finally:
        await driver.close()
