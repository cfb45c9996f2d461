"""Lists of graders of a file, each looked at once however many tests share it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.core.places import Place
from manyhands.core.settings import shown
from manyhands.evals.findings import Findings
from manyhands.evals.grader_programs import missing_programs
from manyhands.graders.config import build_graders, placed_entries, plain_entries
from manyhands.graders.registry import Setup

Entries = tuple[Mapping[str, Any], ...]
RUBRIC = "rubric"
"""The name of the grader that a test's ``rubrics`` are."""
_MOST_KNOWN = 256
"""Lists that are remembered: those that many tests share are soon among them again."""


class GraderLists:
    """Turns lists into normal form, and checks them. ``folder``: the eval file's; ``hooked``: a command runs before tests, which may make
    the programs that graders name."""

    def __init__(self, folder: Path, *, hooked: bool = False) -> None:
        self._folder = folder
        self._hooked = hooked
        self._known: dict[bytes, Entries] = {}

    def entries(self, value: Json, place: Place, findings: Findings) -> Entries:
        """A list in normal form; nothing if it is wrong, and then ``findings`` says what is."""
        if not value and value in (None, []):
            return ()
        digest = dumps(value)
        if digest not in self._known:
            with findings.catching():
                placed = placed_entries(value, place, folder=self._folder, notices=findings.notice)
                build_graders(placed, Setup(self._folder, findings.notice))
                problems = [] if self._hooked else list(missing_programs(placed, self._folder))
                if problems:
                    raise UserError("\n".join(problems))
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[digest] = tuple(plain_entries(placed))
        return self._known.get(digest, ())

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
