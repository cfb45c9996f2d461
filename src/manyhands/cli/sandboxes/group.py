"""``manyhands sandbox``: commands about the kinds of sandboxes."""

from __future__ import annotations

from manyhands.cli.main import CommandGroup

_GROUP = CommandGroup(
    "manyhands sandbox",
    ("Commands about the kinds of sandboxes that --sandbox names.",),
    {"check": ("manyhands.cli.sandboxes.check:run", "try out a kind of sandboxes: what works, and how long it takes")},
    ("manyhands sandbox COMMAND --help explains a command.",),
)


def run(argv: list[str]) -> int:
    """Run the command that is typed behind ``manyhands sandbox``."""
    return _GROUP.run(argv)
