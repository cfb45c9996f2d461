"""What an eval file says for all its tests, its lists of graders, and the parts that suites and tests have alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.core.settings import shown
from manyhands.core.text import expand_home
from manyhands.graders.config import Located, Members, build_graders, located_entries, parse_graders, plain_entries
from manyhands.graders.preprocessors import PreprocessorEntry, media_type
from manyhands.graders.registry import BUILTIN, Setup, kind_of
from manyhands.io.keys import Read, collect
from manyhands.io.locations import Findings, Location
from manyhands.io.search_paths import SearchPath, text_of
from manyhands.io.yaml_files import read_source
from manyhands.processes.python_functions import Function
from manyhands.processes.templates import NOT_ON_PATH, missing
from manyhands.workloads.evals.evalfile.contents import STAGES, TargetRef, Trials, Workspace, aggregator_of
from manyhands.workloads.evals.evalfile.files import Config, Patterns
from manyhands.workloads.evals.evalfile.interpolation import Environment
from manyhands.workloads.evals.evalfile.keys import EvalBlock, SuiteExecution, TrialsBlock, WorkspaceBlock
from manyhands.workloads.evals.evalfile.messages import Messages, filled, input_messages
from manyhands.workloads.evals.evalfile.workspaces import hook_of, is_hooked, workspace_of

Entries = tuple[Mapping[str, Any], ...]
Words = Callable[[Json, Location], Json]
"""Translates a list of graders at a location."""
RUBRIC = "rubric"
"""The name of the grader that a test's ``rubrics`` are."""
_MAX_LISTS = 256
"""Lists that are remembered: those that many tests share are soon among them again."""


class GraderLists:
    """Lists of graders in normal form, each checked once however many tests share it."""

    def __init__(
        self,
        folder: Path,
        *,
        hooked: bool = False,
        preprocessors: Sequence[PreprocessorEntry] | None = None,
        words: Words | None = None,
        functions: Mapping[str, Function] | None = None,
    ) -> None:
        """``folder``: the eval file's; ``hooked``: a command runs before tests, which may make the programs that graders name;
        ``preprocessors``: of all graders, but for types for which one has its own; ``words``: translates lists of files that are
        included, if the eval file has words of its own; ``functions``: those that were given in Python."""
        self.words = words
        self._folder = folder
        self.functions = functions or {}
        self._hooked = hooked
        self._preprocessors = [
            {"type": each.type, "command": list(each.command) if isinstance(each.command, tuple) else each.command}
            for each in preprocessors or ()
        ]
        self._known: dict[bytes, Entries] = {}

    def entries(
        self, value: Json, location: Location, findings: Findings, variables: Mapping[str, Json] | None = None
    ) -> Entries:
        """A list in normal form; empty if it is wrong, and then ``findings`` says why. ``variables``: of the test, for files that are
        included; in the list itself they are replaced already."""
        if not value and value in (None, []):
            return ()
        digest = dumps(value)
        if variables and b'"include"' in digest:
            digest += dumps(dict(variables))
        if digest not in self._known:
            with findings.catching():
                located = located_entries(
                    value,
                    location,
                    folder=self._folder,
                    notices=findings.notice,
                    reading=self._reading(variables),
                    unknown=findings.unknown,
                )
                setup = Setup(self._folder, findings.notice, unknown=findings.unknown, functions=self.functions)
                build_graders(located, setup)
                missed = () if self._hooked else missing_programs(located, self._folder)
                problems = [line for line in missed if not _is_lacking(line, findings)]
                if problems:
                    raise UserError("\n".join(problems))
                if len(self._known) >= _MAX_LISTS:
                    self._known.clear()
                self._known[digest] = tuple(map(self.shared, plain_entries(located)))
        return self._known.get(digest, ())

    def _reading(self, variables: Mapping[str, Json] | None) -> Words | None:
        """How lists of files that are included are read."""
        words = self.words
        if words is None:
            return (lambda entries, location: filled(entries, variables)) if variables else None
        return lambda entries, location: filled(words(entries, location), variables or {})

    def check(self, location: Location, findings: Findings) -> None:
        """Check that the preprocessors' programs are there. ``location``: of their list."""
        for index, each in enumerate(() if self._hooked else self._preprocessors):
            for problem in _line(each["command"], location.at(index, "command"), self._folder):
                if not _is_lacking(problem, findings):
                    findings.problems.append(problem)

    def shared(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """An entry in normal form with the file's preprocessors added."""
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

    def rubrics(self, value: Json, location: Location, findings: Findings) -> Entries:
        """The grader of a test's ``rubrics``."""
        if value is None or value == []:
            return ()
        if not isinstance(value, list):
            findings.problem(location, f"must be a list of rubrics, not {shown(value)}")
            return ()
        inner = findings.inner()
        found = self.entries([{"name": RUBRIC, "type": "rubrics", "criteria": value}], _bare(location), inner)
        findings.problems += [line.replace(f"{location.name}[0].criteria", location.name) for line in inner.problems]
        return found


def _bare(location: Location) -> Location:
    """A location that knows no line but its own, because what is below it stands elsewhere in the file."""
    return Location(location.file, location.path, {} if location.line is None else {location.path: location.line})


def _is_lacking(problem: str, findings: Findings) -> bool:
    """Whether a problem is this machine's and not the file's, and goes where that is taken."""
    if findings.lacking is None or not problem.endswith(NOT_ON_PATH):
        return False
    program = problem.rpartition(": ")[2]
    if not any(known.endswith(program) for known in findings.lacking):  # once for a file, however many graders name it
        findings.lacking[problem] = None
    return True


_PROGRAMS = ("code_judge", "code_grader")


def missing_programs(located: Sequence[Located], folder: Path) -> Iterator[str]:
    """A line, with its location, for each program or folder that graders name and that is not there. ``located``: entries in normal form;
    ``folder``: the eval file's."""
    for entry, location in located:
        if entry["type"] in _PROGRAMS:
            yield from _program(entry, location, folder)
        elif entry["type"] == "composite":
            yield from _composite(entry, location, folder)
        for index, each in enumerate(entry.get("preprocessors") or ()):
            yield from _line(each["command"], location.at("preprocessors", index, "command"), folder)
        prompt = entry.get("prompt")
        if isinstance(prompt, Mapping):
            word = "script" if "script" in prompt else "command"
            yield from _line(prompt[word], location.at("prompt", word), folder)


def _program(entry: Mapping[str, Any], location: Location, folder: Path) -> Iterator[str]:
    start = folder / (entry.get("cwd") or "")
    if start.is_dir():
        yield from _line(entry["script"], location.at("script"), start)
    else:
        yield location.at("cwd").says(f"there is no folder {start}")


def _composite(entry: Mapping[str, Any], location: Location, folder: Path) -> Iterator[str]:
    members = entry["assert"]
    if isinstance(members, Members):
        yield from missing_programs(members.located, folder)
    aggregator = aggregator_of(entry)
    if aggregator.type == "code_judge" and aggregator.path is not None:
        yield from _line(aggregator.path, location.at("aggregator", "path"), folder)


def _line(command: str | Sequence[str], location: Location, folder: Path) -> Iterator[str]:
    problem = missing(command, folder)
    if problem is not None:
        yield location.says(problem)


_MAX_FILES = 1000
"""Files that are remembered, which tests name."""
_NOWHERE = Location("")


@dataclass(frozen=True, slots=True)
class Suite:
    """What holds for all tests of a file."""

    folder: Path
    """The eval file's."""
    block: EvalBlock
    findings: Findings
    """What is wrong with what concerns all tests."""
    input: Messages
    """What goes before each test's input."""
    input_location: Location
    graders: Json
    """What follows each test's graders, as it is written."""
    graders_location: Location
    default_grader: str | None
    """The kind of grader for tests that have none."""
    execution: SuiteExecution
    workspace: Workspace | None
    search_path: SearchPath
    config: Config
    """The configuration of the folder."""
    lists: GraderLists
    environment: Environment
    """Puts variables of the environment in."""
    input_files: tuple[str, ...]
    """What goes with the input of tests that name no files themselves."""
    metadata: Mapping[str, Json]
    """What is added to each test's."""
    _found: dict[str, Path | None] = field(default_factory=dict)
    _texts: dict[Path, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        file: Read[EvalBlock],
        folder: Path,
        search_path: SearchPath,
        findings: Findings,
        environment: Environment,
        words: Words | None = None,
        functions: Mapping[str, Function] | None = None,
    ) -> Suite:
        """The suite of an eval file. ``findings``: for what is wrong with what concerns all tests; ``words`` and ``functions``: as of
        ``GraderLists``."""
        block = file.block
        own = given_workspace(file, folder, search_path, findings, environment)
        lists = GraderLists(
            folder,
            hooked=is_hooked(own.block),
            preprocessors=block.preprocessors,
            words=words,
            functions=functions,
        )
        lists.check(file.at("preprocessors"), findings)
        execution = block.execution or SuiteExecution()
        graders, graders_location = graders_of(file, block.assert_, execution.assert_, findings)
        messages: Messages = ()
        if block.input is not None:
            messages = input_messages(block.input, file.at("input"), findings)
        if not block.vars:
            lists.entries(graders, graders_location, findings)
        config = Config(Patterns(search_path.root))
        with findings.catching():
            config = Config.near(folder, search_path, findings)
        return cls(
            folder,
            block,
            findings,
            messages,
            file.at("input"),
            graders,
            graders_location,
            default_grader(block.evaluator, file.at("evaluator"), findings),
            execution,
            workspace_of(own.block, own.folder, own.location, findings),
            search_path,
            config,
            lists,
            environment,
            block.input_files or (),
            {} if block.governance is None else {"governance": block.governance},
        )

    @property
    def guidelines(self) -> Patterns:
        """The input files that are guidelines."""
        return self.config.guidelines

    def file(self, named: str, location: Location, findings: Findings) -> Path | None:
        """The file that a message names; None if there is none, and then ``findings`` says so."""
        if named not in self._found:
            _keep_few(self._found)
            self._found[named] = self.search_path.find(named, self.folder)
        path = self._found[named]
        if path is None:
            findings.problem(
                location, f"there is no file {named} in the eval file's folder, in one above it up to the root, or here"
            )
        return path

    def guideline(self, path: Path, location: Location) -> str:
        """The text of a guideline file. Raises UserError."""
        if path not in self._texts:
            _keep_few(self._texts)
            self._texts[path] = text_of(path, location)
        return self._texts[path]


def _keep_few(known: dict[Any, Any]) -> None:
    """Forget what was found for earlier tests, if that is much: later ones rarely name the same files."""
    if len(known) >= _MAX_FILES:
        known.clear()


# --- Parts that suites and tests have alike


@dataclass(frozen=True, slots=True)
class GivenWorkspace:
    """The workspace of a file or test, where it stands."""

    block: WorkspaceBlock | None
    folder: Path
    """What its paths start from."""
    location: Location


def given_workspace(
    source: Read[Any], folder: Path, search_path: SearchPath, findings: Findings, environment: Environment
) -> GivenWorkspace:
    """The workspace that stands in an eval file or test, or in the file that it names. ``folder``: the eval file's."""
    given, location = source.block.workspace, source.at("workspace")
    if not isinstance(given, str):
        return GivenWorkspace(given, folder, location)
    path = Path(os.path.normpath(folder / expand_home(given)))
    nothing = GivenWorkspace(None, path.parent, location)
    if not path.is_file():
        findings.problem(location, f"there is no file {path}")
        return nothing
    with findings.catching():
        named = read_source(path, search_path.shown(path))
        value = environment.filled(named.value, named.location)
        found = collect(WorkspaceBlock, value, named.location, findings)
        return nothing if found is None else GivenWorkspace(found.block, path.parent, found.location)
    return nothing


def graders_of(source: Read[Any], own: Json, older: Json, findings: Findings) -> tuple[Json, Location]:
    """A list of graders and its location: that of the mapping itself, or the older one below ``execution``."""
    location, older_location = source.at("assert"), source.at("execution", "assert")
    if older is None:
        return own, location
    findings.notice(
        f"{location.file}: graders below 'execution' are at an obsolete location; 'assert' is a key of its own"
    )
    if own is not None:
        findings.problem(location, f"graders are given twice: here and as {older_location.name}")
    return older, older_location


def default_grader(kind: str | None, location: Location, findings: Findings) -> str | None:
    """The present name of the kind of grader that is used without a list. A kind that needs settings is a problem."""
    if kind is None:
        return None
    with findings.catching():
        name = kind_of(kind, location, findings.notice)
        try:
            parse_graders([{"type": name}], _NOWHERE, folder=Path(), notices=findings.notice)
        except UserError as error:
            missing = str(error).rpartition(": ")[2] if name in BUILTIN else str(error)
            raise location.error(f"a grader of kind {name} needs settings ({missing}); write it below assert") from None
        return name
    return None


def targets_of(one: str | None, several: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The names of targets; None if there are none."""
    return several or ((one,) if one else None)


def target_refs(
    execution: SuiteExecution, folder: Path, location: Location, findings: Findings
) -> tuple[TargetRef, ...]:
    """The targets that a file lists, each once. ``folder``: the eval file's; ``location``: of the list."""
    found: dict[str, TargetRef] = {}
    for number, ref in enumerate(execution.targets or ()):
        at = location.at(number)
        if ref.name in found:
            if ref.use_target is not None or ref.hooks is not None:
                findings.problem(at, f"{shown(ref.name)} is named twice")
            continue
        hooks = {
            name: hook
            for name in STAGES
            if ref.hooks is not None
            and ref.hooks.enabled is not False
            and (hook := hook_of(getattr(ref.hooks, name), folder, at.at("hooks", name), findings)) is not None
        }
        found[ref.name] = TargetRef(ref.name, ref.use_target or None, hooks)
    return tuple(found.values())


def trials_of(block: TrialsBlock | None) -> Trials | None:
    return None if block is None else Trials(block.count, block.strategy, block.cost_limit_usd, block.stop_early)
