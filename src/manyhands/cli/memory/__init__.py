"""``manyhands memory``: benchmarks the long-term memory of agents in one long conversation."""

from __future__ import annotations

from manyhands.cli.main import PROGRAM, CommandGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("manyhands.cli.memory.running:run", "run the benchmark of a configuration; continues an earlier run"),
    "generate": (
        "manyhands.cli.memory.configuration:generate",
        "generate the tests of a configuration, without running them",
    ),
    "describe": (
        "manyhands.cli.memory.configuration:describe",
        "describe a configuration's tests and how they are interleaved",
    ),
    "rescore": ("manyhands.cli.memory.rescore:run", "score a folder of results again"),
    "report": ("manyhands.cli.memory.report:run", "write an HTML page about one or several runs"),
}
"""Subcommands, as ``manyhands.cli.main.COMMANDS``."""
_GROUP = CommandGroup(
    f"{PROGRAM} memory",
    ("Tests what an agent remembers: many tests, interleaved in one long conversation under a virtual clock.",),
    COMMANDS,
    (f"{PROGRAM} memory COMMAND --help explains a command.",),
)


def run(argv: list[str]) -> int:
    """Run a subcommand; the exit code."""
    return _GROUP.run(argv or ["--help"])
