"""What becomes of the worlds of a run that an engine or a service keeps: removed with their items, swept up after a crash, counted.

A world is found by its labels, never by an item's number alone: the run's id, and the folder of its attempt. What a copy of the run's
folder made, or a run that is not this one, is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
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
_WHERE = ("ssh_host", "ssh_user", "ssh_port", "ssh_key", "ssh_config", "ssh_dir")
"""Settings that tell one driver of a kind from another."""
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


def worlds_of(sandboxes: Iterable[tuple[SandboxSettings, Pins]], run_folder: Path) -> RunWorlds | None:
    """The worlds of a run; None if it has none that are kept elsewhere than in its folder. ``sandboxes``: the settings of its sandboxes and
    what their images mean."""
    found: dict[tuple[object, ...], tuple[str, SandboxSettings]] = {}
    for options, pins in sandboxes:
        for kind in sorted({pins.kind, options.sandbox} - {None, AUTO}, key=str):
            assert kind is not None
            if kind_named(kind).driver is not None:
                found.setdefault((kind, *(getattr(options, name) for name in _WHERE)), (kind, options))
    return RunWorlds(list(found.values()), run_folder) if found else None


@dataclass(frozen=True, slots=True)
class _Engine:
    """What keeps worlds of the run, as it is now."""

    driver: Driver
    identity: str
    durable: bool
    """Whether worlds outlive the machine (``--durable_worlds``)."""

    def trusts(self, kept: KeptWorld) -> bool:
        """Whether a world is its own, and still what it was."""
        if kept.driver != self.driver.kind:
            return False
        if self.durable and kept.has_checkpoint:  # only the start of the machine is another one
            return kept.identity.rpartition(" ")[0] == self.identity.rpartition(" ")[0]
        return kept.identity == self.identity


class RunWorlds:
    """The ``Worlds`` of a run."""

    def __init__(self, sandboxes: Sequence[tuple[str, SandboxSettings]], run_folder: Path) -> None:
        """``sandboxes``: each kind of its sandboxes that a driver makes, with where that finds its settings."""
        self._sandboxes = sandboxes
        self._folder = run_folder
        self._drivers: dict[int, Driver] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def sweep(self, needed: Callable[[Path], bool]) -> Sequence[str]:
        lines: list[str] = []
        engines: list[_Engine] = []
        silent: set[str] = set()
        for place, (kind, options) in enumerate(self._sandboxes):
            try:
                driver = self._driver(place)
                engine = _Engine(driver, await driver.identity(), options.durable_worlds)
                lines += await self._sweep(engine, needed)
                engines.append(engine)
            except (ItemError, UserError) as error:
                silent.add(kind)
                lines.append(f"what ended items left at {kind} can't be removed now: {error}")
        lines += self._elsewhere(engines, silent, needed) if engines else ()
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
        for place in range(len(self._sandboxes)):
            try:
                driver = self._driver(place)
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

    async def _sweep(self, engine: _Engine, needed: Callable[[Path], bool]) -> list[str]:
        own = await self._own(engine.driver)
        unneeded = [each for each in own if not self._is_needed(each, needed, engine)]
        if not unneeded or not (worlds := await removed(engine.driver, unneeded)):
            return []
        return [f"{counted(worlds, 'world')} of ended items or former attempts removed ({engine.driver.kind})"]

    def _is_needed(self, kept: Kept, needed: Callable[[Path], bool], engine: _Engine) -> bool:
        """Whether an unfinished attempt goes on in a world, or from a snapshot."""
        found = kept.attempt
        folder = self._folder / WORKSPACES / ("" if found is None else found[1])
        if found is None or not needed(folder):
            return False
        noted = [each for _, each in kept_in(folder) if engine.trusts(each)]
        return any(kept.listed.id in (each.world.id, each.snapshot, each.base) for each in noted)

    async def _own(self, driver: Driver) -> list[Kept]:
        """What belongs to this run: made in its folder, or in one that was moved and is not there any more."""
        run_id, here = run_id_of(self._folder), self._folder.resolve()
        own: list[Kept] = []
        for each in await kept_by(driver):
            found = each.attempt
            if each.run_id == run_id and found is not None and (found[0] == here or not found[0].exists()):
                own.append(each)
        return own

    def _elsewhere(
        self, engines: Sequence[_Engine], silent: Collection[str], needed: Callable[[Path], bool]
    ) -> list[str]:
        """What to say of unfinished attempts whose world no engine has: those that were exported go on. ``silent``: kinds of which not all
        answered, whose worlds may be there."""
        root = self._folder.resolve() / WORKSPACES
        strange = exported = 0
        for folder in root.iterdir() if root.is_dir() else ():
            if needed(folder):
                lost = [
                    path
                    for path, kept in kept_in(folder)
                    if kept.driver not in silent and not any(engine.trusts(kept) for engine in engines)
                ]
                moved = bool(lost) and all(map(_is_exported, lost))
                exported += moved
                strange += bool(lost) and not moved
        lines: list[str] = []
        if exported:
            go = "item goes on from its exported world" if exported == 1 else "items go on from their exported worlds"
            lines.append(f"{exported} unfinished {go}")
        if strange:
            have = "item has its world" if strange == 1 else "items have their worlds"
            lines.append(f"{strange} unfinished {have} in {AFRESH}, and start{'s' * (strange == 1)} afresh")
        return lines

    async def _discard(self, folder: Path, kept: KeptWorld) -> None:
        async with self._turns:
            try:
                driver = await self._driver_of(kept)
                if driver is not None:
                    await discard_world(folder, driver)
            except (ItemError, UserError):
                return

    async def _driver_of(self, kept: KeptWorld) -> Driver | None:
        """The driver that has a world: of several of its kind the one whose engine it is noted with."""
        places = [place for place, (kind, _) in enumerate(self._sandboxes) if kind == kept.driver]
        if len(places) == 1:
            return self._driver(places[0])
        for driver in map(self._driver, places):
            if await driver.identity() == kept.identity:
                return driver
        return None

    def _driver(self, place: int) -> Driver:
        if place not in self._drivers:
            kind, options = self._sandboxes[place]
            self._drivers[place] = part_of(kind, kind_named(kind).driver or "", options)
        return self._drivers[place]


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
