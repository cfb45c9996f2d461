"""What an eval file says for all its tests, its lists of graders, and the parts that suites and tests have alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, dumps
from manyhands.core.settings import shown
from manyhands.core.text import expand_home
from manyhands.graders.config import Located, Members, build_graders, located_entries, parse_graders, plain_entries
from manyhands.graders.preprocessors import PreprocessorEntry, media_type
from manyhands.graders.registry import BUILTIN, Setup, kind_of
from manyhands.io.keys import Read
from manyhands.io.locations import Findings, Location
from manyhands.io.search_paths import SearchPath, text_of
from manyhands.processes.templates import missing
from manyhands.workloads.evals.evalfile.contents import Hook, Trials, Workspace, aggregator_of
from manyhands.workloads.evals.evalfile.files import Config, Patterns
from manyhands.workloads.evals.evalfile.keys import EvalBlock, HookBlock, SuiteExecution, TrialsBlock, WorkspaceBlock
from manyhands.workloads.evals.evalfile.messages import Messages, filled, input_messages

Entries = tuple[Mapping[str, Any], ...]
RUBRIC = "rubric"
"""The name of the grader that a test's ``rubrics`` are."""
_MAX_LISTS = 256
"""Lists that are remembered: those that many tests share are soon among them again."""


class GraderLists:
    """Lists of graders in normal form, each checked once however many tests share it."""

    def __init__(
        self, folder: Path, *, hooked: bool = False, preprocessors: Sequence[PreprocessorEntry] | None = None
    ) -> None:
        """``folder``: the eval file's; ``hooked``: a command runs before tests, which may make the programs that graders name;
        ``preprocessors``: of all graders, but for types for which one has its own."""
        self._folder = folder
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
                put_in = partial(filled, variables=variables) if variables else None
                located = located_entries(
                    value, location, folder=self._folder, notices=findings.notice, variables=put_in
                )
                build_graders(located, Setup(self._folder, findings.notice))
                problems = [] if self._hooked else list(missing_programs(located, self._folder))
                if problems:
                    raise UserError("\n".join(problems))
                if len(self._known) >= _MAX_LISTS:
                    self._known.clear()
                self._known[digest] = tuple(map(self.shared, plain_entries(located)))
        return self._known.get(digest, ())

    def check(self, location: Location, findings: Findings) -> None:
        """Check that the preprocessors' programs are there. ``location``: of their list."""
        for index, each in enumerate(() if self._hooked else self._preprocessors):
            problem = missing(each["command"], self._folder)
            if problem is not None:
                findings.problem(location.at(index, "command"), problem)

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
    guidelines: Patterns
    """The input files that are guidelines."""
    lists: GraderLists
    _found: dict[str, Path | None] = field(default_factory=dict)
    _texts: dict[Path, str] = field(default_factory=dict)

    @classmethod
    def of(cls, file: Read[EvalBlock], folder: Path, search_path: SearchPath, findings: Findings) -> Suite:
        """The suite of an eval file. ``findings``: for what is wrong with what concerns all tests."""
        block = file.block
        lists = GraderLists(folder, hooked=is_hooked(block.workspace), preprocessors=block.preprocessors)
        lists.check(file.at("preprocessors"), findings)
        execution = block.execution or SuiteExecution()
        graders, graders_location = graders_of(file, block.assert_, execution.assert_, findings)
        messages: Messages = ()
        if block.input is not None:
            messages = input_messages(block.input, file.at("input"), findings)
        if not block.vars:
            lists.entries(graders, graders_location, findings)
        guidelines = Patterns(search_path.root)
        with findings.catching():
            guidelines = Config.near(folder, search_path).guidelines
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
            workspace_of(block.workspace, folder, file.at("workspace"), findings),
            search_path,
            guidelines,
            lists,
        )

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


def is_hooked(block: WorkspaceBlock | None) -> bool:
    """Whether a hook runs before tests."""
    return block is not None and not (block.before_all is None and block.before_each is None)


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


def trials_of(block: TrialsBlock | None) -> Trials | None:
    return None if block is None else Trials(block.count, block.strategy, block.cost_limit_usd, block.stop_early)


def workspace_of(
    block: WorkspaceBlock | None, folder: Path, location: Location, findings: Findings
) -> Workspace | None:
    """The workspace of a block. ``folder``: the eval file's; ``location``: the block's. A folder that is not there is a problem."""
    if block is None:
        return None
    hooks = {name: _hook(getattr(block, name), folder, location.at(name), findings) for name in WorkspaceBlock.entries}
    template = None if block.template is None else _folder(block.template, folder, location.at("template"), findings)
    return Workspace(template=template, **hooks)


def _hook(block: HookBlock | None, folder: Path, location: Location, findings: Findings) -> Hook | None:
    if block is None:
        return None
    seconds = None if block.timeout_ms is None else block.timeout_ms / 1000
    start = folder.absolute() if block.cwd is None else _folder(block.cwd, folder, location.at("cwd"), findings)
    return Hook(block.script, start, seconds)


def _folder(named: str, folder: Path, location: Location, findings: Findings) -> Path:
    path = (folder / expand_home(named)).absolute()
    if not path.is_dir():
        findings.problem(location, f"there is no folder {path}")
    return path
