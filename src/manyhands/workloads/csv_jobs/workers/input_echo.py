"""What a worker was given, so that what it only repeats is not taken for its result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from manyhands.core.jsonio import Json, canonical
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema

ROW, SCHEMA, PROMPT = "the row", "the output schema", "its prompt"
_MAX_MATCHES = 20
_MIN_PROSE_LINES = 2
_MAX_WASTED_CHARS = 1 << 20
"""Characters of a prompt that are read in vain, from lines that seem to begin JSON and don't, before that is given up."""
_MIN_WASTED_CHARS = 2000
"""What such a line counts for at least."""
_DECODER = json.JSONDecoder()
_LABELS = frozenset(("role", "type", "id", "item_id", "job_id", "row_index"))
"""Names of parts that say nothing beside a prompt or a row that comes back."""
_MAX_DEPTH = 4
_MARKS = re.compile(r"^[ \t]*([>|#][ \t]*){0,8}")


@dataclass(frozen=True, slots=True)
class WorkerInput:
    """What a worker was given."""

    prompt: str
    """Of the launch, as the worker got it."""
    row: Mapping[str, Json]
    """Its cells by column."""


class EchoFilter:
    """Tells what was given from what a worker made. ``given``: None if that is not known."""

    def __init__(self, given: WorkerInput | None, schema: OutputSchema) -> None:
        self._given = given
        self._prompt = "" if given is None else given.prompt.strip()
        self._required = _required(schema)
        self._known: dict[bytes, str] = {}
        if given is not None:
            if schema.value:
                self._known[canonical(schema.value)] = SCHEMA
            if given.row and not _is_requested(given.row, schema):
                self._known[canonical(dict(given.row))] = ROW

    def what(self, value: Mapping[str, Json]) -> str | None:
        """What of the given an object is, or holds and nothing else."""
        if not self._known:
            return None
        if (known := self._known_as(value)) is not None:
            return known
        if not value or self._required.issuperset(value):
            return None
        return self._held(value.items(), 0) or None

    def _known_as(self, value: Mapping[str, Json]) -> str | None:
        return self._known.get(canonical(dict(value))) or self._known.get(canonical(_as_text(value)))

    def _held(self, parts: Iterable[tuple[str, Json]], depth: int) -> str | None:
        """What named parts repeat; "" if they are labels alone, None if one of them is something else."""
        found = ""
        for name, part in parts:
            what = self._what_part(name, part, depth)
            if what is None:
                return None
            found = found or what
        return found

    def _what_part(self, name: str, part: Json, depth: int) -> str | None:
        if name in _LABELS and isinstance(part, (str, int)):
            return ""
        if isinstance(part, str):
            return PROMPT if part.strip() == self._prompt else None
        if depth >= _MAX_DEPTH:
            return None
        if isinstance(part, list):
            return self._held(((name, each) for each in part[:_MAX_MATCHES]), depth + 1)
        if isinstance(part, dict):
            return self._known_as(part) or self._held(part.items(), depth + 1)
        return None

    def without_prompt(self, text: str) -> tuple[str, bool]:
        """The text without passages of the prompt, and whether there were any. A passage is consecutive lines of it, at least two of
        which are no JSON: JSON alone, or behind a heading, may be an answer that the prompt had shown."""
        if text.strip().count("\n") < _MIN_PROSE_LINES - 1 or not self._indices:
            return text, False
        lines = text.split("\n")
        bare = _bare(text)
        if not any(line in self._indices for line in bare):
            return text, False
        kept: list[str] = []
        index, cut = 0, False
        while index < len(lines):
            start, length = self._passage(bare, index)
            if not length:
                kept.append(lines[index])
                index += 1
                continue
            # What of it stands before its first sentence:
            while kept and start and _bare(kept[-1]) == self._lines[start - 1 : start]:
                kept.pop()
                start -= 1
            index, cut = index + length, True
            kept.append("")
        return "\n".join(kept), cut

    @cached_property
    def _lines(self) -> list[str]:
        return [] if self._given is None else _bare(self._given.prompt)

    @cached_property
    def _prose(self) -> frozenset[int]:
        return frozenset(_prose(self._lines))

    @cached_property
    def _indices(self) -> dict[str, list[int]]:
        """Where in the prompt each line of its prose is."""
        found: dict[str, list[int]] = {}
        for index in sorted(self._prose):
            found.setdefault(self._lines[index], []).append(index)
        return found

    def _passage(self, lines: list[str], index: int) -> tuple[int, int]:
        """Where in the prompt the longest passage is that begins here, and how many lines it has; 0 if there is none."""
        found = (0, 0)
        for start in self._indices.get(lines[index], ())[:_MAX_MATCHES]:
            bound = min(len(lines) - index, len(self._lines) - start)
            length = 0
            while length < bound and lines[index + length] == self._lines[start + length]:
                length += 1
            if (
                length > found[1]
                and sum(line in self._prose for line in range(start, start + length)) >= _MIN_PROSE_LINES
            ):
                found = (start, length)
        return found


def _bare(text: str) -> list[str]:
    """The lines of a text without indents and marks of quotations, which an echo may have added, and in one case."""
    return [_MARKS.sub("", line).rstrip().casefold() for line in text.split("\n")]


def _prose(lines: list[str]) -> list[int]:
    """The lines that stand in no JSON, and say something."""
    text = "\n".join(lines)
    inside = bytearray(len(lines) + 1)
    index = counted = 0
    left = _MAX_WASTED_CHARS
    for number, content in enumerate(lines):
        begins = counted
        counted += len(content) + 1
        if left <= 0 or begins < index or not content.lstrip().startswith(("{", "[")):
            continue
        try:
            _, index = _DECODER.raw_decode(text, begins + len(content) - len(content.lstrip()))
        except (ValueError, RecursionError) as error:
            left -= _MIN_WASTED_CHARS + getattr(error, "pos", len(text)) - begins
            continue
        line = number + text.count("\n", begins, index)
        inside[number : line + 1] = b"\1" * (line + 1 - number)
    return [number for number, content in enumerate(lines) if not inside[number] and _says_something(content)]


def _says_something(line: str) -> bool:
    return len(line.split()) > 1 and not line.lstrip().startswith(("{", "[", "}", "]", '"', "`"))


def _as_text(row: Mapping[str, Json]) -> dict[str, Json]:
    """A row whose numbers are text, as in the cells of CSV."""
    return {
        name: str(cell) if isinstance(cell, (int, float)) and not isinstance(cell, bool) else cell
        for name, cell in row.items()
    }


def _is_requested(row: Mapping[str, Any], schema: OutputSchema) -> bool:
    """Whether the schema requires every column of the row, so that the row itself may be the right answer."""
    return _required(schema).issuperset(row)


def _required(schema: OutputSchema) -> frozenset[str]:
    required = (schema.value or {}).get("required")
    return frozenset(name for name in required if isinstance(name, str)) if isinstance(required, list) else frozenset()
