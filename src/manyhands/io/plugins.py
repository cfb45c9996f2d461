"""What installed packages bring, by entry points: found once in a process, and loaded when it is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.redaction import describe


@cache
def plugins(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group, by name."""
    return {found.name: found for found in entry_points(group=group)}


def load_plugin(entry: EntryPoint, kind: str) -> Any:
    """What an entry point names. ``kind``: what it is, for the message. Raises UserError for whatever its own code raises."""
    try:
        return entry.load()
    except Exception as error:
        raise UserError(
            f"the {kind} plug-in {entry.name!r} ({entry.value}) can't be used: {describe(error)}"
        ) from error
