"""What a worker was given, so that what it only repeats is not taken for its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manyhands.core.jsonio import Json, canonical
from manyhands.csv_jobs.schema import OutputSchema

ROW, SCHEMA = "the row", "the output schema"
_MOST_PLACES = 20
_LEAST_PROSE = 2
_MOST_READ = 1 << 20
"""Characters of a prompt that are read in vain, from lines that seem to begin JSON and don't, before that is given up."""
_LEAST_READ = 2000
"""What such a line counts for at least."""
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Given:
    """``prompt``: of the launch, as the worker got it; ``row``: its cells by column."""

    prompt: str
    row: Mapping[str, Json]


class Repeated:
    """Tells what was given from what a worker made. ``given``: None if that is not known."""

    def __init__(self, given: Given | None, schema: OutputSchema) -> None:
        self._lines = [] if given is None else [line.rstrip() for line in given.prompt.splitlines()]
        self._places: dict[str, list[int]] = {}
        prose = _prose(self._lines)
        self._prose = frozenset(prose)
        for place in prose:
            self._places.setdefault(self._lines[place], []).append(place)
        self._known: dict[bytes, str] = {}
        if given is not None:
            if schema.value:
                self._known[canonical(schema.value)] = SCHEMA
            if given.row and not _asked_for(given.row, schema):
                self._known[canonical(dict(given.row))] = ROW

    def what(self, identity: bytes) -> str | None:
        """What of the given an object is, by its canonical form."""
        return self._known.get(identity)

    def without_prompt(self, text: str) -> tuple[str, bool]:
        """The text without passages of the prompt, and whether there were any. A passage is consecutive lines of it, at least two of
        which are no JSON: JSON alone, or behind a heading, may be an answer that the prompt had shown."""
        if not self._places:
            return text, False
        lines = text.split("\n")
        bare = [line.rstrip() for line in lines]
        if not any(line in self._places for line in bare):
            return text, False
        kept: list[str] = []
        place, cut = 0, False
        while place < len(lines):
            start, length = self._passage(bare, place)
            if not length:
                kept.append(lines[place])
                place += 1
                continue
            while (
                kept and start and kept[-1].rstrip() == self._lines[start - 1]
            ):  # what of it stands before its first sentence
                kept.pop()
                start -= 1
            place, cut = place + length, True
            kept.append("")
        return "\n".join(kept), cut

    def _passage(self, lines: list[str], place: int) -> tuple[int, int]:
        """Where in the prompt the longest passage is that begins here, and how many lines it has; 0 if there is none."""
        found = (0, 0)
        for start in self._places.get(lines[place], ())[:_MOST_PLACES]:
            most = min(len(lines) - place, len(self._lines) - start)
            length = 0
            while length < most and lines[place + length] == self._lines[start + length]:
                length += 1
            if length > found[1] and sum(line in self._prose for line in range(start, start + length)) >= _LEAST_PROSE:
                found = (start, length)
        return found


def _prose(lines: list[str]) -> list[int]:
    """The lines that stand in no JSON, and say something."""
    text = "\n".join(lines)
    inside = bytearray(len(lines) + 1)
    place = counted = 0
    left = _MOST_READ
    for number, content in enumerate(lines):
        begins = counted
        counted += len(content) + 1
        if left <= 0 or begins < place or not content.lstrip().startswith(("{", "[")):
            continue
        try:
            _, place = _DECODER.raw_decode(text, begins + len(content) - len(content.lstrip()))
        except (ValueError, RecursionError) as error:
            left -= _LEAST_READ + getattr(error, "pos", len(text)) - begins
            continue
        line = number + text.count("\n", begins, place)
        inside[number : line + 1] = b"\1" * (line + 1 - number)
    return [number for number, content in enumerate(lines) if not inside[number] and _says_something(content)]


def _says_something(line: str) -> bool:
    return len(line.split()) > 1 and not line.lstrip().startswith(("{", "[", "}", "]", '"', "`"))


def _asked_for(row: Mapping[str, Any], schema: OutputSchema) -> bool:
    """Whether the schema requires every column of the row, so that the row itself may be the right answer."""
    required = (schema.value or {}).get("required")
    return isinstance(required, list) and set(row) <= {name for name in required if isinstance(name, str)}
