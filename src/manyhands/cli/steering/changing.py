"""``manyhands set``: change the concurrency or the budget of a run, pause it, go on."""

from __future__ import annotations

from manyhands.cli.console import out, resume_command
from manyhands.cli.options import help_text, make, parse
from manyhands.core.errors import RunError
from manyhands.core.settings import Path as PathText
from manyhands.core.settings import Text, setting
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.folders import find_run
from manyhands.runs.steering.changes import RunChanges, order_text
from manyhands.runs.steering.client import give_order
from manyhands.runs.steering.owner import SET

PROGRAM = "manyhands set"
DESCRIPTION = (
    "Changes a run at once, also while another process executes it. The changes are recorded: a resume goes on with them. A pause is not: "
    "the process that executes the run waits in it, without its time counting as work, until --go_on, or until it ends."
)


class SetOptions(RunChanges):
    """The options of ``manyhands set``."""

    run: Text = setting(..., "The run's folder, or its name in the data folder.", value="RUN")
    data_dir: PathText = setting("data", "Folder that holds the run folders.", value="FOLDER")


def run(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    line = parse(SetOptions, argv, PROGRAM, positional="run")
    if line.help:
        print(help_text(SetOptions, f"{PROGRAM} RUN", DESCRIPTION, positional="run"))
        return 0
    options = make(SetOptions, line.values, PROGRAM)
    changes = options.recorded_changes()
    if options.pause or options.go_on:
        changes["pause" if options.pause else "go_on"] = True
    folder = find_run(options.run, options.data_dir)
    answer, by_owner = run_on_loop(give_order(folder, SET, changes=changes))
    try:
        text = order_text(SET, answer)
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{folder}: the process that executes the run answered what this version can't read") from None
    out().print_line(f"{folder.name}: {text or 'nothing to change'}")
    if not by_owner:
        out().print_line(f"No process executes the run. A resume uses this:  {resume_command(folder)}")
    return 0
