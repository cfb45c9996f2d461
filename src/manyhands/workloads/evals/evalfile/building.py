"""Makes the test of a mapping in a file and of what the file says for all its tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.keys import Read, collect
from manyhands.io.locations import Findings, Location
from manyhands.io.locations import Path as FieldPath
from manyhands.tools.services.prompt_parts import BadPart, RowPictures
from manyhands.workloads.evals.evalfile.contents import DEFAULT_GRADER, Conversation, Invalid, Test, Turn
from manyhands.workloads.evals.evalfile.keys import TestBlock, TestExecution, TurnBlock
from manyhands.workloads.evals.evalfile.messages import (
    FILE,
    MessageJson,
    Messages,
    expected_messages,
    file_value,
    filled,
    input_messages,
    is_shown,
    misspelled,
    parts,
    with_files,
)
from manyhands.workloads.evals.evalfile.suite import (
    Entries,
    GraderLists,
    Suite,
    default_grader,
    given_workspace,
    graders_of,
    targets_of,
    trials_of,
)
from manyhands.workloads.evals.evalfile.workspaces import is_hooked, workspace_of

_OF_CONVERSATIONS = ("turns", "aggregation", "on_turn_failure", "window_size")


@dataclass(frozen=True, slots=True)
class RawTest:
    """A test as it stands in a file."""

    value: Json
    location: Location
    written: Mapping[FieldPath, str] = field(default_factory=dict)
    """The numbers in its file, as the person wrote them."""
    problem: str | None = None
    """Why it can't be read, in one line or several."""

    def as_written(self, value: Json, location: Location) -> Json:
        """A number of the test, where it stands, as the person wrote it; a truth value as JSON has it; anything else unchanged."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return self.written.get(location.path, str(value)) if isinstance(value, (int, float)) else value


def read_test(suite: Suite, raw: RawTest) -> Test | Invalid:
    """The test of a mapping, or what is wrong with it."""
    findings = suite.findings.inner()
    if raw.problem is not None:
        return Invalid(raw.location, _rough_id(raw.value), tuple(raw.problem.split("\n")))
    source = collect(TestBlock, raw.value, raw.location, findings)
    name = _id(raw, source, findings)
    if source is None or name is None:
        return Invalid(raw.location, name or _rough_id(raw.value), tuple(findings.problems))
    test = _Building(suite, raw, source, findings).test(name)
    return Invalid(raw.location, name, tuple(findings.problems)) if findings.problems else test


def _id(raw: RawTest, source: Read[TestBlock] | None, findings: Findings) -> str | None:
    """The test's id; a number is taken as it is written."""
    if source is None:
        return None
    value, location = source.block.id, source.at("id")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        findings.notice(f"{location.file}: ids that are numbers are taken as the text that is written")
        return str(raw.as_written(value, location))
    if not isinstance(value, str) or not value.strip():
        findings.problem(location, f"must be a text that is not empty, not {shown(value)}")
        return None
    if any(ord(character) < 32 for character in value):
        findings.problem(location, "must not hold control characters")
        return None
    return value


def _rough_id(value: Json) -> str | None:
    """The id of a test that can't be read, as far as there is one."""
    found = value.get("id") if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else None


def _merged(shared: Mapping[str, Json], own: Mapping[str, Json]) -> dict[str, Json]:
    """A test's data on top of the suite's: objects are merged, lists put together with each value once, else the test's value holds."""
    found = dict(own)
    for name, value in shared.items():
        given = own.get(name)
        if isinstance(value, list) and isinstance(given, list):
            found[name] = [*value, *(each for each in given if each not in value)]
        elif isinstance(value, Mapping) and isinstance(given, Mapping):
            found[name] = _merged(value, given)
        elif given is None:
            found[name] = value
    return found


class _Building:
    """Makes one test."""

    def __init__(self, suite: Suite, raw: RawTest, source: Read[TestBlock], findings: Findings) -> None:
        self.source = source
        self.findings = findings
        self.variables: Mapping[str, Json] = {**(suite.block.vars or {}), **(source.block.vars or {})}
        self.lists = suite.lists
        self._own = given_workspace(source, suite.folder, suite.search_path, findings, suite.environment)
        if is_hooked(self._own.block):
            self.lists = GraderLists(
                suite.folder,
                hooked=True,
                preprocessors=suite.block.preprocessors,
                words=suite.lists.words,
                functions=suite.lists.functions,
            )
        self.pictures: list[Json] = []
        """Those of the input, as they are written."""
        self._shown = RowPictures(suite.folder)
        self._suite = suite
        self._raw = raw
        self._block = source.block
        self._execution = source.block.execution or TestExecution()

    def test(self, name: str) -> Test:
        block, suite = self._block, self._suite
        default = default_grader(block.evaluator, self.source.at("evaluator"), self.findings) or suite.default_grader
        turns = _Turns(self, default or DEFAULT_GRADER)
        messages = self._with_pictures(self._input())
        references = self._references(messages) | turns.references(suite)
        guideline_files = tuple(path for path in dict.fromkeys(references.values()) if suite.guidelines.hold(path))
        expected, graders = self._expected(), self._graders(default, turns)
        criteria = filled(block.criteria or "", self.variables)
        for said in misspelled([block.input, block.criteria, block.expected_output], self.variables):
            suite.findings.notice(f"{self.source.location.file}: {said}")
        if not (self._says_what_is_good() or turns.graded):
            self.findings.problem(self.source.location, "criteria, expected_output or graders are required")
        own = workspace_of(self._own.block, self._own.folder, self._own.location, self.findings)
        return Test(
            id=name,
            input=messages,
            location=self.source.location,
            criteria=str(criteria),
            expected_output=expected,
            graders=graders,
            default_grader=default,
            metadata=_merged(suite.metadata, block.metadata or {}),
            conversation_id=block.conversation_id,
            tags=tuple(dict.fromkeys((*(suite.block.tags or ()), *(block.tags or ())))),
            targets=self._targets(),
            trials=trials_of(self._execution.trials or suite.execution.trials),
            threshold=self._execution.threshold if block.threshold is None else block.threshold,
            references=references,
            guideline_files=guideline_files,
            guidelines=self._guidelines(guideline_files),
            workspace=suite.workspace if own is None else own.over(suite.workspace),
            depends_on=self._depends_on(),
            on_dependency_failure=block.on_dependency_failure,
            conversation=turns.conversation,
            pictures=tuple(self.pictures),
            secrets=suite.environment.secrets,
        )

    def filled(self, value: Json, location: Location) -> Any:
        """A value with its variables replaced; a number or truth value as the person wrote it."""
        return filled(self._raw.as_written(value, location), self.variables)

    def expected(self, value: Json, location: Location) -> Messages:
        """The messages of an expected output; none if it is None."""
        return () if value is None else expected_messages(self.filled(value, location), location, self.findings)

    def _input(self) -> Messages:
        suite = () if self._execution.skip_defaults else self._suite.input
        before: Messages = tuple(filled(message, self.variables) for message in suite)
        location = self.source.at("input")
        if self._block.input is None:
            if self._block.input_files or not (before or self._block.mode):
                self.findings.problem(self.source.location, "input is required")
            files = self._files()
            return (*before, {"role": "user", "content": files}) if files else before
        messages = input_messages(self.filled(self._block.input, location), location, self.findings)
        return before + with_files(messages, self._files())

    def _files(self) -> list[Json]:
        """The files that go with the input, as parts of a message: the test's own, or else those of the suite."""
        shared = () if self._execution.skip_defaults else self._suite.input_files
        named = shared if self._block.input_files is None else self._block.input_files
        return [{"type": FILE, "value": filled(each, self.variables)} for each in named]

    def _expected(self) -> Messages:
        return self.expected(self._block.expected_output, self.source.at("expected_output"))

    def _says_what_is_good(self) -> bool:
        block = self._block
        own = (block.criteria, block.assert_, self._execution.assert_, block.rubrics)
        shared = self._suite.graders and not self._execution.skip_defaults
        return block.expected_output is not None or any(own) or bool(shared)

    def _graders(self, default: str | None, turns: _Turns) -> Entries:
        suite, lists = self._suite, self.lists
        rubrics = filled(self._block.rubrics, self.variables)
        found = lists.rubrics(rubrics, self.source.at("rubrics"), self.findings)
        value, location = graders_of(self.source, self._block.assert_, self._execution.assert_, self.findings)
        found += lists.entries(filled(value, self.variables), location, self.findings, self.variables)
        if not self._execution.skip_defaults and (self.variables or not suite.findings.problems):
            shared = filled(suite.graders, self.variables)
            found += lists.entries(shared, suite.graders_location, self.findings, self.variables)
        if suite.block.preprocessors and not found and not turns.graded:
            kind = default or DEFAULT_GRADER
            found = (lists.shared({"type": kind, "name": kind}),)
        return found

    def _targets(self) -> tuple[str, ...] | None:
        if self._execution.target and self._execution.targets:
            self.findings.problem(self.source.at("execution"), "give target or targets, not both")
        return targets_of(self._execution.target, self._execution.targets)

    def _depends_on(self) -> tuple[str, ...]:
        location = self.source.at("depends_on")
        ids = enumerate(self._block.depends_on or ())
        return tuple(str(self._raw.as_written(each, location.at(index))) for index, each in ids)

    def _with_pictures(self, messages: Messages) -> Messages:
        own = len(messages) - (0 if self._execution.skip_defaults else len(self._suite.input))
        return tuple(
            self.with_pictures(
                message, [self._location_of(number, index) for index in range(len(list(parts(message))))]
            )
            for number, message in enumerate(messages, own - len(messages))
        )

    def with_pictures(self, message: MessageJson, locations: Sequence[Location]) -> MessageJson:
        """A message with its pictures as references to artifacts. ``locations``: of its parts."""
        if not any(map(is_shown, parts(message))):
            return message
        content: list[Json] = []
        for part, location in zip(parts(message), locations, strict=True):
            try:
                content += self._shown.parts([part], "content") if is_shown(part) else [part]
            except BadPart as error:
                self.findings.problem(location, str(error).partition(": ")[2])
            else:
                self.pictures += [part] if is_shown(part) else []
        return {**message, "content": content}

    def _references(self, messages: Messages) -> dict[str, Path]:
        found: dict[str, Path] = {}
        own = len(messages) - (0 if self._execution.skip_defaults else len(self._suite.input))
        for number, message in enumerate(messages, own - len(messages)):
            for index, part in enumerate(parts(message)):
                named = file_value(part)
                if named is None or named in found:
                    continue
                path = self._suite.file(named, self._location_of(number, index), self.findings)
                if path is not None:
                    found[named] = path
        return found

    def _location_of(self, number: int, index: int) -> Location:
        """The location of a part of a message. Negative numbers are messages of the suite."""
        location = self._suite.input_location if number < 0 else self.source.at("input")
        at = number + len(self._suite.input) if number < 0 else number
        inner = location.at(at, "content", index)
        return inner if inner.path in inner.lines else location

    def _guidelines(self, files: tuple[Path, ...]) -> str:
        texts = []
        for path in files:
            with self.findings.catching():
                texts.append(self._suite.guideline(path, self.source.at("input")))
        return "\n\n".join(texts)


class _Turns:
    """Makes the conversation of a test; ``conversation`` is None if it has none."""

    def __init__(self, building: _Building, judge: str) -> None:
        """``judge``: the kind of grader that compares the answers of turns without graders with what is expected."""
        self._building = building
        self._judge = judge
        self._locations: list[Location] = []
        before = len(building.findings.problems)
        self.conversation = self._read()
        wrong = len(building.findings.problems) > before
        self.graded = wrong or (self.conversation is not None and any(turn.graders for turn in self.conversation.turns))
        """Whether any turn says what is good, or may have tried to."""

    def _read(self) -> Conversation | None:
        source, findings = self._building.source, self._building.findings
        block = source.block
        if block.mode is None:
            for name in _OF_CONVERSATIONS:
                if getattr(block, name) is not None:
                    findings.problem(source.at(name), "goes with mode: conversation, which is not given")
            return None
        if block.expected_output is not None:
            findings.problem(
                source.at("expected_output"), "each turn of a conversation says for itself what is expected"
            )
        location, given = source.at("turns"), block.turns
        if not isinstance(given, list) or not given:
            problem = (
                "is required for a conversation" if given is None else f"must be a list of turns, not {shown(given)}"
            )
            findings.problem(location, problem)
            return None
        turns = [self._turn(value, location.at(number)) for number, value in enumerate(given)]
        return Conversation(
            tuple(turn for turn in turns if turn is not None),
            block.aggregation or "mean",
            block.on_turn_failure or "continue",
            block.window_size,
        )

    def _turn(self, value: Json, location: Location) -> Turn | None:
        building = self._building
        source = collect(TurnBlock, value, location, building.findings)
        if source is None:
            return None
        expected = building.expected(source.block.expected_output, source.at("expected_output"))
        own = filled(source.block.assert_, building.variables)
        graders = building.lists.entries(own, source.at("assert"), building.findings, building.variables)
        if expected and not graders:
            graders = (building.lists.shared({"type": self._judge, "name": self._judge}),)
        self._locations.append(source.at("input"))
        location = source.at("input")
        messages = tuple(
            building.with_pictures(message, [location] * len(list(parts(message))))
            for message in self._input(source.block.input, location)
        )
        return Turn(messages, expected, graders)

    def _input(self, value: Json, location: Location) -> Messages:
        value = self._building.filled(value, location)
        if isinstance(value, list) and value and not (isinstance(value[0], Mapping) and "role" in value[0]):
            value = {"role": "user", "content": value}  # parts of what is said
        return input_messages(value, location, self._building.findings)

    def references(self, suite: Suite) -> dict[str, Path]:
        """The files that turns name, by their names there."""
        found: dict[str, Path] = {}
        for turn, location in zip(self.conversation.turns if self.conversation else (), self._locations, strict=True):
            named = (file_value(part) for message in turn.input for part in parts(message))
            for name in named:
                if name is not None and name not in found:
                    path = suite.file(name, location, self._building.findings)
                    if path is not None:
                        found[name] = path
        return found
