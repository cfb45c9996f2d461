"""Lists of graders of a file, each looked at once however many tests share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.core.places import Place
from manyhands.core.settings import shown
from manyhands.evals.findings import Findings
from manyhands.evals.grader_programs import missing_programs
from manyhands.evals.programs import missing
from manyhands.evals.variables import filled
from manyhands.graders.config import build_graders, placed_entries, plain_entries
from manyhands.graders.programs import PreprocessorEntry, media_type
from manyhands.graders.registry import Setup

Entries = tuple[Mapping[str, Any], ...]
RUBRIC = "rubric"
"""The name of the grader that a test's ``rubrics`` are."""
_MOST_KNOWN = 256
"""Lists that are remembered: those that many tests share are soon among them again."""


class GraderLists:
    """Turns lists into normal form, and checks them. ``folder``: the eval file's; ``hooked``: a command runs before tests, which may make
    the programs that graders name; ``preprocessors``: of all graders, but for types for which one has its own."""

    def __init__(
        self, folder: Path, *, hooked: bool = False, preprocessors: Sequence[PreprocessorEntry] | None = None
    ) -> None:
        self._folder = folder
        self._hooked = hooked
        self._preprocessors = [
            {"type": each.type, "command": list(each.command) if isinstance(each.command, tuple) else each.command}
            for each in preprocessors or ()
        ]
        self._known: dict[bytes, Entries] = {}

    def entries(
        self, value: Json, place: Place, findings: Findings, variables: Mapping[str, Json] | None = None
    ) -> Entries:
        """A list in normal form; nothing if it is wrong, and then ``findings`` says what is. ``variables``: of the test, for files that
        are included; in the list itself they stand already."""
        if not value and value in (None, []):
            return ()
        digest = dumps(value)
        if variables and b'"include"' in digest:
            digest += dumps(dict(variables))
        if digest not in self._known:
            with findings.catching():
                put_in = partial(filled, variables=variables) if variables else None
                placed = placed_entries(value, place, folder=self._folder, notices=findings.notice, variables=put_in)
                build_graders(placed, Setup(self._folder, findings.notice))
                problems = [] if self._hooked else list(missing_programs(placed, self._folder))
                if problems:
                    raise UserError("\n".join(problems))
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[digest] = tuple(map(self.shared, plain_entries(placed)))
        return self._known.get(digest, ())

    def check(self, place: Place, findings: Findings) -> None:
        """Whether the programs that turn files into text are there. ``place``: of their list."""
        for index, each in enumerate(() if self._hooked else self._preprocessors):
            problem = missing(each["command"], self._folder)
            if problem is not None:
                findings.problem(place.at(index, "command"), problem)

    def shared(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """An entry in normal form with the preprocessors that hold for all."""
        if not self._preprocessors:
            return entry
        own = entry.get("preprocessors") or ()
        types = {media_type(str(each["type"])) for each in own}
        return {
            **entry,
            "preprocessors": [
                *own,
                *(each for each in self._preprocessors if media_type(str(each["type"])) not in types),
            ],
        }

    def rubrics(self, value: Json, place: Place, findings: Findings) -> Entries:
        """The grader that a test's ``rubrics`` are."""
        if value is None or value == []:
            return ()
        if not isinstance(value, list):
            findings.problem(place, f"must be a list of rubrics, not {shown(value)}")
            return ()
        inner = findings.inner()
        found = self.entries([{"name": RUBRIC, "type": "rubrics", "criteria": value}], _bare(place), inner)
        findings.problems += [line.replace(f"{place.name}[0].criteria", place.name) for line in inner.problems]
        return found


def _bare(place: Place) -> Place:
    """A place that knows no lines but its own, because what is put below it stands elsewhere in the file."""
    return Place(place.file, place.path, {} if place.line is None else {place.path: place.line})
