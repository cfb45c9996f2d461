"""``manyhands worlds export``: what unfinished items have in their workspaces, as files that go with the run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from manyhands.cli.console import notice
from manyhands.cli.plain import add_data_dir, parser, shown_path
from manyhands.cli.worlds.engines import add_kinds, asked_engines
from manyhands.cli.worlds.pruning import worlds_of_run
from manyhands.core.errors import ItemError, StorageError, UserError
from manyhands.core.text import counted
from manyhands.io.files import bytes_written_aside
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import find_run
from manyhands.sandboxes.remote.driver import Driver
from manyhands.sandboxes.remote.kept import KeptWorld
from manyhands.sandboxes.worlds.keeping import kept_in

FOLDER = "worlds"
"""Where the archives are, in the run's folder."""
MAX_BYTES = 100 << 30
"""Of one archive."""


def run(argv: list[str]) -> int:
    """Write the workspaces of unfinished items as archives; fails if one can't be written."""
    result = parser(
        "worlds export",
        "Write the workspaces of a run's worlds into its folder, as worlds/ITEM-ATTEMPT.tar. Containers don't move with the folder: where "
        "the run is resumed elsewhere, its unfinished items begin anew, and these archives are what they had.",
    )
    result.add_argument("run", metavar="RUN", help="the run's folder, or its name in the data folder")
    add_data_dir(result)
    add_kinds(result)
    options = result.parse_args(argv)
    folder = find_run(options.run, options.data_dir)
    written, failed = run_on_loop(_export(folder, options.sandbox))
    print(f"{counted(written, 'workspace')} written to {shown_path(folder / FOLDER)}")
    return 1 if failed else 0


async def _export(folder: Path, kinds: Sequence[str] | None) -> tuple[int, int]:
    """How many archives were written, and how many could not be."""
    is_of_run = worlds_of_run(folder)
    written = failed = 0
    async with asked_engines(kinds) as found:
        for driver, kept in found:
            for each in kept:
                if each.listed.snapshot or each.attempt is None or not is_of_run(each):
                    continue
                name = "-".join(each.folder.parts[len(each.attempt[0].parts) + 1 :])
                noted = [world for _, world in kept_in(folder / each.folder.relative_to(each.attempt[0]))]
                for world in noted:
                    if world.world.id == each.listed.id:
                        ended = await _write(driver, world, folder / FOLDER / f"{name}.tar")
                        written, failed = written + ended, failed + (not ended)
    return written, failed


async def _write(driver: Driver, kept: KeptWorld, target: Path) -> bool:
    try:
        with bytes_written_aside(target) as archive:
            await driver.get(kept.world.id, kept.world.workspace, archive, max_bytes=MAX_BYTES)
    except (ItemError, ValueError, FileNotFoundError, StorageError, UserError) as error:
        notice(f"{target.name} can't be written: {error}")
        return False
    return True
