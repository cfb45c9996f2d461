"""Where in a person's file something stands, for messages that name file, line and field; and what reading it has found wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json

Step = str | int
Path = tuple[Step, ...]
MAX_DEPTH = 100
"""Levels of nesting in a file."""
MAX_SHOWN = 50
"""Problems that one message names."""


@dataclass(frozen=True, slots=True)
class Location:
    """A field of a file."""

    file: str
    path: Path = ()
    lines: Mapping[Path, int] = field(default_factory=dict, repr=False)
    """The line of each path that is known, counted from 1; what is not known stands where the nearest path above it does."""

    def at(self, *steps: Step) -> Location:
        """A field below this one."""
        return Location(self.file, (*self.path, *steps), self.lines)

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
        """The message, with the location before it."""
        return f"{self}: {message}"

    def error(self, message: str) -> UserError:
        """The message as an error for the person."""
        return UserError(self.says(message))


@dataclass(frozen=True, slots=True)
class Source:
    """What a file holds: plain data, and where it stands."""

    value: Json
    location: Location
    written: Mapping[Path, str] = field(default_factory=dict, repr=False)
    """Numbers that are written otherwise than JSON writes them."""


@dataclass(slots=True)
class Findings:
    """Problems, each one line with its location, and notices, each said once."""

    problems: list[str] = field(default_factory=list)
    notices: dict[str, None] = field(default_factory=dict)

    def problem(self, location: Location, message: str) -> None:
        self.problems.append(location.says(message))

    def notice(self, text: str) -> None:
        self.notices[text] = None

    def inner(self) -> Findings:
        """Findings with problems of their own, and the same notices."""
        return Findings(notices=self.notices)

    @contextmanager
    def catching(self) -> Iterator[None]:
        """What is raised as UserError within becomes problems."""
        try:
            yield
        except UserError as error:
            self.problems += str(error).split("\n")


def problems_error(problems: Sequence[str]) -> UserError:
    """Problems as one error, one line each."""
    lines = list(problems[:MAX_SHOWN])
    if len(problems) > MAX_SHOWN:
        lines.append(f"… and {len(problems) - MAX_SHOWN} more problems")
    return UserError("\n".join(lines))
