"""Eval files and their tests, checked and with one name for everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter

from manyhands.core.jsonio import Json
from manyhands.io.locations import Place
from manyhands.workloads.evals.evalfile import messages
from manyhands.workloads.evals.evalfile.messages import Messages


@dataclass(frozen=True, slots=True)
class Trials:
    """How often a test is tried, and how its trials become one score. ``cost_limit_usd``: no
    further trial begins once those of the test have cost this; ``stop_early``: nor once one has passed, where the strategy is pass_at_k."""

    count: int
    strategy: str = "pass_at_k"
    cost_limit_usd: float | None = None
    stop_early: bool = True


@dataclass(frozen=True, slots=True)
class Hook:
    """A command that runs before or after tests. ``seconds``: its time limit; None: the usual one."""

    argv: tuple[str, ...]
    folder: Path
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folder in which a target works: a copy of a template, with commands that run before and after tests."""

    template: Path | None = None
    """The folder that is copied."""
    before_all: Hook | None = None
    after_all: Hook | None = None
    before_each: Hook | None = None
    after_each: Hook | None = None

    def over(self, suite: Workspace | None) -> Workspace:
        """This workspace, with what it does not say as the suite's says it."""
        if suite is None:
            return self
        return replace(suite, **{name: value for name in self.__slots__ if (value := getattr(self, name)) is not None})


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation: what is said to the target, what it should answer, and who grades that (entries in normal form)."""

    input: Messages
    expected_output: Messages = ()
    graders: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A test of several turns. ``aggregation``: how their scores become one (mean, min, max); ``on_turn_failure``: continue, or stop after
    the first turn below the limit; ``window_size``: of how many turns the target is told, None for all."""

    turns: tuple[Turn, ...]
    aggregation: str = "mean"
    on_turn_failure: str = "continue"
    window_size: int | None = None


@dataclass(frozen=True, slots=True)
class Test:
    """One test. What the person wrote (content, expected output, metadata, graders' own data) is as they wrote it.

    ``input``, ``expected_output``: messages; ``graders``: entries in normal form (``graders.config.normal_entries``), rubrics first, then
    the test's own, then the suite's; ``default_grader``: the kind of grader that is wanted where there are none; ``targets``: the
    names of those that answer this test, None if all do; ``tags``: the suite's and its own; ``references``: of each file that the
    input names, as it is written, the path; ``files``: these paths without those of guidelines; ``guidelines``: what the latter say;
    ``workspace``: on top of the suite's; ``depends_on``: ids of tests that end before this one begins, and ``on_dependency_failure`` says
    what becomes of it if one of these is an error (see ``dependencies``); ``conversation``: its turns, and then ``input`` is what goes
    before them, and ``graders`` look at the whole conversation (see ``conversation``). Paths are absolute.
    """

    __test__: ClassVar[bool] = False  # it is no test of pytest's

    id: str
    input: Messages
    place: Place
    criteria: str = ""
    expected_output: Messages = ()
    graders: tuple[Mapping[str, Any], ...] = ()
    default_grader: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    conversation_id: str | None = None
    tags: tuple[str, ...] = ()
    targets: tuple[str, ...] | None = None
    trials: Trials | None = None
    threshold: float | None = None
    references: Mapping[str, Path] = field(default_factory=dict)
    guideline_files: tuple[Path, ...] = ()
    guidelines: str = ""
    workspace: Workspace | None = None
    depends_on: tuple[str, ...] = ()
    on_dependency_failure: str = "skip"
    conversation: Conversation | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The input files that are no guidelines, each once."""
        return tuple(path for path in each_once(self.references.values()) if path not in self.guideline_files)

    @property
    def all_files(self) -> tuple[Path, ...]:
        """All files that the input names, each once: guidelines first, as AgentV has them, then the others in order."""
        return each_once((*self.guideline_files, *self.references.values()))

    @property
    def all_graders(self) -> tuple[Mapping[str, Any], ...]:
        """Those of its turns, too."""
        if self.conversation is None:
            return self.graders
        return (*self.graders, *(grader for turn in self.conversation.turns for grader in turn.graders))

    @property
    def question(self) -> str:
        """What is asked, for judges."""
        return messages.question(self.input)

    @property
    def reference_answer(self) -> str:
        """What is expected, as text; empty if nothing is."""
        return messages.reference_answer(self.expected_output)

    def prompt(self, *, inline_files: bool = False) -> str:
        """The input as one text. ``inline_files``: with what is in files, where otherwise their paths stand."""
        return messages.prompt_text(self.input, self._files(inline_files))

    def chat(self) -> list[dict[str, str]]:
        """The input for a chat model: messages with ``role`` and ``content``; guidelines first, files as what is in them."""
        return messages.chat_messages(self.input, self.guidelines, self._files(True))

    def to_json(self) -> dict[str, Json]:
        """As a JSON object; ``from_json`` takes it back. What is as it is by default is left out; of the file's lines only the test's own
        is kept."""
        value: dict[str, Json] = {"id": self.id, "input": list(self.input)}
        for name, usual in _USUAL.items():
            entry = getattr(self, name)
            if entry != usual:
                written = _WRITTEN.get(name)
                value[name] = entry if written is None else written(entry)
        place = self.place
        value["place"] = {"file": place.file, "path": list(place.path), "line": place.line}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Test:
        """Raises ValueError if it is no test."""
        place = value["place"]
        path = tuple(place["path"])
        lines = {} if place["line"] is None else {path: place["line"]}
        return _json().validate_python({**value, "place": Place(place["file"], path, lines)})

    def _files(self, inline: bool) -> messages.Files:
        return messages.Files(self.references, self.guideline_files, inline)


def each_once(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Each file once, however its path is written, in order."""
    found: dict[str, Path] = {}
    for path in paths:
        found.setdefault(os.path.abspath(path), path)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Invalid:
    """A test that can't be run. ``id``: None if not even that is known. ``problems``: a line for each, with its place."""

    place: Place
    id: str | None
    problems: tuple[str, ...]

    @property
    def message(self) -> str:
        """All of it in one line."""
        return "; ".join(self.problems)


@dataclass(frozen=True, slots=True)
class InlineTargets:
    """The ``targets`` of an eval file, as they stand there."""

    value: Json
    place: Place


@dataclass(frozen=True, slots=True)
class EvalFile:
    """An eval file. ``dataset``: what results call it; ``target_names``: those that it asks for; ``about``: name, version, author, license,
    requires, category and metadata, where given; ``invalid``: tests that are left out (empty unless that was asked for); ``depends``:
    whether tests depend on others; ``converses``: whether some have turns; ``notices``: lines for the person. Paths are absolute."""

    path: Path
    dataset: str
    tests: tuple[Test, ...]
    place: Place
    description: str | None = None
    targets: InlineTargets | None = None
    target_names: tuple[str, ...] = ()
    trials: Trials | None = None
    threshold: float | None = None
    workers: int | None = None
    budget_usd: float | None = None
    cache: bool | None = None
    cache_path: Path | None = None
    fail_on_error: bool | None = None
    tags: tuple[str, ...] = ()
    workspace: Workspace | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    invalid: tuple[Invalid, ...] = ()
    depends: bool = False
    converses: bool = False
    notices: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """What relative paths in it start from. Absolute."""
        return self.path.parent


# --- Tests as JSON, written by hand: a run writes each of its tests several times, and this is four times as fast


@lru_cache(maxsize=1)
def _json() -> TypeAdapter[Test]:
    return TypeAdapter(Test)


@lru_cache(maxsize=1)
def _blocks() -> TypeAdapter[Trials | Workspace | Conversation]:
    return TypeAdapter(Trials | Workspace | Conversation)


def _block(entry: Trials | Workspace | Conversation) -> Json:
    return _blocks().dump_python(entry, mode="json", exclude_defaults=True)


def _usual_values() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in fields(Test):
        if each.default is not MISSING:
            values[each.name] = each.default
        elif each.default_factory is not MISSING:
            values[each.name] = each.default_factory()
    return values


_USUAL = _usual_values()
_WRITTEN: dict[str, Callable[[Any], Json]] = {
    **dict.fromkeys(("expected_output", "graders", "tags", "targets", "depends_on"), list),
    **dict.fromkeys(("trials", "workspace", "conversation"), _block),
    "references": lambda entry: {name: str(path) for name, path in entry.items()},
    "guideline_files": lambda entry: [str(path) for path in entry],
}
