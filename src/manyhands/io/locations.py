"""Where in a person's file something stands, for messages that name file, line and field; and what reading it has found wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json

Step = str | int
Path = tuple[Step, ...]
MAX_DEPTH = 100
"""Levels of nesting in a file."""
MAX_SHOWN = 50
"""Problems that one message names."""
MAX_NAMED = 10
"""Keys without an effect that the line of a file names."""
MAX_UNKNOWN = 1000
"""Such keys of a file that are remembered, and places of each."""
_NUMBERS = re.compile(r"(?<=, line )\d+(?=: )|(?<=\[)\d+(?=\])")
"""In what ``Location.says``: the line, and places in lists."""


@dataclass(frozen=True, slots=True)
class Location:
    """A field of a file."""

    file: str
    path: Path = ()
    lines: Mapping[Path, int] = field(default_factory=dict, repr=False)
    """The line of each path that is known, counted from 1; what is not known stands where the nearest path above it does."""
    moved: Mapping[Path, Path] = field(default_factory=dict, repr=False)
    """Paths of values that were put elsewhere than they stand in the file, and where they stand there."""

    def at(self, *steps: Step) -> Location:
        """A field below this one."""
        return Location(self.file, (*self.path, *steps), self.lines, self.moved)

    @property
    def standing(self) -> Path:
        """The path in the file, of a value that was put elsewhere, too."""
        for length in range(len(self.path), 0, -1) if self.moved else ():
            if (path := self.moved.get(self.path[:length])) is not None:
                return (*path, *self.path[length:])
        return self.path

    @property
    def line(self) -> int | None:
        """None if no line is known."""
        path = self.standing
        known = (self.lines.get(path[:length]) for length in range(len(path), -1, -1))
        return next((line for line in known if line is not None), None)

    @property
    def name(self) -> str:
        """The field: ``tests[0].assert[1].weight``."""
        text = ""
        for step in self.standing:
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
class _NotedKey:
    """A key that has no effect, at all places of a file that are alike: ``tests[].foo``."""

    first: Location
    hint: str
    count: int = 0
    places: set[tuple[int | None, Path]] = field(default_factory=set)
    """Where it was found, since a mapping may be read more than once."""

    def found(self, location: Location) -> None:
        place = (location.line, location.path)
        if place not in self.places:
            self.count += 1
            if len(self.places) < MAX_UNKNOWN:
                self.places.add(place)

    def __str__(self) -> str:
        said = [] if self.first.line is None else [f"line {self.first.line}"]
        if self.count > 1:
            said.append(f"and {self.count - 1} more")
        text = f"{self.first.name} ({', '.join(said)}{self.hint})"
        return text.replace(" ()", "").replace("(; ", "(")


@dataclass(slots=True)
class _NotedKeys:
    """Keys that have no effect, which are told in one line for each file."""

    said: ClassVar[tuple[str, str]]
    """What is said of one key, and of several."""

    _files: dict[str, dict[Path, _NotedKey]] = field(default_factory=dict)
    _further: dict[str, int] = field(default_factory=dict)

    def add(self, location: Location, hint: str = "") -> None:
        """``location``: the key's; ``hint``: what may be meant, or be done instead, after a semicolon."""
        found = self._files.setdefault(location.file, {})
        alike = tuple("" if isinstance(step, int) else step for step in location.path)
        if alike not in found and len(found) >= MAX_UNKNOWN:
            self._further[location.file] = self._further.get(location.file, 0) + 1
        else:
            found.setdefault(alike, _NotedKey(location, hint)).found(location)

    def notes(self) -> Iterator[str]:
        """A line for each file, with the first of its keys."""
        for file, found in self._files.items():
            named = [str(each) for each in list(found.values())[:MAX_NAMED]]
            others = len(found) - len(named) + self._further.get(file, 0)
            rest = f" … and {others} more" if others else ""
            is_one = len(found) == 1 and not others
            yield f"{file}: {self.said[0 if is_one else 1]}: {', '.join(named)}{rest}"


class UnknownKeys(_NotedKeys):
    """Keys that mean nothing."""

    said = ("unknown key has no effect", "unknown keys have no effect")


class IdleKeys(_NotedKeys):
    """Keys that are known from other versions of the format and change nothing here."""

    said = ("has no effect here", "have no effect here")


@dataclass(slots=True)
class Findings:
    """Problems, each one line with its location, and notices, each said once."""

    problems: list[str] = field(default_factory=list)
    notices: dict[str, None] = field(default_factory=dict)
    unknown: UnknownKeys | None = None
    """Takes the keys that mean nothing; without it they are problems."""
    idle: IdleKeys = field(default_factory=IdleKeys)
    lacking: dict[str, None] | None = None
    """Takes what is missing around a file, where it is not wrong itself: a program, a variable, a target. Without it these are problems."""

    def problem(self, location: Location, message: str) -> None:
        self.problems.append(location.says(message))

    def notice(self, text: str) -> None:
        self.notices[text] = None

    def unknown_key(self, location: Location, hint: str = "") -> None:
        """``location``: the key's; ``hint``: what may be meant, after a semicolon."""
        if self.unknown is None:
            self.problem(location, f"unknown key{hint}")
        else:
            self.unknown.add(location, hint)

    def idle_key(self, location: Location, hint: str = "") -> None:
        """``location``: the key's; ``hint``: what to do instead, after a semicolon."""
        self.idle.add(location, hint)

    def inner(self) -> Findings:
        """Findings with problems of their own, and the same of everything else."""
        return Findings(notices=self.notices, unknown=self.unknown, idle=self.idle, lacking=self.lacking)

    def all_notices(self) -> tuple[str, ...]:
        """The notices, those that say the same of several places of a file as one, and the lines for keys without an effect."""
        unknown = () if self.unknown is None else self.unknown.notes()
        return (*_together(self.notices), *unknown, *self.idle.notes())

    def of_file(self) -> Findings:
        """Findings of one file: problems and notices of its own, and the same of everything else."""
        return replace(self.inner(), notices={})

    @contextmanager
    def catching(self) -> Iterator[None]:
        """What is raised as UserError within becomes problems."""
        try:
            yield
        except UserError as error:
            self.problems += str(error).split("\n")


def _together(notices: Iterable[str]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for text in notices:
        alike.setdefault(_NUMBERS.sub("", text), []).append(text)
    for first, *others in alike.values():
        yield f"{first} (and {len(others)} more like it)" if others else first


def problems_error(problems: Sequence[str]) -> UserError:
    """Problems as one error, one line each."""
    lines = list(problems[:MAX_SHOWN])
    if len(problems) > MAX_SHOWN:
        lines.append(f"… and {len(problems) - MAX_SHOWN} more problems")
    return UserError("\n".join(lines))
