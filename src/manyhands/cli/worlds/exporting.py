"""``manyhands worlds export``: the worlds of unfinished items, as files that go with the run's folder."""

from __future__ import annotations

from manyhands.cli.console import notice
from manyhands.cli.plain import add_data_dir, parser, shown_path
from manyhands.cli.worlds.engines import add_kinds
from manyhands.core.text import counted
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import find_run
from manyhands.sandboxes.lifecycle.exporting import export_worlds
from manyhands.sandboxes.lifecycle.keeping import shown_size
from manyhands.sandboxes.remote.exported.archive import EXPORTS


def run(argv: list[str]) -> int:
    """Export the worlds of unfinished items; fails if one can't be exported."""
    result = parser(
        "worlds export",
        "Write what unfinished items of a run changed in their containers into the run's folder, as worlds/ITEM-ATTEMPT.tar: files, "
        "owners, modes and links, what was removed, and the state of the shell. Where the folder is resumed at another engine (which "
        "needs the same images), these items go on from there, without a model call made again. Nobody may execute the run meanwhile; "
        "what is exported before it is continued here counts no more.",
    )
    result.add_argument("run", metavar="RUN", help="the run's folder, or its name in the data folder")
    add_data_dir(result)
    add_kinds(result, default="all that the run has")
    options = result.parse_args(argv)
    folder = find_run(options.run, options.data_dir)
    report = run_on_loop(export_worlds(folder, options.sandbox, notice))
    size = f", {shown_size(report.size)}" if report.written else ""
    print(f"{counted(report.written, 'world')} exported to {shown_path(folder / EXPORTS)}{size}")
    return 1 if report.failed else 0
