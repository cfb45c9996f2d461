"""``manyhands memory``: an agent's long-term memory is tested in one long conversation."""

from __future__ import annotations

from collections.abc import Callable

from manyhands.cli.main import imported
from manyhands.cli.options import UsageError
from manyhands.core.settings import suggestion

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("manyhands.cli.memory.benchmark", "test agents by a configuration; continues what was begun"),
    "generate": ("manyhands.cli.memory.generate", "make the tests of a configuration, and run nothing"),
    "describe": (
        "manyhands.cli.memory.describe",
        "say what a configuration's tests are, and how they would be interleaved",
    ),
    "rescore": ("manyhands.cli.memory.rescore", "score a folder of results again"),
    "report": ("manyhands.cli.memory.report", "write a page about one run or several"),
}
"""Subcommands by name: the module whose ``run(argv) -> int`` performs it, and what it does."""


def run(argv: list[str]) -> int:
    """Perform the command line; the exit code."""
    command, *rest = argv or ["--help"]
    if command in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if command not in COMMANDS:
        raise UsageError(
            f"manyhands memory has no command {command!r}{suggestion(command, COMMANDS)} (see manyhands memory --help)"
        )
    perform: Callable[[list[str]], int] = imported(COMMANDS[command][0]).run
    return perform(rest)


def help_text() -> str:
    """What ``manyhands memory --help`` prints."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{description}" for name, (_, description) in COMMANDS.items()]
    return "\n".join(
        [
            "manyhands memory COMMAND [OPTIONS]",
            "",
            "Tests what an agent remembers: many tests, interleaved in one long conversation under a virtual clock.",
            "",
            *lines,
            "",
            "manyhands memory COMMAND --help explains each.",
        ]
    )
