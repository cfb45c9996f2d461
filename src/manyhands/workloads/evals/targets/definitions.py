"""Targets: who answers the tests, and the files in which they are written down.

A target keeps what a person wrote, with the names of environment variables in it; their values are put in by ``Target.resolved``, when
it is used. So a run can record its targets without any secret in the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.redaction import protect
from manyhands.core.settings import shown, suggestion
from manyhands.io.dotenv_files import environment
from manyhands.io.findings import Findings, told
from manyhands.io.keys import Spelled, checked, present
from manyhands.io.locations import Place
from manyhands.io.search_paths import Surroundings
from manyhands.io.yaml_files import read_yaml
from manyhands.workloads.evals.evalfile.config_file import LISTS, NAMES
from manyhands.workloads.evals.evalfile.tests import EvalFile
from manyhands.workloads.evals.evalfile.variables import Interpolation, has_reference, is_reference, names
from manyhands.workloads.evals.targets.command_lines import parse_command
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds import KINDS, Making, TargetSettings, kind_of

DEFAULT = "default"
"""The name of the target that is used where none is chosen."""
_LITERAL = ("name", "provider", "judge_target", "workers", "provider_batching")
"""Settings in which there are no variables."""
_SECRET, _COMMAND = "api_key", "command"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A target ready to be used. ``secrets``: keys, and what else of the environment is in its settings and called a secret, to be kept
    out of every output."""

    settings: TargetSettings
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """A target whose settings are known and well spelled. ``settings``: by their present names, as the person wrote the values, without
    those of the environment; ``words``: how their names are written; ``folder``: the eval file's. ``workers``: None if it does not say."""

    name: str
    kind: str
    settings: Mapping[str, Json]
    place: Place
    folder: Path
    eval_file: Path | None = None
    judge_target: str | None = None
    workers: int | None = None
    batching: bool = False
    words: tuple[tuple[str, str], ...] = ()

    def resolved(self, environ: Mapping[str, str]) -> Resolved:
        """The settings with the values of the environment. A setting that need not be given, and is a variable that is not set, counts
        as not given. Raises UserError, with the place, for what is missing or wrong."""
        interpolation = Interpolation(environ)
        block, findings = KINDS[self.kind].block(), Findings()
        values: dict[str, Any] = {}
        for key, value in self.settings.items():
            if not (
                self._may_be_absent(key) and is_reference(value) and not _is_set(value, interpolation, self.at(key))
            ):
                with findings.catching():
                    values[key] = interpolation.value(value, self.at(key))
        if findings.problems:
            raise told(findings.problems)
        found = checked(block, Spelled(values, self._words()), self.place, findings)
        if found is None:
            raise told(findings.problems)
        making = Making(self.kind, self.place, self._words(), self.folder, self.eval_file, environ)
        settings = KINDS[self.kind].settings(found, making)
        secret = getattr(settings, _SECRET, None)
        used = [*interpolation.secrets, *([secret.get_secret_value()] if secret is not None else [])]
        protect(used)
        return Resolved(settings, tuple(dict.fromkeys(used)))

    def missing(self, environ: Mapping[str, str]) -> list[str]:
        """The variables in its settings that are not set and have no default."""
        interpolation = Interpolation(environ)
        used = (name for key, value in self.settings.items() for name in names(value, self.at(key)))
        return [name for name in dict.fromkeys(used) if not interpolation.is_set(name)]

    def to_json(self) -> dict[str, Json]:
        """As a JSON object, without secrets; ``from_json`` takes it back."""
        return {
            "name": self.name,
            "kind": self.kind,
            "settings": dict(self.settings),
            "place": {"file": self.place.file, "path": list(self.place.path), "line": self.place.line},
            "folder": str(self.folder),
            "eval_file": None if self.eval_file is None else str(self.eval_file),
            "judge_target": self.judge_target,
            "workers": self.workers,
            "batching": self.batching,
            "words": [list(pair) for pair in self.words],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Target:
        """The target that ``to_json`` gave."""
        at = value["place"]
        path = tuple(at["path"])
        place = Place(at["file"], path, {} if at["line"] is None else {path: at["line"]})
        eval_file = None if value["eval_file"] is None else Path(value["eval_file"])
        words = tuple((key, word) for key, word in value["words"])
        changes = {"place": place, "folder": Path(value["folder"]), "eval_file": eval_file, "words": words}
        return cls(**{**value, **changes})

    def _may_be_absent(self, key: str) -> bool:
        field = KINDS[self.kind].block().model_fields.get(key)
        return field is not None and not field.is_required() and key != _SECRET

    def _words(self) -> dict[tuple[str | int, ...], str]:
        return {(key,): word for key, word in self.words}

    def at(self, key: str) -> Place:
        """The place of a setting, by its present name."""
        return self.place.at(self._words().get((key,), key))


def _is_set(value: Json, interpolation: Interpolation, place: Place) -> bool:
    return all(interpolation.is_set(name) for name in names(value, place))


class TargetFile:
    """The targets that an eval file may name: those of ``--targets`` go before its own, and where that is not given, those of the
    nearest targets file come last. That one is read only where a name is looked for that the eval file itself has not."""

    def __init__(
        self,
        folder: Path,
        eval_file: Path | None,
        known: Entries,
        later: Path | None,
        environ: Mapping[str, str],
        surroundings: Surroundings,
    ) -> None:
        self.environ = environ
        self._folder = folder
        self._eval_file = eval_file
        self._known = known
        self._later = later
        self._surroundings = surroundings

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them. Raises UserError if the targets file is wrong."""
        self._read_later()
        return tuple(self._known)

    def resolve(self, name: str) -> Target:
        """The target of a name, its settings checked as far as that is possible without the environment.

        Raises UserError: for an unknown name it lists the known ones; otherwise with a line for everything that is wrong.
        """
        if not self.knows(name):
            raise UserError(self.unknown(name))
        return made_target(self._known[name], self._folder, self._eval_file)

    def chosen(self, eval_file: EvalFile, given: Sequence[str] = ()) -> tuple[str, ...]:
        """The names of the targets that answer an eval file's tests: those given (``--target``), else those that the file asks for,
        else ``default``, else the only one there is. Raises UserError if that is none, or one of them is unknown."""
        names = tuple(dict.fromkeys(given)) or eval_file.target_names or self._usual(eval_file)
        for name in names:
            if not self.knows(name):
                problem = self.unknown(name)
                raise (
                    UserError(f"--target: {problem}") if given else naming(eval_file.place, names, name).error(problem)
                )
        return names

    def knows(self, name: str) -> bool:
        """Whether there is a target of that name. Raises UserError if the targets file is wrong."""
        if name not in self._known:
            self._read_later()
        return name in self._known

    def unknown(self, name: str) -> str:
        """What there is to say of a name that is none."""
        return f"there is no target {shown(name)}{suggestion(name, self._known)}; {self._list()}"

    def _usual(self, eval_file: EvalFile) -> tuple[str, ...]:
        own = tuple(self._known)
        if len(own) == 1:
            return own
        names = self.names
        if DEFAULT in names or len(names) == 1:
            return (DEFAULT,) if DEFAULT in names else names
        raise eval_file.place.error(
            f"no target is chosen: give --target, or execution.target in the file; {self._list()}"
        )

    def _read_later(self) -> None:
        if self._later is not None:
            path, self._later = self._later, None
            self._known = {**read_targets(path, self._surroundings.shown(path)), **self._known}

    def _list(self) -> str:
        return (
            f"known: {', '.join(self._known)}"
            if self._known
            else "no targets file was found, and the eval file has no targets"
        )


def naming(place: Place, names: Sequence[str], name: str) -> Place:
    """Where a file, or a test, names a target. ``place``: its own; ``names``: all that it names."""
    execution = place.at("execution")
    fields = (
        execution.at("targets", names.index(name)),
        execution.at("targets"),
        execution.at("target"),
        execution,
        place.at("target"),
    )
    return next((each for each in fields if each.path in each.lines), execution)


def find_targets(
    eval_file: EvalFile,
    option: Path | None,
    environ: Mapping[str, str],
    *,
    surroundings: Surroundings | None = None,
) -> TargetFile:
    """The targets for an eval file. ``option``: a targets file, or a folder with one (``--targets``); ``environ``: the real environment,
    to which ``.env`` files are added.

    Raises UserError if the option names no targets, if targets have no name or the same one, or for a bad ``.env`` file.
    """
    around = surroundings or Surroundings.of(Path.cwd())
    findings = Findings()
    inline = eval_file.targets
    own = {} if inline is None else entries_of(inline.value, inline.place, findings)
    for entry in own.values():
        with findings.catching():
            made_target(entry, eval_file.folder, eval_file.path)
    if findings.problems:
        raise told(findings.problems)
    known, later = own, located(eval_file.folder, around)
    if option is not None:
        path = _named(option, around)
        known, later = {**own, **read_targets(path, around.shown(path))}, None
    variables = environment(eval_file.folder, around, environ)
    return TargetFile(eval_file.folder, eval_file.path, known, later, variables, around)


def made_target(entry: TargetEntry, folder: Path, eval_file: Path | None) -> Target:
    """A target of its entry in a file. Raises UserError with a line for everything that is wrong with it."""
    provider = entry.value.get("provider")
    if provider is None:
        raise entry.place.error("provider is required")
    kind = kind_of(provider, entry.place.at("provider"))
    spelled = _checked_settings(kind, entry)
    common = TargetBlock.model_validate({key: spelled.values[key] for key in _LITERAL if key in spelled.values})
    return Target(
        name=entry.name,
        kind=kind,
        settings=spelled.values,
        place=entry.place,
        folder=folder,
        eval_file=eval_file,
        judge_target=common.judge_target,
        workers=common.workers,
        batching=common.provider_batching,
        words=tuple((str(path[0]), word) for path, word in spelled.words.items() if path != (word,)),
    )


def _checked_settings(kind: str, entry: TargetEntry) -> Spelled:
    """The settings by their present names. What holds a variable is looked at when that has its value."""
    block, findings = KINDS[kind].block(), Findings()
    spelled = present(block, entry.value, entry.place, findings)
    assert spelled is not None  # an entry is a mapping
    for key, value in spelled.values.items():
        with findings.catching():
            _check_value(key, value, spelled.at(entry.place, key))
    later = [key for key, value in spelled.values.items() if has_reference(value)]
    checked(block, spelled, entry.place, findings, later)
    if spelled.values.get("provider_batching") and kind != "cli":
        findings.problem(spelled.at(entry.place, "provider_batching"), "is for targets of kind cli")
    if findings.problems:
        raise told(findings.problems)
    return spelled


def _check_value(key: str, value: Json, place: Place) -> None:
    """Raises UserError for variables where there can be none, for a secret that is not one, and for a wrong command."""
    if has_reference(value):
        if key in _LITERAL:
            raise place.error("can't be a variable of the environment")
        list(names(value, place))
    elif key == _SECRET and value is not None:
        raise place.error("must be a variable of the environment, as ${{ OPENAI_API_KEY }}: keys don't belong in files")
    elif key == _COMMAND:
        parse_command(value, place)


def _named(option: Path, surroundings: Surroundings) -> Path:
    path = surroundings.here / option
    found = within(path) if path.is_dir() else path
    if found is None or not found.is_file():
        raise UserError(f"--targets: there is no targets file {'in ' if path.is_dir() else ''}{option}")
    return found


_KEYS = ("$schema", *LISTS)


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """A target as it stands in a file."""

    name: str
    value: Mapping[str, Any]
    place: Place


Entries = dict[str, TargetEntry]


def located(folder: Path, surroundings: Surroundings) -> Path | None:
    """The nearest file of targets: in the folder, in one above it up to the root, or in the current one."""
    return next((path for each in surroundings.folders(folder) if (path := within(each)) is not None), None)


def within(folder: Path) -> Path | None:
    """The file of targets in a folder."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def read_targets(path: Path, name: str) -> Entries:
    """The targets of a file, their settings not looked at yet. Raises UserError with a line for everything that is wrong."""
    value, place = read_yaml(path, name)
    if not isinstance(value, Mapping):
        raise place.error(f"must be a mapping with targets, not {shown(value)}")
    findings = Findings()
    for key in value:
        if key not in _KEYS and not key.startswith("x-"):
            findings.problem(place.at(key), f"unknown key{suggestion(key, _KEYS)}")
    given = [key for key in LISTS if key in value]
    if not given:
        findings.problem(place, "targets is required")
    entries = entries_of(value[given[0]], place.at(given[0]), findings) if given else {}
    if len(given) > 1:
        findings.problem(place.at(given[1]), f"is the same key as {given[0]}, which is given too")
    if findings.problems:
        raise told(findings.problems)
    return entries


def entries_of(value: Json, place: Place, findings: Findings) -> Entries:
    """The targets of a mapping by name, or of a list."""
    entries: Entries = {}
    if not isinstance(value, (list, Mapping)):
        findings.problem(place, f"must be a list or a mapping of targets, not {shown(value)}")
        return {}
    for entry in _entries(value, place, findings):
        if entry.name in entries:
            first = entries[entry.name].place
            findings.problem(
                entry.place, f"{shown(entry.name)} is the name of another target too, in line {first.line}"
            )
        entries.setdefault(entry.name, entry)
    return entries


def _entries(value: Any, place: Place, findings: Findings) -> Iterator[TargetEntry]:
    named = value.items() if isinstance(value, Mapping) else ((None, entry) for entry in value)
    for index, (key, entry) in enumerate(named):
        at = place.at(index if key is None else key)
        if not isinstance(entry, Mapping):
            findings.problem(at, f"must be a mapping, not {shown(entry)}")
            continue
        name = entry.get("name", key)
        if not isinstance(name, str) or not name.strip():
            findings.problem(at, "name is required" if name is None else f"the name must be text, not {shown(name)}")
        elif any(ord(mark) < 0x20 or 0x7F <= ord(mark) < 0xA0 for mark in name):
            findings.problem(at, f"the name must not hold control characters, as {shown(name)} does")
        elif key is not None and name != key:
            findings.problem(at.at("name"), f"is another name than {shown(key)}, by which the target is listed")
        else:
            yield TargetEntry(name, entry, at)
