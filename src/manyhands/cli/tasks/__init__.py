"""``manyhands tasks``: what concerns task folders alone."""

from __future__ import annotations

from manyhands.cli.main import PROGRAM, CommandGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("manyhands.cli.tasks.check:run", "run the tasks' own solutions, which must get the full reward"),
}
"""Subcommands, as ``manyhands.cli.main.COMMANDS``."""
_GROUP = CommandGroup(
    f"{PROGRAM} tasks",
    ("Task folders, as Harbor and Terminal-Bench 2 have them; manyhands batch and manyhands eval execute them.",),
    COMMANDS,
    (f"{PROGRAM} tasks COMMAND --help explains a command.",),
)


def run(argv: list[str]) -> int:
    """Run a subcommand; the exit code."""
    return _GROUP.run(argv or ["--help"])
