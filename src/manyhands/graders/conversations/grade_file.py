"""The file of ``--grade``: the graders that score conversations, and how."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from manyhands.core.jsonio import Json
from manyhands.core.settings import number, shown
from manyhands.core.text import expand_home, suggestion
from manyhands.graders.config import normal_entries, parse_graders
from manyhands.graders.protocol import PASS_LIMIT, Grader
from manyhands.graders.registry import JUDGED
from manyhands.io.keys import Entry, key, read, respelled
from manyhands.io.locations import Location
from manyhands.io.search_paths import SearchPath, additions
from manyhands.io.yaml_files import read_yaml
from manyhands.models.settings import ELSEWHERE, OF_AGENTS, OF_ONE_MODEL, ModelSettings
from manyhands.processes.python_functions import module_of
from manyhands.runs.options import is_file_of_values

JUDGE = "judge"
"""What the file's judge is called."""
PYTHON = "python"
"""The type of graders that are Python functions."""
JUDGE_KEYS = (
    *("model", "base_url", "temperature", "top_p", "max_tokens"),
    *("reasoning_effort", "reasoning_disabled", "implied_think", "call_timeout", "extra_body"),
)
"""Settings of the judge, each as the option of ``manyhands batch`` of that name."""


class GradeFileEntry(Entry):
    """The file's keys."""

    spellings: ClassVar[Mapping[str, str]] = {
        "graders": "assert",
        "assertions": "assert",
        "evaluators": "assert",
        "grader_timeout": "timeout",
    }
    graders: Any = key(..., "The graders.", alias="assert")
    threshold: Annotated[float, number(0, 1)] = key(PASS_LIMIT, "The score from which on the verdict is pass.")
    timeout: Annotated[float, number(above=0)] = key(120.0, "Seconds for one run of a grader's program or function.")
    judge: Any = key(None, "The model that judges ask; without it the batch's own.")


@dataclass(frozen=True, slots=True)
class GradeFile:
    """A file of graders."""

    file: str
    """Its absolute path."""
    entries: list[dict[str, Any]]
    """In normal form."""
    names: tuple[str, ...]
    """Of the graders, in order."""
    threshold: float
    """The score from which on the verdict is pass."""
    seconds: float
    """For a grader's program."""
    judge: Mapping[str, Any]
    """Settings that differ from the batch's (see ``JUDGE_KEYS``)."""
    notices: tuple[str, ...] = ()
    """What is to be said of the file when a run is made."""

    @property
    def folder(self) -> Path:
        """What relative paths in the file start from."""
        return Path(self.file).parent

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What ``.env`` files add to the real environment for programs of graders. Raises UserError for one that can't be read."""
        return additions(self.folder, SearchPath.of(Path.cwd()), environ)

    def graders(self) -> tuple[Grader, ...]:
        """Raises UserError if a file that they name can't be used any more."""
        return parse_graders(self.entries, Location(self.file), folder=self.folder, notices=lambda text: None)

    @property
    def modules(self) -> list[tuple[str, Path]]:
        """The modules and files of the Python functions that judge, and the folder in which they are looked for first."""
        return [(module_of(each["function"]), self.folder) for each in _of_types(self.entries, (PYTHON,))]

    def judge_options(self, options: ModelSettings) -> ModelSettings:
        """How the judge is called: as the batch's model, but for what the file says."""
        given = ModelSettings.make(self.judge)
        changes: dict[str, Any] = {name: getattr(given, name) for name in self.judge}
        if changes.get("base_url", options.base_url) != options.base_url:
            changes |= ELSEWHERE
        if {"model", "base_url"} & changes.keys():
            changes = OF_ONE_MODEL | changes
        return options.changed(OF_AGENTS | changes)

    @property
    def asks_judge(self) -> bool:
        """Whether a grader of it asks a model."""
        return next(_of_types(self.entries, JUDGED), None) is not None

    def to_json(self) -> dict[str, Any]:
        """As it is recorded with the run."""
        return {
            "graders": self.entries,
            "threshold": self.threshold,
            "timeout": self.seconds,
            "judge": dict(self.judge),
            "names": list(self.names),
            "notices": list(self.notices),
            "file": self.file,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The reverse of ``to_json``."""
        return cls(
            value["file"],
            value["graders"],
            tuple(value["names"]),
            value["threshold"],
            value["timeout"],
            value["judge"],
            tuple(value["notices"]),
        )


def load_checks(path: str) -> dict[str, Any]:
    """What a file holds, checked, as ``GradeFile.to_json`` gives it. Raises UserError naming file, line and field."""
    file = expand_home(path).absolute()
    notices: list[str] = []
    content, location = read_yaml(file, path)
    entries: Json = content
    settings, at = GradeFileEntry(**{"assert": content}), location
    if not isinstance(content, list):
        settings, at = _settings(content, location, notices)
        entries = settings.graders
    graders = parse_graders(entries, at, folder=file.parent, notices=notices.append)
    if not graders:
        raise at.error("at least one grader is required")
    normal = normal_entries(entries, at, folder=file.parent, notices=lambda text: None)
    for index, entry in enumerate(normal):
        _check_asking(entry, at.at(index))
    return GradeFile(
        str(file),
        normal,
        tuple(grader.name for grader in graders),
        settings.threshold,
        settings.timeout,
        _judge(settings.judge, location.at("judge"), file.parent),
        tuple(notices),
    ).to_json()


def _settings(content: Json, location: Location, notices: list[str]) -> tuple[GradeFileEntry, Location]:
    if not isinstance(content, Mapping):
        raise location.error(f"must be a list of graders, or a mapping with assert, not {shown(content)}")
    known = respelled(GradeFileEntry, content, location, notices.append)
    settings = read(GradeFileEntry, known, location)
    word = next(word for word in content if GradeFileEntry.key_of(word) == "assert")
    return settings, location.at(word)


def _judge(value: Json, location: Location, folder: Path) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise location.error(f"must be a mapping with settings of a model, not {shown(value)}")
    for word in value:
        if word == "api_key":
            raise location.at(word).error("a key must not stand in a file; it is taken from the environment")
        if word not in JUDGE_KEYS:
            raise location.at(word).error(f"unknown key{suggestion(word, JUDGE_KEYS)}")
    ModelSettings.make(value, lambda name: f"{location.at(name)}:")
    if is_file_of_values(addresses := value.get("base_url")):
        return {**value, "base_url": f"@{folder / expand_home(addresses[1:])}"}
    return dict(value)


def _check_asking(entry: Mapping[str, Any], location: Location) -> None:
    """Refuses what could only break once conversations have been paid for."""
    for asking in _of_types(entry, JUDGED):
        target = asking.get("target")
        if target not in (None, JUDGE):
            raise location.error(f"there is no judge called {shown(target)} here; the file's is called {JUDGE!r}")
        if target is None and asking["type"] == "agent_judge":
            raise location.error(f"trajectories are judged without their workspace; give it target: {JUDGE}")


def _of_types(value: Json, types: Collection[str]) -> Iterator[Mapping[str, Any]]:
    """The entries in it that are of one of these types."""
    if isinstance(value, Mapping):
        if value.get("type") in types:
            yield value
        for part in value.values():
            yield from _of_types(part, types)
    elif isinstance(value, list):
        for part in value:
            yield from _of_types(part, types)
