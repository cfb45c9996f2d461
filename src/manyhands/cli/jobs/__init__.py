"""``manyhands jobs``: an agent for each row of a table.

One module a subcommand, imported when it is called: some must answer at once.
"""

from __future__ import annotations

from collections.abc import Callable

from manyhands.cli.main import PROGRAM, imported, unknown_command

JOBS = f"{PROGRAM} jobs"
COMMANDS: dict[str, tuple[str, str]] = {
    "spawn": ("manyhands.cli.jobs.spawn", "make a job from a table and an instruction, and start it"),
    "run": ("manyhands.cli.jobs.rerun", "go on with a job that was interrupted, stopped or cancelled"),
    "status": ("manyhands.cli.jobs.status", "where a job stands, at once or until it ends"),
    "wait": ("manyhands.cli.jobs.follow", "wait for a job's end"),
    "export": ("manyhands.cli.jobs.export", "write the table with the results, at any time"),
    "cancel": ("manyhands.cli.jobs.cancel", "end a job; rows that were not begun stay as they are"),
    "retry": ("manyhands.cli.jobs.retry", "put failed rows back and go on"),
    "list": ("manyhands.cli.jobs.list", "list the jobs of a data folder"),
    "show": ("manyhands.cli.jobs.show", "look at one row: prompt, attempts, failures, steps, report"),
}
"""Subcommands by name: the module whose ``run(argv) -> int`` performs it, and what it does."""


def run(argv: list[str]) -> int:
    """Perform a subcommand; the exit code."""
    command, *rest = argv or [""]
    if command in ("-h", "--help", "help"):
        if not rest or rest[0] not in COMMANDS:
            print(help_text())
            return 0
        command, rest = rest[0], ["--help"]
    if command not in COMMANDS:
        if not command:
            print(help_text())
        raise unknown_command(command, COMMANDS, JOBS)
    perform: Callable[[list[str]], int] = imported(COMMANDS[command][0]).run
    return perform(rest)


def help_text() -> str:
    """What ``manyhands jobs --help`` prints."""
    width = max(map(len, COMMANDS)) + 2
    return "\n".join(
        [
            f"{JOBS} COMMAND [OPTIONS]",
            "",
            "Gives each row of a table (CSV, JSONL, Parquet) to an agent, and adds what the agents report to the table.",
            "A job is performed by a process of its own, which outlives this terminal; whatever stops it, it can go on.",
            "",
            "Commands:",
            *(f"  {name:<{width}}{description}" for name, (_, description) in COMMANDS.items()),
            "",
            "JOB is a job's id, the beginning of it (8 characters or more), its name, or its folder.",
            "",
            f'For example:  {JOBS} spawn rows.csv --instruction "Read {{path}} and score it."',
            f"{JOBS} COMMAND --help explains a command.",
        ]
    )
