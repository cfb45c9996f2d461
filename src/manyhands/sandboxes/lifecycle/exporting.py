"""Writing the worlds of a run's unfinished items into its folder, so that it can be continued at another engine."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import ItemError, StorageError, UserError
from manyhands.core.failures import Cause
from manyhands.engine.journal.lock import RunLock
from manyhands.engine.journal.reader import JournalReader, run_id_of
from manyhands.engine.workspaces import WORKSPACES
from manyhands.processes.children import to_the_end
from manyhands.runs.folders import open_reader
from manyhands.runs.progress import Notice
from manyhands.sandboxes.commands.shell_state import ShellState
from manyhands.sandboxes.lifecycle.keeping import SECONDS, kept_in, opened_driver, shown_size
from manyhands.sandboxes.remote.driver import FOLDER, Driver, Exportable, WorldSpec
from manyhands.sandboxes.remote.exported.archive import (
    Exported,
    ExportPlace,
    export_place,
    made_private,
    remove_exports,
    write_export,
)
from manyhands.sandboxes.remote.kept import KeptWorld, Notes, OpenStep, checkpoint_spec, is_of_copy
from manyhands.sandboxes.settings import SandboxSettings

MAX_BYTES = 100 << 30
"""Of one export."""
EXPORT_SECONDS = 3600.0
"""For one export."""


@dataclass(slots=True)
class ExportReport:
    """What became of the worlds of a run."""

    written: int = 0
    size: int = 0
    """Bytes of all that was written."""
    failed: int = 0


@dataclass(frozen=True, slots=True)
class BegunWorld:
    """A world in which an unfinished attempt has begun a step."""

    folder: Path
    """Of the attempt, or of a part of it."""
    place: ExportPlace
    kept: KeptWorld
    step: OpenStep
    """The last one begun."""
    recorded: bool
    """Whether the journal has that step."""
    live: bool
    """Whether processes ran in its background."""


async def export_worlds(run_folder: Path, kinds: Collection[str] | None, notice: Notice) -> ExportReport:
    """Export the worlds that unfinished items had begun to change. ``kinds``: those that are meant (None: all). What can't be exported is
    said by name. Raises RunError if a session executes the run."""
    report = ExportReport()
    with closing(open_reader(run_folder)) as reader, closing(_Owned(run_folder)):
        begun = list(_begun(run_folder, reader))
        worlds = [each for each in begun if kinds is None or each.kept.driver in kinds]
        names = {each.folder.relative_to(run_folder.resolve() / WORKSPACES).parts[0] for each in begun}
        await asyncio.to_thread(remove_exports, run_folder, lambda name: name not in names)
        async with AsyncExitStack() as stack:
            drivers: dict[str, Driver] = {}
            for number, world in enumerate(worlds, 1):
                try:
                    kind = world.kept.driver
                    if kind not in drivers:
                        opened = opened_driver(kind, SandboxSettings(sandbox=kind))
                        drivers[kind] = await stack.enter_async_context(opened)
                    async with asyncio.timeout(EXPORT_SECONDS):
                        size = await export_world(drivers[kind], world, run_id_of(run_folder))
                except (ItemError, UserError, StorageError, ValueError, OSError) as error:
                    report.failed += 1
                    said = "not done in time" if isinstance(error, TimeoutError) else error
                    notice(f"the world of {world.place.name} can't be exported, so it begins anew elsewhere: {said}")
                    with suppress(OSError):
                        world.place.path.unlink(missing_ok=True)
                    continue
                report.written += 1
                report.size += size
                notice(f"{number} of {len(worlds)}: {world.place.path.name}, {shown_size(size)}")
    return report


class _Owned:
    """The run, kept from being executed meanwhile."""

    def __init__(self, run_folder: Path) -> None:
        self._lock = RunLock(run_folder)

    def close(self) -> None:
        self._lock.release()


def _begun(run_folder: Path, reader: JournalReader) -> Iterator[BegunWorld]:
    root = run_folder.resolve() / WORKSPACES
    if not root.is_dir():
        return
    for folder in sorted(root.iterdir()):
        number, _, attempt = folder.name.partition("-")
        row = reader.item(number) if number.isdecimal() and attempt.isdecimal() else None
        if row is None or row.state.final or row.attempt != int(attempt):
            continue
        recorded = {f"{step.scope}/{step.seq}" for step in reader.steps(row.number, row.attempt)}
        for path, kept in kept_in(folder):
            notes, place = Notes(path), export_place(path)
            step = notes.step
            if step is not None and place is not None:  # what no step changed is the image, and made anew anywhere
                yield BegunWorld(path, place, kept, step, step.address in recorded, notes.live)


async def export_world(driver: Driver, world: BegunWorld, run_id: str) -> int:
    """The size of the export. Raises ItemError with what is in the way."""
    kept = world.kept
    if not isinstance(driver, Exportable):
        raise _impossible(f"worlds of {driver.kind} can't be moved")
    if is_of_copy(kept, world.folder):
        raise _impossible("it belongs to the folder that this one was copied from")
    if kept.identity != await driver.identity():
        raise _impossible("it is at another engine, or the machine was started anew")
    if world.live:
        raise _impossible("background processes ran in it")
    if not world.recorded and not world.step.complete:
        raise _impossible("a step in it was cut off, and there is no checkpoint from before that")
    spool = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=".", dir=made_private(world.place.run_folder)))
    taken: str | None = None
    try:
        snapshot, shell = kept.snapshot, kept.shell
        if world.recorded and (not kept.has_checkpoint or kept.after != world.step.address):
            shell = _last_shell(world.folder)
            snapshot = taken = await _snapshot(driver, kept)
        elif kept.copy is not None:
            snapshot = taken = await _snapshot_of_copy(driver, kept, world.folder)
        layers: list[Path] = []
        if snapshot is not None:
            layers = await driver.changes(snapshot, kept.image, spool, max_bytes=MAX_BYTES)
        exported = Exported(
            run_id,
            world.place.name,
            world.step.address,
            world.recorded,
            kept.image,
            kept.driver,
            kept.identity,
            shell,
            len(layers),
        )
        return await asyncio.to_thread(write_export, world.place, exported, layers)
    finally:
        await asyncio.to_thread(shutil.rmtree, spool, ignore_errors=True)
        if taken is not None:
            with suppress(ItemError):  # found by its labels when the run is next opened
                await driver.delete_snapshot(taken)


async def _snapshot(driver: Driver, kept: KeptWorld) -> str:
    """Of a world as it is now, after its last step."""
    async with asyncio.timeout(SECONDS):
        found = await driver.listed({FOLDER: kept.labels[FOLDER]})
    if not any(each.id == kept.world.id for each in found):
        raise _impossible("it is gone")
    await driver.stop(kept.world.id)
    return await driver.snapshot(kept.world.id, kept.labels)


async def _snapshot_of_copy(driver: Driver, kept: KeptWorld, folder: Path) -> str:
    """Of a world that is made for this alone, as it was at the checkpoint."""
    spec = WorldSpec(f"{kept.name}-{secrets.token_hex(4)}", kept.labels, kept.image)
    world = await driver.create(checkpoint_spec(kept, spec, folder))
    try:
        await driver.stop(world.id)
        return await driver.snapshot(world.id, kept.labels)
    finally:
        await to_the_end(driver.delete(world.id))


def _last_shell(folder: Path) -> ShellState | None:
    try:
        return ShellState.from_bytes((folder / "state" / "shell").read_bytes())
    except OSError:
        return None


def _impossible(why: str) -> ItemError:
    return ItemError(Cause.SANDBOX_LOST, why)
