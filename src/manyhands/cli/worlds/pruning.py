"""``manyhands worlds prune``: removes worlds that nobody goes on with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from manyhands.cli.plain import add_data_dir, parser
from manyhands.cli.worlds.engines import add_kinds, asked_engines
from manyhands.core.errors import ItemError, RunError, UserError
from manyhands.core.text import counted
from manyhands.engine.journal.lock import is_owned
from manyhands.engine.journal.reader import run_id_of
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import find_run
from manyhands.sandboxes.lifecycle.keeping import Kept, removed


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
    count = run_on_loop(_prune(unneeded, options.sandbox, asks=not options.yes))
    whose = "of runs whose folders are gone" if options.run is None else f"of {options.run}"
    print(f"{counted(count, 'world')} {whose} removed" if count else f"no world {whose} was removed")
    return 0


async def _prune(unneeded: Callable[[Kept], bool], kinds: Sequence[str] | None, *, asks: bool) -> int:
    count = 0
    async with asked_engines(kinds) as found:
        for driver, kept in found:
            chosen = [each for each in kept if unneeded(each)]
            if not chosen or (asks and not _agreed(driver.kind, chosen)):
                continue
            try:
                count += await removed(driver, chosen)
            except ItemError as error:
                raise UserError(f"--sandbox {driver.kind}: {error.message}") from error
    return count


def _agreed(kind: str, chosen: Sequence[Kept]) -> bool:
    worlds = [each for each in chosen if not each.listed.snapshot]
    runs = sorted({str(each.attempt[0]) if each.attempt else each.run_id for each in chosen})
    text = (
        f"remove {counted(len(worlds), 'world')} of {', '.join(runs[:5])}{', …' if len(runs) > 5 else ''} from {kind}?"
    )
    if not sys.stdin.isatty():
        raise UserError(f"{text} Add --yes")
    return input(f"{text} [y/N] ").strip().lower() in ("y", "yes")


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
