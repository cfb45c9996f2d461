"""What can be changed in a run while it is executed, who changed it, and how that is told."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import Flag, Settings, optional_number, optional_whole, setting
from manyhands.core.text import counted

CHANGES = "Changes"
BUDGET = ("max_cost", "max_total_tokens", "max_seconds")
"""The settings of the budget."""


class RunChanges(Settings):
    """The settings that a run heeds at once. Those that are not given stay as they are."""

    max_concurrency: Annotated[int | None, optional_whole(1, 100_000)] = setting(
        None, "Maximum items in flight; with fewer, those in flight are finished first.", group=CHANGES
    )
    max_cost: Annotated[float | None, optional_number(above=0)] = setting(
        None, "Maximum cost of the run in US dollars; None for no limit.", group=CHANGES
    )
    max_total_tokens: Annotated[int | None, optional_whole(1)] = setting(
        None, "Maximum tokens of the run; None for no limit.", group=CHANGES
    )
    max_seconds: Annotated[float | None, optional_number(above=0)] = setting(
        None, "Maximum seconds of work on the run; None for no limit.", group=CHANGES
    )
    pause: Flag = setting(False, "Begin no item, step or call; what is in flight is finished.", group=CHANGES)
    go_on: Flag = setting(False, "End a pause.", group=CHANGES)

    def recorded_changes(self) -> dict[str, Any]:
        """Those that a resume goes on with, by name. Raises UserError if there is nothing to change, or for a contradiction."""
        if self.pause and self.go_on:
            raise UserError("--pause or --go_on, not both")
        if "max_concurrency" in self.given and self.max_concurrency is None:
            raise UserError("--max_concurrency must be a whole number")
        changes = {name: getattr(self, name) for name in ("max_concurrency", *BUDGET) if name in self.given}
        if not (changes or self.pause or self.go_on):
            raise UserError(
                "nothing to change; give --max_concurrency, --max_cost, --pause … (see manyhands set --help)"
            )
        return changes


class Change(TypedDict):
    """A setting that was changed."""

    name: str
    before: Json
    now: Json


def change_text(change: Mapping[str, Any]) -> str:
    """A change as people read it: ``max_cost 2 → 5``."""
    if change["name"] in ("paused", "gone on"):
        return str(change["name"])
    before, now = ("no limit" if change[each] is None else f"{change[each]:,.16g}" for each in ("before", "now"))
    return f"{change['name']} {before}" if before == now else f"{change['name']} {before} → {now}"


def order_text(command: str, details: Mapping[str, Any]) -> str:
    """An order in one line, as it is recorded: what was changed, or how many items were executed again or cancelled."""
    if command == "set":
        return ", ".join(change_text(each) for each in details.get("changes", ()))
    text = f"{command} {counted(details.get('items', 0), 'item')}"
    return f"{text} ({details['select']})" if details.get("select") else text


def user() -> str:
    """Who gives an order, as ``user@host``."""
    from getpass import getuser

    try:
        name = getuser()
    except (KeyError, OSError):  # a user that has no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
