"""What one item asks of its world, beside what the run gives all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(slots=True)  # not frozen: see Outcome
class ItemWorld:
    """The part of an item's payload that says where its agent works. It can only tighten what the run allows."""

    image: str | None = None
    """A container image as it was written; its pin is the run's."""
    cwd: str | None = None
    """Where commands start, as seen inside."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by path, written before the first turn; relative paths start at the workspace."""
    setup: str | None = None
    """A command line that is run before the first turn."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for commands."""
    user: str | None = None
    """Who runs commands, by name or number."""
    cpus: float | None = None
    """Processors."""
    memory: int | None = None
    """Bytes."""
    network: bool | Sequence[str] | None = None
    """False: no network, even if the run allows it; hosts, as ``--network_allow`` takes them: no others."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> ItemWorld:
        return cls(**(value or {}))

    def to_json(self) -> dict[str, Any]:
        """What is absent is left out."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if value is not None and value != {}}
