"""``manyhands tools``: the tools that agents can have here; and the commands about them."""

from __future__ import annotations

from manyhands.cli.tools import check, listing


def run(argv: list[str]) -> int:
    """Run ``manyhands tools check``, or list the tools."""
    if argv[:1] == ["check"]:
        return check.run(argv[1:])
    return listing.run(argv)
