"""Where in a person's file something stands, for messages that name file, line and field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from manyhands.core.errors import UserError

Step = str | int
Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A field of a file. ``lines``: the line of each path that is known, counted from 1; what is not known stands where the nearest
    path above it does."""

    file: str
    path: Path = ()
    lines: Mapping[Path, int] = field(default_factory=dict, repr=False)

    def at(self, *steps: Step) -> Place:
        """A field below this one."""
        return Place(self.file, (*self.path, *steps), self.lines)

    @property
    def line(self) -> int | None:
        """None if no line is known."""
        known = (self.lines.get(self.path[:length]) for length in range(len(self.path), -1, -1))
        return next((line for line in known if line is not None), None)

    @property
    def name(self) -> str:
        """The field: ``tests[0].assert[1].weight``."""
        text = ""
        for step in self.path:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        return text

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        return f"{self.file}{line}: {self.name}" if self.path else f"{self.file}{line}"

    def says(self, message: str) -> str:
        """The message, with the place before it."""
        return f"{self}: {message}"

    def error(self, message: str) -> UserError:
        """The message as an error for the person."""
        return UserError(self.says(message))
