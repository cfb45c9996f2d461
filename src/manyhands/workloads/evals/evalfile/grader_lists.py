"""Lists of graders of a file, each looked at once however many tests share it: their normal form, programs and folders that they name and
that are not there, and which of them ask a judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.core.settings import shown
from manyhands.graders.composite import AggregatorEntry
from manyhands.graders.config import Members, Placed, build_graders, placed_entries, plain_entries
from manyhands.graders.preprocessors import PreprocessorEntry, media_type
from manyhands.graders.registry import BUILTIN, JUDGED, Setup, name_for
from manyhands.io.findings import Findings
from manyhands.io.locations import Place
from manyhands.processes.templates import missing
from manyhands.workloads.evals.evalfile.tests import Test
from manyhands.workloads.evals.evalfile.variables import filled

DEFAULT_GRADER = "llm_judge"
"""The kind of grader for tests that have no list of graders, where the eval file names none."""


JUDGING = (DEFAULT_GRADER, "agent_judge")
"""Kinds that ask a judge."""


def entries_of(test: Test, *, judged: bool) -> tuple[Mapping[str, Any], ...]:
    """The graders of a test; where it has none, one of the kind that its file names for this. ``judged``: whether it has a judge; without
    one there is no grader that needs it."""
    if test.graders:
        return test.graders
    kind = test.default_grader or DEFAULT_GRADER
    return ({"type": kind, "name": kind},) if judged or kind not in JUDGING else ()


Entries = tuple[Mapping[str, Any], ...]
RUBRIC = "rubric"
"""The name of the grader that a test's ``rubrics`` are."""
_MAX_KNOWN = 256
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
                if len(self._known) >= _MAX_KNOWN:
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


_PROGRAMS = ("code_judge", "code_grader")


def missing_programs(placed: Sequence[Placed], folder: Path) -> Iterator[str]:
    """A line, with its place, for each. ``placed``: entries that were checked otherwise; ``folder``: the eval file's."""
    for entry, place in placed:
        if entry["type"] in _PROGRAMS:
            yield from _program(entry, place, folder)
        elif entry["type"] == "composite":
            yield from _composite(entry, place, folder)
        for index, each in enumerate(entry.get("preprocessors") or ()):
            yield from _line(each["command"], place.at("preprocessors", index, "command"), folder)
        prompt = entry.get("prompt")
        if isinstance(prompt, Mapping):
            word = "script" if "script" in prompt else "command"
            yield from _line(prompt[word], place.at("prompt", word), folder)


def aggregator_of(entry: Mapping[str, Any]) -> AggregatorEntry:
    """How a composite that was checked makes one score of its members'."""
    value = entry.get("aggregator", {})
    return AggregatorEntry.model_validate({"type": value} if isinstance(value, str) else value)


def _program(entry: Mapping[str, Any], place: Place, folder: Path) -> Iterator[str]:
    start = folder / (entry.get("cwd") or "")
    if start.is_dir():
        yield from _line(entry["script"], place.at("script"), start)
    else:
        yield place.at("cwd").says(f"there is no folder {start}")


def _composite(entry: Mapping[str, Any], place: Place, folder: Path) -> Iterator[str]:
    members = entry["assert"]
    if isinstance(members, Members):
        yield from missing_programs(members.placed, folder)
    aggregator = aggregator_of(entry)
    if aggregator.type == "code_judge" and aggregator.path is not None:
        yield from _line(aggregator.path, place.at("aggregator", "path"), folder)


def _line(command: str | Sequence[str], place: Place, folder: Path) -> Iterator[str]:
    problem = missing(command, folder)
    if problem is not None:
        yield place.says(problem)


_JUDGED_BY_PROGRAMS = ("code_judge", "code_grader")


@dataclass(frozen=True, slots=True)
class JudgeNeed:
    """``grader``: its name, behind those of the composites it is in; ``target``: the judge that it names, None for the test's own;
    ``workspace``: whether it can't do without one; ``bare``: whether it has nothing but the test's criteria and expected output to hold an
    answer against; ``certain``: whether it is known to ask one, and not a kind of somebody else's that may."""

    grader: str
    target: str | None = None
    workspace: bool = False
    bare: bool = False
    certain: bool = True


def judge_needs(graders: Sequence[Mapping[str, Any]], within: str = "") -> Iterator[JudgeNeed]:
    """What the graders of a test need. ``graders``: in normal form; ``within``: names of composites around them."""
    for entry in graders:
        kind, name = entry["type"], within + str(entry.get("name") or name_for(entry))
        if kind in JUDGED:
            target = entry.get("target")
            bare = all(entry.get(name) is None for name in ("prompt", "rubrics", "value")) and kind != "rubrics"
            yield JudgeNeed(name, target, workspace=kind == "agent_judge" and target is None, bare=bare)
        elif kind in _JUDGED_BY_PROGRAMS and entry.get("target"):
            yield JudgeNeed(name)
        elif kind == "composite":
            yield from judge_needs(entry["assert"], f"{name} > ")
            aggregator = aggregator_of(entry)
            if aggregator.type == "llm_judge":
                yield JudgeNeed(f"{name} > aggregator", aggregator.target)
        elif kind not in BUILTIN:
            yield JudgeNeed(name, certain=False)
