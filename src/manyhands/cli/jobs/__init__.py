"""``manyhands jobs``: an agent for each row of a table.

Subcommands are imported when they are called, because some must answer at once.
"""

from __future__ import annotations

from manyhands.cli.main import PROGRAM, CommandGroup

JOBS = f"{PROGRAM} jobs"
COMMANDS: dict[str, tuple[str, str]] = {
    "spawn": ("manyhands.cli.jobs.starting:spawn", "create a job from a table and an instruction, and start it"),
    "run": ("manyhands.cli.jobs.starting:run", "continue a job that was interrupted, stopped or cancelled"),
    "status": ("manyhands.cli.jobs.status:status", "show the status of a job, once or until it ends"),
    "wait": ("manyhands.cli.jobs.follow:wait", "wait until a job ends"),
    "export": ("manyhands.cli.jobs.results:export", "write the table with the results, at any time"),
    "cancel": ("manyhands.cli.jobs.follow:cancel", "end a job; rows that have not started stay pending"),
    "retry": ("manyhands.cli.jobs.starting:retry", "reset failed rows to pending and continue the job"),
    "list": ("manyhands.cli.jobs.status:list_jobs", "list the jobs of a data folder"),
    "show": ("manyhands.cli.jobs.results:show", "show one row: prompt, attempts, failures, steps, report"),
}
"""Subcommands, as ``manyhands.cli.main.COMMANDS``."""
_GROUP = CommandGroup(
    JOBS,
    (
        "Runs an agent on each row of a table (CSV, JSON Lines, Parquet, Excel), and adds the agents' reports to the table.",
        "A job runs in a background process, which outlives this terminal; a job that stops can be continued.",
    ),
    COMMANDS,
    (
        "JOB is a job's id, the beginning of it (8 characters or more), its name, or its folder.",
        "",
        f'For example:  {JOBS} spawn rows.csv --instruction "Read {{path}} and score it."',
        f"{JOBS} COMMAND --help explains a command.",
    ),
)


def run(argv: list[str]) -> int:
    """Run a subcommand; the exit code."""
    if not argv:
        print(_GROUP.help_text())
    return _GROUP.run(argv)
