"""The file of ``--grade``: the graders that score trajectories, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from manyhands.agents.options import AgentOptions
from manyhands.core.jsonio import Json
from manyhands.core.settings import number, shown, suggestion
from manyhands.graders.config import normal_entries, parse_graders
from manyhands.graders.protocol import PASS_LIMIT, Grader
from manyhands.graders.registry import JUDGED
from manyhands.io.dotenv_files import additions
from manyhands.io.keys import Entry, key, read, respelled
from manyhands.io.locations import Place
from manyhands.io.search_paths import Surroundings
from manyhands.io.yaml_files import read_yaml

JUDGE = "judge"
"""What the file's judge is called."""
JUDGE_KEYS = (
    *("model", "base_url", "temperature", "top_p", "max_tokens"),
    *("reasoning_effort", "reasoning_disabled", "implied_think", "call_timeout"),
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
    """A file of graders. ``entries``: in normal form; ``names``: of the graders, in order; ``threshold``: the score from which on the
    verdict is pass; ``seconds``: for a grader's program; ``judge``: settings that differ from the batch's (see ``JUDGE_KEYS``)."""

    file: str
    entries: list[dict[str, Any]]
    names: tuple[str, ...]
    threshold: float
    seconds: float
    judge: Mapping[str, Any]
    notices: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """What relative paths in the file start from."""
        return Path(self.file).parent

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What ``.env`` files add to the real environment for programs of graders. Raises UserError for one that can't be read."""
        return additions(self.folder, Surroundings.of(Path.cwd()), environ)

    def graders(self) -> tuple[Grader, ...]:
        """Raises UserError if a file that they name can't be used any more."""
        return parse_graders(self.entries, Place(self.file), folder=self.folder, notices=lambda text: None)

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
    file = Path(path).expanduser().absolute()
    notices: list[str] = []
    content, place = read_yaml(file, path)
    entries: Json = content
    settings, at = GradeFileEntry(**{"assert": content}), place
    if not isinstance(content, list):
        settings, at = _settings(content, place, notices)
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
        _judge(settings.judge, place.at("judge")),
        tuple(notices),
    ).to_json()


def _settings(content: Json, place: Place, notices: list[str]) -> tuple[GradeFileEntry, Place]:
    if not isinstance(content, Mapping):
        raise place.error(f"must be a list of graders, or a mapping with assert, not {shown(content)}")
    known = respelled(GradeFileEntry, content, place, notices.append)
    settings = read(GradeFileEntry, known, place)
    word = next(word for word in content if GradeFileEntry.key_of(word) == "assert")
    return settings, place.at(word)


def _judge(value: Json, place: Place) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise place.error(f"must be a mapping with settings of a model, not {shown(value)}")
    for word in value:
        if word == "api_key":
            raise place.at(word).error("a key must not stand in a file; it is taken from the environment")
        if word not in JUDGE_KEYS:
            raise place.at(word).error(f"unknown key{suggestion(word, JUDGE_KEYS)}")
    AgentOptions.make(value, lambda name: f"{place.at(name)}:")
    return dict(value)


def _check_asking(entry: Mapping[str, Any], place: Place) -> None:
    """Refuses what could only break once conversations have been paid for."""
    for asking in _asking(entry):
        target = asking.get("target")
        if target not in (None, JUDGE):
            raise place.error(f"there is no judge called {shown(target)} here; the file's is called {JUDGE!r}")
        if target is None and asking["type"] == "agent_judge":
            raise place.error(f"trajectories are judged without their workspace; give it target: {JUDGE}")


def _asking(value: Json) -> Iterator[Mapping[str, Any]]:
    """The entries in it that ask a judge."""
    if isinstance(value, Mapping):
        if value.get("type") in JUDGED:
            yield value
        for part in value.values():
            yield from _asking(part)
    elif isinstance(value, list):
        for part in value:
            yield from _asking(part)


def judge_options(checks: GradeFile, options: AgentOptions) -> AgentOptions:
    """How the judge is asked: as the batch's model, but for what the file says."""
    told = AgentOptions.make(checks.judge)
    changes: dict[str, Any] = {name: getattr(told, name) for name in checks.judge}
    if changes.get("base_url", options.base_url) != options.base_url:
        changes["api_key"] = None  # that of the batch's endpoint is nobody else's business
    return options.model_copy(update=changes)


def same_graders(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> bool:
    """Whether lines that were scored by both have the same fields."""
    return (before is None) == (now is None) and (before is None or now is None or before["names"] == now["names"])
