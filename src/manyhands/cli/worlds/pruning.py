"""``manyhands worlds prune``: removes worlds that nobody goes on with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.cli.plain import add_data_dir, parser, shown_path
from manyhands.cli.worlds.engines import add_kinds, asked_engines
from manyhands.core.errors import ItemError, RunError, UserError
from manyhands.core.text import counted, have
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.reader import run_id_of
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import find_run
from manyhands.sandboxes.lifecycle.keeping import Kept, removed

_NAMED = 5
"""The maximum of runs that are named."""


def run(argv: list[str]) -> int:
    """Remove worlds."""
    result = parser(
        "worlds prune",
        "Remove the worlds of runs whose folders are gone, or with RUN all worlds of that one, whose unfinished items then begin anew. "
        "Worlds of other runs are never removed.",
    )
    result.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="the run's folder, or its name in the data folder (default: runs that are gone)",
    )
    add_data_dir(result)
    add_kinds(result)
    result.add_argument("--yes", action="store_true", help="do not ask first")
    options = result.parse_args(argv)
    unneeded = _of_gone_runs if options.run is None else worlds_of_run(find_run(options.run, options.data_dir))
    done = run_on_loop(_prune(unneeded, options.sandbox, asks=not options.yes))
    if done.chosen and not done.removed:
        print("nothing was removed")
    elif not done.chosen:
        nobody = "no run whose folder is gone has" if options.run is None else f"{options.run} has no"
        kept = f"; {counted(done.kept, 'world')} of other runs {have(done.kept)} not been touched" if done.kept else ""
        print(f"nothing to remove: {nobody} worlds{kept}")
    return 0


@dataclass(slots=True)
class _Done:
    """What was found at the engines, and done."""

    kept: int = 0
    """Worlds of other runs."""
    chosen: bool = False
    """Whether there was anything to remove."""
    removed: bool = False


async def _prune(unneeded: Callable[[Kept], bool], kinds: Sequence[str] | None, *, asks: bool) -> _Done:
    done = _Done()
    async with asked_engines(kinds) as found:
        for driver, kept in found:
            chosen = [each for each in kept if unneeded(each)]
            done.kept += sum(not each.listed.snapshot for each in kept) - sum(
                not each.listed.snapshot for each in chosen
            )
            if not chosen:
                continue
            done.chosen = True
            what = _described(chosen)
            if asks and not _agreed(f"remove {what} from {driver.kind}?"):
                continue
            try:
                await removed(driver, chosen)
            except ItemError as error:
                raise UserError(f"--sandbox {driver.kind}: {error.message}") from error
            done.removed = True
            print(f"removed from {driver.kind}: {what}")
    return done


def _described(chosen: Sequence[Kept]) -> str:
    """How many worlds and snapshots of which runs."""
    snapshots = sum(each.listed.snapshot for each in chosen)
    parts = [
        counted(number, noun)
        for number, noun in ((len(chosen) - snapshots, "world"), (snapshots, "snapshot"))
        if number
    ]
    runs = sorted({shown_path(each.attempt[0]) if each.attempt else each.run_id for each in chosen})
    more = f" and {counted(len(runs) - _NAMED, 'other run')}" if len(runs) > _NAMED else ""
    return f"{' and '.join(parts)} of {', '.join(runs[:_NAMED])}{more}"


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UserError(f"{question} Nobody can be asked here; --yes answers")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def _of_gone_runs(kept: Kept) -> bool:
    return kept.attempt is not None and not kept.attempt[0].exists()


def worlds_of_run(folder: Path) -> Callable[[Kept], bool]:
    """Those that were made in a run's folder, or in one that it was moved from. Raises RunError if a process executes the run."""
    if is_owned(folder):
        raise RunError(f"{folder}: a process executes this run, and its worlds")
    run_id, here = run_id_of(folder), folder.resolve()

    def is_of_run(kept: Kept) -> bool:
        made = None if kept.attempt is None else kept.attempt[0]
        return kept.run_id == run_id and made is not None and (made == here or not made.exists())

    return is_of_run
