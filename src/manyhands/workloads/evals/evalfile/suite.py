"""From the mapping of a test, and what its file says for all tests, to the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.graders.config import parse_graders
from manyhands.graders.registry import BUILTIN, kind_of
from manyhands.io.findings import Findings
from manyhands.io.keys import Read, collect
from manyhands.io.locations import Place
from manyhands.io.search_paths import Surroundings, text_of
from manyhands.workloads.evals.evalfile.config_file import Config, Patterns
from manyhands.workloads.evals.evalfile.grader_lists import DEFAULT_GRADER, Entries, GraderLists
from manyhands.workloads.evals.evalfile.keys import (
    EvalBlock,
    HookBlock,
    SuiteExecution,
    TestBlock,
    TestExecution,
    TrialsBlock,
    WorkspaceBlock,
)
from manyhands.workloads.evals.evalfile.messages import (
    FILE,
    TEXT,
    Messages,
    expected_messages,
    file_value,
    input_messages,
    parts,
)
from manyhands.workloads.evals.evalfile.sources import RawTest
from manyhands.workloads.evals.evalfile.tests import Hook, Invalid, Test, Trials, Workspace
from manyhands.workloads.evals.evalfile.turns import Turns
from manyhands.workloads.evals.evalfile.variables import filled, misspelled

_MAX_KNOWN = 1000
"""Files that are remembered, which tests name."""


@dataclass(frozen=True, slots=True)
class Suite:
    """What holds for all tests of a file. ``place``: where its input and graders stand."""

    folder: Path
    block: EvalBlock
    findings: Findings
    input: Messages
    input_place: Place
    graders: Json
    graders_place: Place
    default_grader: str | None
    execution: SuiteExecution
    workspace: Workspace | None
    surroundings: Surroundings
    guidelines: Patterns
    lists: GraderLists
    _found: dict[str, Path | None] = field(default_factory=dict)
    _texts: dict[Path, str] = field(default_factory=dict)

    @classmethod
    def of(cls, file: Read[EvalBlock], folder: Path, surroundings: Surroundings, findings: Findings) -> Suite:
        """``findings`` says what is wrong with what concerns all tests."""
        block = file.block
        lists = GraderLists(folder, hooked=is_hooked(block.workspace), preprocessors=block.preprocessors)
        lists.check(file.at("preprocessors"), findings)
        execution = block.execution or SuiteExecution()
        graders, graders_place = graders_of(file, block.assert_, execution.assert_, findings)
        messages: Messages = ()
        if block.input is not None:
            messages = input_messages(block.input, file.at("input"), findings)
        if not block.vars:
            lists.entries(graders, graders_place, findings)
        guidelines = Patterns(surroundings.root)
        with findings.catching():
            guidelines = Config.near(folder, surroundings).guidelines
        return cls(
            folder,
            block,
            findings,
            messages,
            file.at("input"),
            graders,
            graders_place,
            default_grader(block.evaluator, file.at("evaluator"), findings),
            execution,
            workspace_of(block.workspace, folder, file.at("workspace"), findings),
            surroundings,
            guidelines,
            lists,
        )

    def test(self, raw: RawTest) -> Test | Invalid:
        """The test, or what is wrong with it."""
        findings = self.findings.inner()
        if raw.problem is not None:
            return Invalid(raw.place, None, (raw.problem,))
        before = collect(TestBlock, raw.value, raw.place, findings)
        name = _id(raw, before, findings)
        if before is None or name is None:
            return Invalid(raw.place, name or _rough_id(raw.value), tuple(findings.problems))
        test = _Building(self, raw, before, findings).test(name)
        return Invalid(raw.place, name, tuple(findings.problems)) if findings.problems else test

    def file(self, named: str, place: Place, findings: Findings) -> Path | None:
        """The file that a message names."""
        if named not in self._found:
            _keep_few(self._found)
            self._found[named] = self.surroundings.find(named, self.folder)
        path = self._found[named]
        if path is None:
            findings.problem(
                place, f"there is no file {named} in the eval file's folder, in one above it up to the root, or here"
            )
        return path

    def guideline(self, path: Path, place: Place) -> str:
        """What a guideline file says. Raises UserError."""
        if path not in self._texts:
            _keep_few(self._texts)
            self._texts[path] = text_of(path, place)
        return self._texts[path]


class _Building:
    """One test in the making."""

    def __init__(self, suite: Suite, raw: RawTest, source: Read[TestBlock], findings: Findings) -> None:
        self._suite = suite
        self._raw = raw
        self._source = source
        self._findings = findings
        self._block = source.block
        self._execution = source.block.execution or TestExecution()
        self._variables: Mapping[str, Json] = {**(suite.block.vars or {}), **(source.block.vars or {})}
        self._turns = Turns(raw, source, self._variables, findings)

    def test(self, name: str) -> Test:
        block, suite = self._block, self._suite
        default = self._default_grader()
        self._turns.read(self._lists, default or DEFAULT_GRADER)
        messages = self._input()
        references = self._references(messages) | self._turns.references(suite.file)
        guideline_files = tuple(path for path in dict.fromkeys(references.values()) if suite.guidelines.hold(path))
        expected, graders = self._expected(), self._graders()
        criteria = filled(block.criteria or "", self._variables)
        for said in misspelled([block.input, block.criteria, block.expected_output], self._variables):
            suite.findings.notice(f"{self._source.place.file}: {said}")
        if not self._says_what_is_good():
            self._findings.problem(self._source.place, "criteria, expected_output or graders are required")
        own = workspace_of(block.workspace, suite.folder, self._source.at("workspace"), self._findings)
        return Test(
            id=name,
            input=messages,
            place=self._source.place,
            criteria=str(criteria),
            expected_output=expected,
            graders=graders,
            default_grader=default,
            metadata=block.metadata or {},
            conversation_id=block.conversation_id,
            tags=tuple(dict.fromkeys((*(suite.block.tags or ()), *(block.tags or ())))),
            targets=self._targets(),
            trials=trials_of(self._execution.trials or suite.execution.trials),
            threshold=block.threshold,
            references=references,
            guideline_files=guideline_files,
            guidelines=self._guidelines(guideline_files),
            workspace=suite.workspace if own is None else own.over(suite.workspace),
            depends_on=self._depends_on(),
            on_dependency_failure=block.on_dependency_failure,
            conversation=self._turns.conversation,
        )

    def _input(self) -> Messages:
        suite = () if self._execution.skip_defaults else self._suite.input
        before: Messages = tuple(filled(message, self._variables) for message in suite)
        place = self._source.at("input")
        value = self._value(self._block.input, place)
        if value is None:
            if self._block.input_files or not (before or self._block.mode):
                self._findings.problem(self._source.place, "input is required")
            return before
        value = filled(value, self._variables)
        if self._block.input_files:
            value = self._with_files(value, place)
        return before + input_messages(value, place, self._findings)

    def _with_files(self, value: Json, place: Place) -> Json:
        if not isinstance(value, str):
            self._findings.problem(place, "must be a text where there are input_files")
            return value
        files = [{"type": FILE, "value": named} for named in self._block.input_files or ()]
        return [{"role": "user", "content": [*files, {"type": TEXT, "value": value}]}]

    def _expected(self) -> Messages:
        place = self._source.at("expected_output")
        value = self._value(self._block.expected_output, place)
        if value is None:
            return ()
        return expected_messages(filled(value, self._variables), place, self._findings)

    def _says_what_is_good(self) -> bool:
        block = self._block
        own = (block.criteria, block.assert_, self._execution.assert_, block.rubrics)
        shared = self._suite.graders and not self._execution.skip_defaults
        return block.expected_output is not None or any(own) or bool(shared) or self._turns.graded

    def _value(self, value: Json, place: Place) -> Json:
        """A number or truth value as the person wrote it, anything else as it is."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return self._raw.as_written(value, place) if isinstance(value, (int, float)) else value

    @property
    def _lists(self) -> GraderLists:
        hooked = is_hooked(self._block.workspace)
        shared = self._suite.block.preprocessors
        return GraderLists(self._suite.folder, hooked=True, preprocessors=shared) if hooked else self._suite.lists

    def _graders(self) -> Entries:
        suite, lists = self._suite, self._lists
        rubrics = filled(self._block.rubrics, self._variables)
        found = lists.rubrics(rubrics, self._source.at("rubrics"), self._findings)
        value, place = graders_of(self._source, self._block.assert_, self._execution.assert_, self._findings)
        found += lists.entries(filled(value, self._variables), place, self._findings, self._variables)
        if not self._execution.skip_defaults and (self._variables or not suite.findings.problems):
            own = filled(suite.graders, self._variables)
            found += lists.entries(own, suite.graders_place, self._findings, self._variables)
        if suite.block.preprocessors and not found and not self._turns.graded:
            kind = self._default_grader() or DEFAULT_GRADER
            found = (lists.shared({"type": kind, "name": kind}),)
        return found

    def _default_grader(self) -> str | None:
        own = default_grader(self._block.evaluator, self._source.at("evaluator"), self._findings)
        return own or self._suite.default_grader

    def _targets(self) -> tuple[str, ...] | None:
        if self._execution.target and self._execution.targets:
            self._findings.problem(self._source.at("execution"), "give target or targets, not both")
        return targets_of(self._execution.target, self._execution.targets)

    def _depends_on(self) -> tuple[str, ...]:
        if self._block.depends_on is None:
            return ()
        place, ids = self._source.at("depends_on"), enumerate(self._block.depends_on)
        return tuple(each if isinstance(each, str) else self._raw.as_written(each, place.at(at)) for at, each in ids)

    def _references(self, messages: Messages) -> dict[str, Path]:
        found: dict[str, Path] = {}
        own = len(messages) - (0 if self._execution.skip_defaults else len(self._suite.input))
        for number, message in enumerate(messages, own - len(messages)):
            for index, part in enumerate(parts(message)):
                named = file_value(part)
                if named is None or named in found:
                    continue
                path = self._suite.file(named, self._place_of(number, index), self._findings)
                if path is not None:
                    found[named] = path
        return found

    def _place_of(self, number: int, index: int) -> Place:
        """Of a part of a message. Negative numbers are messages of the suite."""
        place = self._suite.input_place if number < 0 else self._source.at("input")
        at = number + len(self._suite.input) if number < 0 else number
        inner = place.at(at, "content", index)
        return inner if inner.path in inner.lines else place

    def _guidelines(self, files: tuple[Path, ...]) -> str:
        texts = []
        for path in files:
            with self._findings.catching():
                texts.append(self._suite.guideline(path, self._source.at("input")))
        return "\n\n".join(texts)


def _keep_few(known: dict[Any, Any]) -> None:
    """Forget what was found for earlier tests, if that is much: later ones rarely name the same files."""
    if len(known) >= _MAX_KNOWN:
        known.clear()


# --- Parts that suites and tests have alike


def is_hooked(block: WorkspaceBlock | None) -> bool:
    """Whether a command runs before tests."""
    return block is not None and not (block.before_all is None and block.before_each is None)


def graders_of(source: Read[Any], own: Json, older: Json, findings: Findings) -> tuple[Json, Place]:
    """A list of graders and its place: of a mapping itself, or the older one below ``execution``."""
    place, older_place = source.at("assert"), source.at("execution", "assert")
    if older is None:
        return own, place
    findings.notice(f"{place.file}: graders below 'execution' are at an obsolete place; 'assert' is a key of its own")
    if own is not None:
        findings.problem(place, f"graders are given twice: here and as {older_place.name}")
    return older, older_place


def default_grader(kind: str | None, place: Place, findings: Findings) -> str | None:
    """The kind of grader that is used where there is no list, by its present name. It must do without settings."""
    if kind is None:
        return None
    with findings.catching():
        name = kind_of(kind, place, findings.notice)
        try:
            parse_graders([{"type": name}], _PLACE, folder=Path(), notices=findings.notice)
        except UserError as error:
            missing = str(error).rpartition(": ")[2] if name in BUILTIN else str(error)
            raise place.error(f"a grader of kind {name} needs settings ({missing}); write it below assert") from None
        return name
    return None


_PLACE = Place("")


def targets_of(one: str | None, several: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The names of targets; None if there are none."""
    return several or ((one,) if one else None)


def trials_of(block: TrialsBlock | None) -> Trials | None:
    return None if block is None else Trials(block.count, block.strategy, block.cost_limit_usd, block.stop_early)


def workspace_of(block: WorkspaceBlock | None, folder: Path, place: Place, findings: Findings) -> Workspace | None:
    """``folder``: the eval file's; ``place``: the block's. A folder that is not there is a finding."""
    if block is None:
        return None
    hooks = {name: _hook(getattr(block, name), folder, place.at(name), findings) for name in WorkspaceBlock.entries}
    template = None if block.template is None else _folder(block.template, folder, place.at("template"), findings)
    return Workspace(template=template, **hooks)


def _hook(block: HookBlock | None, folder: Path, place: Place, findings: Findings) -> Hook | None:
    if block is None:
        return None
    seconds = None if block.timeout_ms is None else block.timeout_ms / 1000
    start = folder.absolute() if block.cwd is None else _folder(block.cwd, folder, place.at("cwd"), findings)
    return Hook(block.script, start, seconds)


def _folder(named: str, folder: Path, place: Place, findings: Findings) -> Path:
    path = (folder / Path(named).expanduser()).absolute()
    if not path.is_dir():
        findings.problem(place, f"there is no folder {path}")
    return path


# --- Ids


def _id(raw: RawTest, source: Read[TestBlock] | None, findings: Findings) -> str | None:
    """The test's id; a number is taken as it is written."""
    if source is None:
        return None
    value, place = source.block.id, source.at("id")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        findings.notice(f"{place.file}: ids that are numbers are taken as the text that is written")
        return raw.as_written(value, place)
    if not isinstance(value, str) or not value.strip():
        findings.problem(place, f"must be a text that is not empty, not {shown(value)}")
        return None
    if any(ord(character) < 32 for character in value):
        findings.problem(place, "must not hold control characters")
        return None
    return value


def _rough_id(value: Json) -> str | None:
    """What a test that can't be read calls itself."""
    found = value.get("id") if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else None
