"""``manyhands worlds``: what container engines and services keep of runs."""

from __future__ import annotations

from manyhands.cli.main import PROGRAM, CommandGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("manyhands.cli.worlds.listing:run", "list the worlds that engines keep, with their runs and items"),
    "prune": ("manyhands.cli.worlds.pruning:run", "remove the worlds of runs that are gone, or of one run"),
    "export": (
        "manyhands.cli.worlds.exporting:run",
        "write the workspaces of a run's unfinished items into its folder, so that they are not lost when it is moved",
    ),
}
"""Subcommands, as ``manyhands.cli.main.COMMANDS``."""
_GROUP = CommandGroup(
    f"{PROGRAM} worlds",
    ("Containers, and worlds at services, that belong to unfinished items of runs, or were to be kept.",),
    COMMANDS,
    (f"{PROGRAM} worlds COMMAND --help explains a command.",),
)


def run(argv: list[str]) -> int:
    """Run a subcommand; the exit code."""
    return _GROUP.run(argv or ["--help"])
