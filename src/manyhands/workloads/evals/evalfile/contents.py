"""Eval files and their tests, checked and with one name for everything, and the judges that tests' graders ask."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.graders.composite import AggregatorEntry
from manyhands.graders.messages import reference_of
from manyhands.graders.registry import BUILTIN, JUDGED, PROGRAMS, judge_access, name_for
from manyhands.io.locations import Location
from manyhands.tools.services.artifacts import ArtifactStore
from manyhands.tools.services.prompt_parts import BadPart, RowPictures
from manyhands.workloads.evals.evalfile import messages
from manyhands.workloads.evals.evalfile.interpolation import hidden, revealed
from manyhands.workloads.evals.evalfile.messages import Messages


def _location_json(location: Location) -> dict[str, Json]:
    return {"file": location.file, "path": list(location.path), "line": location.line}


def _location(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    path, line = tuple(value["path"]), value["line"]
    return Location(value["file"], path, {} if line is None else {path: line})


RecordedLocation = Annotated[
    Location, Field(alias="place"), BeforeValidator(_location), PlainSerializer(_location_json)
]
"""A location in something that runs record, where it is called ``place``: of the lines of its file only its own is kept."""


@dataclass(frozen=True, slots=True)
class Trials:
    """The samples of a test, which are called trials in eval files, and how their scores become one."""

    count: int
    strategy: str = "pass_at_k"
    """``pass_at_k``, ``mean`` or ``confidence_interval``."""
    cost_limit_usd: float | None = None
    """The cost of a test's trials from which on no further one begins; None: no limit."""
    stop_early: bool = True
    """Whether no further trial begins once one has passed, where the strategy is ``pass_at_k``."""


BEFORE_ALL, AFTER_ALL, BEFORE_EACH, AFTER_EACH = "before_all", "after_all", "before_each", "after_each"
"""When hooks run."""
STAGES = (BEFORE_ALL, BEFORE_EACH, AFTER_EACH, AFTER_ALL)


@dataclass(frozen=True, slots=True)
class Hook:
    """A command that runs before or after tests."""

    argv: tuple[str, ...]
    folder: Path
    """Where it starts."""
    seconds: float | None = None
    """Its time limit; None: the default one."""


@dataclass(frozen=True, slots=True)
class TargetRef:
    """A target that an eval file names, and what it says of it."""

    name: str
    use_target: str | None = None
    """The target of the targets file whose settings it has; None: that of its own name."""
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    """Commands that run before or after its tests, by name: ``before_all`` and the like."""


@dataclass(frozen=True, slots=True)
class Repo:
    """A git repository that is checked out in a workspace."""

    path: str
    """Where: relative to the workspace."""
    source: str
    """What git clones: a URL, or an absolute path; empty for one that the test's image has."""
    commit: str = "HEAD"
    """A commit, branch or tag."""
    ancestor: int = 0
    """How many first parents to go back from there."""
    sparse: tuple[str, ...] = ()
    """The folders that are checked out; empty: all."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """What must be installed before hooks run."""

    commands: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    """Of Python."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folder in which a target works: a copy of a template, with commands that run before and after tests. What is None is not
    given."""

    template: Path | None = None
    """The folder that is copied."""
    before_all: Hook | None = None
    after_all: Hook | None = None
    before_each: Hook | None = None
    after_each: Hook | None = None
    hooks_enabled: bool | None = None
    """Whether these run; those of targets do anyway."""
    reset_before: str | None = None
    """Whether a shared workspace is put back to its beginning before each test: ``none``, ``fast`` or ``strict``."""
    reset_after: str | None = None
    """The like, after each test."""
    repos: tuple[Repo, ...] | None = None
    requirements: Requirements | None = None
    isolation: str | None = None
    """``shared`` or ``per_test``."""
    mode: str | None = None
    """``pooled``, ``temp`` or ``static``."""
    path: Path | None = None
    """The folder itself, with ``static``."""
    image: str | None = None
    """The container image in which agents work."""
    memory: int | None = None
    """The most memory that such a container has, in bytes."""
    cpus: float | None = None
    """The most processors."""
    target: str | None = None
    """The target whose own the workspace is; None: any target's."""
    of_targets: tuple[tuple[str, str, Hook], ...] = ()
    """Targets' own hooks: each target's name, the stage, and the hook."""

    def over(self, suite: Workspace | None) -> Workspace:
        """This workspace, with the suite's values where it has none."""
        if suite is None:
            return self
        given = ((name, getattr(self, name)) for name in self.__slots__)
        return replace(suite, **{name: value for name, value in given if value not in (None, ())})

    def hooks(self, stage: str) -> tuple[Hook, ...]:
        """The hooks of a stage in the order in which they run: the target's are nearest to its answers."""
        own = None if self.hooks_enabled is False else getattr(self, stage)
        found = [*(() if own is None else (own,)), *(hook for _, when, hook in self.of_targets if when == stage)]
        return tuple(found if stage in (BEFORE_ALL, BEFORE_EACH) else reversed(found))

    def of(self, target: str) -> Workspace:
        """The workspace as a target has it: without the hooks of others, and if it is shared, its own."""
        hooks = tuple(each for each in self.of_targets if each[0] == target)
        return replace(self, of_targets=hooks, target=target if self.shared else None)

    @property
    def in_place(self) -> bool:
        """Whether targets work in an existing folder."""
        return self.mode == "static" and self.path is not None

    @property
    def shared(self) -> bool:
        """Whether each test finds what the one before it left."""
        return self.in_place or (self.isolation != "per_test" and self.mode == "pooled") or self.isolation == "shared"

    def resets(self, stage: str) -> bool:
        """Whether a shared workspace is put back before ``before_each``, or before ``after_each``."""
        wanted = self.reset_before if stage == BEFORE_EACH else self.reset_after
        return self.hooks_enabled is not False and wanted not in (None, "none")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation."""

    input: Messages
    """What is said to the target."""
    expected_output: Messages = ()
    """What it should answer."""
    graders: tuple[Mapping[str, Any], ...] = ()
    """The graders of its answer, in normal form."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A test of several turns."""

    turns: tuple[Turn, ...]
    aggregation: str = "mean"
    """How the scores of the turns become one: ``mean``, ``min`` or ``max``."""
    on_turn_failure: str = "continue"
    """``continue``, or ``stop`` after the first turn whose score is below the threshold."""
    window_size: int | None = None
    """The maximum number of turns of history that the target is given; None: all."""


@dataclass(frozen=True, slots=True)
class Test:
    """One test. What the person wrote (content, expected output, metadata, graders' own data) is as they wrote it. Paths are absolute."""

    __test__: ClassVar[bool] = False  # it is no test of pytest's

    id: str
    input: Messages
    """What the target is given; of a conversation, what goes before its first turn."""
    location: RecordedLocation
    """Where it stands."""
    criteria: str = ""
    """What a good answer does, in words."""
    expected_output: Messages = ()
    graders: tuple[Mapping[str, Any], ...] = ()
    """Entries in normal form (``graders.config.normal_entries``): rubrics first, then the test's own, then the suite's. Of a conversation,
    those that look at it as a whole."""
    default_grader: str | None = None
    """The kind of grader that is used where there are none."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    conversation_id: str | None = None
    tags: tuple[str, ...] = ()
    """The suite's and its own."""
    targets: tuple[str, ...] | None = None
    """The names of the targets that answer it; None: all of its file."""
    trials: Trials | None = None
    threshold: float | None = None
    """The score that passes; None: its file's."""
    references: Mapping[str, Path] = field(default_factory=dict)
    """Of each file that the input names, as it is written, the path."""
    guideline_files: tuple[Path, ...] = ()
    """Those of them that are guidelines."""
    guidelines: str = ""
    """What the guidelines say."""
    workspace: Workspace | None = None
    """Its own, on top of the suite's."""
    depends_on: tuple[str, ...] = ()
    """Ids of tests that end before this one begins."""
    on_dependency_failure: str = "skip"
    """The action when one of these is an error: ``skip``, ``fail`` or ``run``."""
    conversation: Conversation | None = None
    """Its turns, if it has several."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """Of a task folder: what ``task_folders.contents.Task.to_json`` gives."""
    variables: tuple[str, ...] = ()
    """Of a test as it was recorded: the variables of the environment that it names because their values are secrets."""
    pictures: Annotated[tuple[Json, ...], Field(exclude=True)] = field(default=(), compare=False, repr=False)
    """The parts of its input that are pictures, as the person wrote them; the input refers to them as artifacts of the run."""
    secrets: Annotated[Mapping[str, str], Field(exclude=True)] = field(default_factory=dict, compare=False, repr=False)
    """Secrets that may be in it, by the names of their variables; never recorded."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The input files except guidelines, each once."""
        return tuple(path for path in each_once(self.references.values()) if path not in self.guideline_files)

    @property
    def all_files(self) -> tuple[Path, ...]:
        """All files that the input names, each once: guidelines first, as AgentV has them, then the others in order."""
        return each_once((*self.guideline_files, *self.references.values()))

    @property
    def all_graders(self) -> tuple[Mapping[str, Any], ...]:
        """Its graders, and those of its turns."""
        if self.conversation is None:
            return self.graders
        return (*self.graders, *(grader for turn in self.conversation.turns for grader in turn.graders))

    @property
    def question(self) -> str:
        """The input as judges get it."""
        return messages.question(self.input)

    @property
    def reference_answer(self) -> str:
        """The expected output as text; empty if there is none."""
        return reference_of(self.expected_output)

    def prompt(self) -> str:
        """The input as one text, in which files are paths."""
        return messages.prompt_text(self.input, self._files(inline=False))

    def chat(self) -> list[dict[str, Any]]:
        """The input for a chat model: messages with ``role`` and ``content``; guidelines first, files as what is in them, pictures as
        references to artifacts."""
        return messages.chat_messages(self.input, self.guidelines, self._files(inline=True))

    def to_json(self) -> dict[str, Json]:
        """As a JSON object; ``from_json`` takes it back. What is as it is by default is left out; of the file's lines only the test's own
        is kept, and of secrets the names of their variables (``with_variables`` puts their values in again)."""
        value: dict[str, Json] = _json().dump_python(self, mode="json", exclude_defaults=True, by_alias=True)
        if not self.secrets:
            return value
        written, names = hidden(value, self.secrets)
        return {**written, "variables": names} if names else value

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Test:
        """The test that ``to_json`` gave. Raises ValueError if it is none."""
        return _json().validate_python(value)

    def _files(self, *, inline: bool) -> messages.Files:
        return messages.Files(self.references, self.guideline_files, inline)


def with_variables(written: Mapping[str, Any], environ: Callable[[], Mapping[str, str]]) -> Mapping[str, Any]:
    """A test as it was recorded, with the secrets that it names put in. ``environ``: reads the variables, where it names any.

    Raises UserError for one that is not set.
    """
    names = written.get("variables")
    if not names:
        return written
    kept = {name: value for name, value in written.items() if name != "variables"}
    found: Mapping[str, Any] = revealed(kept, names, environ())
    return found


def each_once(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths in order, each file once however its path is written."""
    found: dict[str, Path] = {}
    for path in paths:
        found.setdefault(os.path.abspath(path), path)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Invalid:
    """A test that can't be executed."""

    location: Location
    id: str | None
    """None if not even that is known."""
    problems: tuple[str, ...]
    """A line for each, with its location."""

    @property
    def message(self) -> str:
        """The problems in one line."""
        return "; ".join(self.problems)


@dataclass(frozen=True, slots=True)
class InlineTargets:
    """The ``targets`` of an eval file, as they stand there."""

    value: Json
    location: Location


@dataclass(frozen=True, slots=True)
class EvalFile:
    """An eval file. Paths are absolute; what is None, or empty, is not given."""

    path: Path
    dataset: str
    """Its name in results."""
    tests: tuple[Test, ...]
    location: Location
    targets: InlineTargets | None = None
    """The targets that it defines."""
    target_names: tuple[str, ...] = ()
    """The names of the targets that are to answer its tests."""
    target_refs: tuple[TargetRef, ...] = ()
    """The same targets with what it says of them, where it lists them below ``execution.targets``."""
    trials: Trials | None = None
    threshold: float | None = None
    """The score that passes."""
    workers: int | None = None
    """The maximum of concurrent tests."""
    budget_usd: float | None = None
    cache: bool | None = None
    """Whether answers of earlier runs are used."""
    cache_path: Path | None = None
    fail_on_error: bool | None = None
    """Whether the first test whose target fails ends the run."""
    workspace: Workspace | None = None
    judge_target: str | None = None
    """The target that judges where the one that answers names none."""
    invalid: tuple[Invalid, ...] = ()
    """Tests that are left out."""
    depends: bool = False
    """Whether tests depend on others."""
    converses: bool = False
    """Whether tests have turns."""
    notices: tuple[str, ...] = ()
    """Lines for the person."""

    def keep_pictures(self, artifacts: ArtifactStore) -> None:
        """Keep the pictures of its tests in the run's folder. Raises UserError for one that has changed since they were read,
        StorageError."""
        for test in self.tests:
            try:
                RowPictures(self.folder, artifacts).parts(test.pictures, "input")
            except BadPart as error:
                raise UserError(f"{test.location.file}: test {test.id}: {error}") from None

    @property
    def folder(self) -> Path:
        """The folder from which relative paths in it start. Absolute."""
        return self.path.parent


@lru_cache(maxsize=1)
def _json() -> TypeAdapter[Test]:
    return TypeAdapter(Test)


# --- Graders of tests that ask a judge

DEFAULT_GRADER = "llm_judge"
"""The kind of grader for tests that have no list of graders, where the eval file names none."""
_JUDGING = (DEFAULT_GRADER, "agent_judge")
"""Kinds that a test without graders may name and that ask a judge."""


def aggregator_of(entry: Mapping[str, Any]) -> AggregatorEntry:
    """The aggregator of a composite in normal form."""
    value = entry.get("aggregator", {})
    return AggregatorEntry.model_validate({"type": value} if isinstance(value, str) else value)


@dataclass(frozen=True, slots=True)
class JudgeNeed:
    """A judge that a grader asks."""

    grader: str
    """The grader's name, behind those of the composites it is in."""
    target: str | None = None
    """The judge that it names; None: the test's own."""
    workspace: bool = False
    """Whether it can't do without a workspace."""
    bare: bool = False
    """Whether it has nothing but the test's criteria and expected output to compare an answer with."""
    certain: bool = True
    """Whether it is known to ask one, and not a kind of somebody else's that may."""


def entries_of(test: Test, *, judged: bool) -> tuple[Mapping[str, Any], ...]:
    """The graders of a test; without any, one of its default kind. ``judged``: whether it has a judge; without one there is no default
    grader that needs it."""
    if test.graders:
        return test.graders
    kind = test.default_grader or DEFAULT_GRADER
    return ({"type": kind, "name": kind},) if judged or kind not in _JUDGING else ()


def programs_among(graders: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The names of those graders that are programs, also within composites. ``graders``: in normal form."""
    for entry in graders:
        if entry["type"] in PROGRAMS:
            yield str(entry.get("name") or name_for(entry))
        elif entry["type"] == "composite":
            yield from programs_among(entry["assert"])


def judge_needs(graders: Sequence[Mapping[str, Any]], within: str = "") -> Iterator[JudgeNeed]:
    """The judges that graders ask. ``graders``: in normal form; ``within``: names of the composites around them."""
    for entry in graders:
        kind, name = entry["type"], within + str(entry.get("name") or name_for(entry))
        if kind in JUDGED:
            target = entry.get("target")
            bare = all(entry.get(name) is None for name in ("prompt", "rubrics", "value")) and kind != "rubrics"
            yield JudgeNeed(name, target, workspace=kind == "agent_judge" and target is None, bare=bare)
        elif kind in PROGRAMS and judge_access(entry):
            yield JudgeNeed(name)
        elif kind == "composite":
            yield from judge_needs(entry["assert"], f"{name} > ")
            aggregator = aggregator_of(entry)
            if aggregator.type == "llm_judge":
                yield JudgeNeed(f"{name} > aggregator", aggregator.target)
        elif kind not in BUILTIN:
            yield JudgeNeed(name, certain=False)
