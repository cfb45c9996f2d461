"""Targets, and the files that define them.

A target keeps the values that a person wrote, with the names of environment variables in them; ``Target.resolved`` puts in their values. So
a run records its targets without secrets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from manyhands.agents.worlds.settings import looks_secret, read_variables
from manyhands.core.digests import digest
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.core.redaction import protect
from manyhands.core.settings import shown
from manyhands.core.text import suggestion
from manyhands.io.keys import ASIDE, Spelled, checked, present
from manyhands.io.locations import Findings, Location, UnknownKeys, problems_error
from manyhands.io.search_paths import SearchPath, environment
from manyhands.io.yaml_files import read_yaml
from manyhands.models.factory import home_url
from manyhands.models.headers import Header, read_headers
from manyhands.task_folders.settings import ORACLE
from manyhands.workloads.evals.evalfile.agentv5.project import CONFIG, configured
from manyhands.workloads.evals.evalfile.agentv5.providers import as_targets
from manyhands.workloads.evals.evalfile.contents import EvalFile, InlineTargets, RecordedLocation
from manyhands.workloads.evals.evalfile.files import PROVIDERS, TARGETS_FILES, TARGETS_KEYS, TASK_FOLDERS
from manyhands.workloads.evals.evalfile.interpolation import has_reference
from manyhands.workloads.evals.targets.command import parse_command
from manyhands.workloads.evals.targets.entries import TargetEntry, followed, is_beyond, settled
from manyhands.workloads.evals.targets.keys import Interpolation, TargetBlock, is_reference, variables
from manyhands.workloads.evals.targets.kinds.protocol import Making, TargetSettings
from manyhands.workloads.evals.targets.kinds.registry import KINDS, Kind

DEFAULT = "default"
"""The name of the target that is used where none is chosen."""
_EXAMPLE = "targets: [{name: agent, provider: agent, model: NAME, toolsets: [terminal, file]}]"
"""A targets file for task folders."""
_LITERAL = ("name", "provider", "use_target", "judge_target", "workers", "provider_batching")
"""Settings in which there are no variables."""
_SECRET, _HEADERS, _COMMAND, _ENVIRONMENT = "api_key", "header", "command", "container_env"
_SECRETS = (_SECRET, "bearer_token", "github_token")
"""Settings that must be variables."""


TOOL_KEYS = ("toolsets", "tools", "mcp_config")
"""The keys of a target that give its agent tools."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target whose keys are known and spelled in one way. Runs record it."""

    name: str
    kind: str
    settings: Mapping[str, Json]
    """By their present names, as the person wrote the values, without those of the environment."""
    location: RecordedLocation
    """Where it is written down."""
    folder: Path
    """The eval file's."""
    eval_file: Path | None = None
    judge_target: str | None = None
    """The name of the target that judges its answers, if it names one."""
    workers: int | None = None
    """Its maximum concurrency, if it says one."""
    batching: bool = False
    """Whether one invocation answers all tests."""
    words: tuple[tuple[str, str], ...] = ()
    """Names of settings that are written otherwise: the present name, and the word."""

    @property
    def facts(self) -> Kind:
        """What is true of every target of its kind."""
        return KINDS[self.kind]

    def calls_no_model(self, agent_command: str | None) -> bool:
        """Whether a program, or their own solution, does task folders in place of the model that it would call. ``agent_command``: the
        run's."""
        external = agent_command or self.settings.get("agent_command") or self.settings.get("agent") == ORACLE
        return self.facts.calls_models and bool(external)

    @property
    def has_template(self) -> bool:
        """Whether it names the folder that is copied as its workspace."""
        return any(self.settings.get(name) is not None for name in ("workspace", "workspace_template"))

    def resolved(self, environ: Mapping[str, str]) -> TargetSettings:
        """The settings with the values of the environment, whose secrets are kept out of every output from now on. A setting that need not
        be given, and is a variable that is not set, counts as not given. Raises UserError, with the location of a wrong or missing one."""
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
            raise problems_error(findings.problems)
        found = checked(block, Spelled(values, self._words()), self.location, findings)
        if found is None:
            raise problems_error(findings.problems)
        making = Making(self.kind, self.location, self._words(), self.folder, self.eval_file, environ)
        settings = KINDS[self.kind].settings(found, making)
        protect([*interpolation.secrets, *(secret.text for secret in getattr(settings, _SECRET, ()))])
        return settings

    def to_json(self) -> dict[str, Json]:
        """As a JSON object, without secrets; ``from_json`` takes it back."""
        value: dict[str, Json] = _json().dump_python(self, mode="json", by_alias=True)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Target:
        """The target that ``to_json`` gave. Raises ValueError if it is none."""
        return _json().validate_python(value)

    def _may_be_absent(self, key: str) -> bool:
        field = KINDS[self.kind].block().model_fields.get(key)
        needed = key == _SECRET and not KINDS[self.kind].starts_programs
        return field is not None and not field.is_required() and not needed

    def _words(self) -> dict[tuple[str | int, ...], str]:
        return {(key,): word for key, word in self.words}

    def at(self, key: str) -> Location:
        """The location of a setting, by its present name."""
        return self.location.at(self._words().get((key,), key))


@lru_cache(maxsize=1)
def _json() -> TypeAdapter[Target]:
    return TypeAdapter(Target)


def _is_set(value: Json, interpolation: Interpolation, location: Location) -> bool:
    return all(interpolation.is_set(name) for name in variables(value, location))


class TargetFile:
    """The targets that an eval file may name: those of ``--targets`` take precedence over its own; without that option, those of the
    nearest targets file come last. That file is read only if a name is not among the eval file's own."""

    def __init__(
        self,
        folder: Path,
        eval_file: Path | None,
        known: Entries,
        later: Path | None,
        search_path: SearchPath,
        environ: Mapping[str, str],
        unknown: UnknownKeys | None = None,
    ) -> None:
        self._unknown = unknown
        self._folder = folder
        self._eval_file = eval_file
        self._known = known
        self._later = later
        self._search_path = search_path
        self._environ = environ

    @property
    def names(self) -> tuple[str, ...]:
        """All names. Raises UserError if the targets file is wrong."""
        self._read_later()
        return tuple(self._known)

    def resolve(self, name: str, told: Findings | None = None) -> Target:
        """The target of a name, or the one that stands in for it under its name. Its settings are checked as far as that is possible
        without the environment. ``told`` gets what the person should know.

        Raises UserError: for an unknown name it lists the known ones; otherwise with a line for everything that is wrong.
        """
        if not self.knows(name):
            raise UserError(self.unknown(name))
        entry = followed(self._known[name], self._entry, self._environ, self._list)
        target = made_target(entry, self._folder, self._eval_file, environ=self._environ, told=told)
        return _with_endpoint(target, self._environ)

    def _entry(self, name: str) -> TargetEntry | None:
        return self._known[name] if self.knows(name) else None

    def chosen(self, eval_file: EvalFile, given: Sequence[str] = ()) -> tuple[str, ...]:
        """The names of the targets that answer an eval file's tests: those given (``--target``), else those that the file asks for,
        else ``default``, else the only one there is. Raises UserError if that is none, or one of them is unknown."""
        names = tuple(dict.fromkeys(given)) or eval_file.target_names or self._usual(eval_file)
        for name in names:
            if not self.knows(name):
                problem = self.unknown(name)
                raise (
                    UserError(f"--target: {problem}")
                    if given
                    else naming(eval_file.location, names, name).error(problem)
                )
        return names

    def knows(self, name: str) -> bool:
        """Whether there is a target of that name. Raises UserError if the targets file is wrong."""
        if name not in self._known:
            self._read_later()
        return name in self._known

    def unknown(self, name: str) -> str:
        """The message for a name of no target."""
        return f"there is no target {shown(name)}{suggestion(name, self._known)}; {self._list()}"

    def _usual(self, eval_file: EvalFile) -> tuple[str, ...]:
        own = tuple(self._known)
        if len(own) == 1:
            return own
        names = self.names
        if DEFAULT in names or len(names) == 1:
            return (DEFAULT,) if DEFAULT in names else names
        choice = "--target" if self._of_tasks else "--target, or execution.target in the file"
        raise eval_file.location.error(f"no target is chosen: give {choice}; {self._list()}")

    def _read_later(self) -> None:
        if self._later is not None:
            path, self._later = self._later, None
            self._known = {**read_targets(path, self._search_path.shown(path), self._unknown), **self._known}

    @property
    def _of_tasks(self) -> bool:
        """Whether there is no eval file, but task folders."""
        return self._eval_file is not None and self._eval_file.name == TASK_FOLDERS

    def _list(self) -> str:
        if self._known:
            return f"known: {', '.join(self._known)}"
        if self._of_tasks:
            return f"no targets file was found; {self._search_path.shown(self._folder / TARGETS_FILES[0])} could be {_EXAMPLE}"
        return "no targets file was found, and the eval file has no targets"


def naming(location: Location, names: Sequence[str], name: str) -> Location:
    """The location where a file, or a test, names a target. ``location``: its own; ``names``: all that it names."""
    execution = location.at("execution")
    fields = (
        execution.at("targets", names.index(name)),
        execution.at("targets"),
        execution.at("target"),
        execution,
        location.at("target"),
    )
    return next((each for each in fields if each.path in each.lines), execution)


def find_targets(
    eval_file: EvalFile,
    option: Path | None,
    environ: Mapping[str, str],
    *,
    search_path: SearchPath,
    unknown: UnknownKeys | None = None,
    given: InlineTargets | None = None,
) -> TargetFile:
    """The targets for an eval file. ``option``: a targets file, or a folder with one (``--targets``); ``environ``: the real environment,
    to which ``.env`` files are added; ``unknown``: takes keys that mean nothing, which are refused without it; ``given``: those that were
    given in Python, which take precedence.

    Raises UserError if the option names no targets, if targets have no name or the same one, or for a bad ``.env`` file.
    """
    findings = Findings(unknown=unknown)
    inline = eval_file.targets
    own = {} if inline is None else entries_of(inline.value, inline.location, findings)
    in_python = {} if given is None else entries_of(given.value, given.location, findings)
    for entry in (*own.values(), *in_python.values()):
        if entry.delegates or is_beyond(entry) or has_reference(entry.value.get("provider")):
            continue  # what is wrong with them is said if they are used
        with findings.catching():
            made_target(entry, eval_file.folder, eval_file.path)
    if findings.problems:
        raise problems_error(findings.problems)
    known, later = own, located(eval_file.folder, search_path)
    if option is not None:
        path = _named(option, search_path)
        known, later = {**own, **read_targets(path, search_path.shown(path), unknown)}, None
    known = {**known, **_referring(eval_file, unknown), **in_python}
    variables = environment(eval_file.folder, search_path, environ)
    return TargetFile(eval_file.folder, eval_file.path, known, later, search_path, variables, unknown)


def _referring(eval_file: EvalFile, unknown: UnknownKeys | None) -> Entries:
    """The targets that the eval file makes of others, under names of their own."""
    location = eval_file.location.at("execution", "targets")
    return {
        ref.name: TargetEntry(ref.name, {"use_target": ref.use_target}, location.at(number), unknown)
        for number, ref in enumerate(eval_file.target_refs)
        if ref.use_target is not None
    }


PYTHON = "python"
"""The kind of targets that are Python functions."""


def own_tools(target: Target) -> list[tuple[str, Path]]:
    """The modules and files of a target's tools that are Python functions, and the folder in which each is looked for first."""
    sources = target.settings.get("tools") if target.facts.calls_models else None
    if not sources:
        return []
    from manyhands.tools.own_functions import absolute_source, place_of  # it takes long to import, and is rarely needed

    return [
        place_of(absolute_source(each, target.folder)) for each in ([sources] if isinstance(sources, str) else sources)
    ]


def made_target(
    entry: TargetEntry,
    folder: Path,
    eval_file: Path | None,
    *,
    environ: Mapping[str, str] | None = None,
    told: Findings | None = None,
) -> Target:
    """The target of an entry for which no other stands in. ``environ``: for a ``provider`` that is a variable; ``told`` gets
    what the person should know. Raises UserError with a line for everything that is wrong with it."""
    kind, value = settled(entry, folder, environ, told)
    spelled = _checked_settings(kind, replace(entry, value=value), told)
    common = TargetBlock.model_validate({key: spelled.values[key] for key in _LITERAL if key in spelled.values})
    return Target(
        name=entry.name,
        kind=kind,
        settings=spelled.values,
        location=entry.location,
        folder=folder,
        eval_file=eval_file,
        judge_target=common.judge_target,
        workers=common.workers,
        batching=common.provider_batching,
        words=tuple((str(path[0]), word) for path, word in spelled.words.items() if path != (word,)),
    )


def _with_endpoint(target: Target, environ: Mapping[str, str]) -> Target:
    """The target; of a model that is named without an endpoint, with that of its own provider if there is a key for it and none for the
    usual one, so that a run always calls it there."""
    settings = target.settings
    if target.kind not in ("model", "agent") or {"base_url", "api_key"} & settings.keys() or "model" not in settings:
        return target
    with suppress(UserError):  # of a variable that is not set, which is told where the target is used
        url = home_url(str(Interpolation(environ).value(settings["model"], target.at("model"))), environ)
        return target if url is None else replace(target, settings={**settings, "base_url": url})
    return target


def _checked_settings(kind: str, entry: TargetEntry, told: Findings | None) -> Spelled:
    """The settings by their present names. Values with variables are checked when the variables are replaced."""
    block, findings = KINDS[kind].block(), replace((told or Findings()).of_file(), unknown=entry.unknown)
    spelled = present(block, entry.value, entry.location, findings)
    assert spelled is not None  # an entry is a mapping
    for key, value in spelled.values.items():
        with findings.catching():
            _check_value(key, value, spelled.at(entry.location, key))
    later = [key for key, value in spelled.values.items() if has_reference(value)]
    checked(block, spelled, entry.location, findings, later)
    if spelled.values.get("provider_batching") and not KINDS[kind].batches:
        findings.problem(spelled.at(entry.location, "provider_batching"), "is for targets of kind cli")
    if findings.problems:
        raise problems_error(findings.problems)
    if told is not None:
        told.notices |= findings.notices
    return spelled


def _check_value(key: str, value: Json, location: Location) -> None:
    """Raises UserError for a variable where there can be none, for a literal secret, and for a wrong command."""
    if key == _HEADERS:
        _check_headers(value, location)
    elif key == _ENVIRONMENT:
        _check_environment(value, location)
    elif key in _SECRETS and isinstance(value, list):
        for index, each in enumerate(value):
            _check_value(key, each, location.at(index))
    elif has_reference(value):
        if key in _LITERAL:
            raise location.error("can't be a variable of the environment")
        list(variables(value, location))
    elif key in _SECRETS and value is not None:
        raise location.error(
            "must be a variable of the environment, as ${{ OPENAI_API_KEY }}: keys don't belong in files"
        )
    elif key == _COMMAND:
        parse_command(value, location)


def _check_headers(value: Json, location: Location) -> None:
    list(variables(value, location))
    try:
        headers = read_headers(value) or ()
    except ValueError as error:
        raise location.error(str(error)) from None
    for header in headers:
        if header.is_secret and not has_reference(header.value):
            raise location.error(
                f"{header.name} must be a variable of the environment, as ${{{{ {_variable_name(header)} }}}}: keys don't belong in files"
            )


def _check_environment(value: Json, location: Location) -> None:
    list(variables(value, location))
    try:
        given = read_variables(value) or ()
    except ValueError as error:
        raise location.error(str(error)) from None
    for variable in given:
        name, _, content = variable.partition("=")
        if looks_secret(variable) and not has_reference(content):
            raise location.error(
                f"{name} must be a variable of the environment, as ${{{{ {name} }}}}, or have no value here: secrets don't belong in files"
            )


def _variable_name(header: Header) -> str:
    return header.name.upper().replace("-", "_")


def _named(option: Path, search_path: SearchPath) -> Path:
    path = search_path.here / option
    found = within(path) if path.is_dir() else path
    if found is None or not found.is_file():
        raise UserError(f"--targets: there is no targets file {'in ' if path.is_dir() else ''}{option}")
    return found


_KEYS = ("$schema", *TARGETS_KEYS)


Entries = dict[str, TargetEntry]


def located(folder: Path, search_path: SearchPath) -> Path | None:
    """The nearest targets file: in the folder, in one above it up to the root, or in the current one."""
    return next((path for each in search_path.folders(folder) if (path := within(each)) is not None), None)


def within(folder: Path) -> Path | None:
    """The targets file of a folder; without one, its configuration, if that has providers."""
    found = next((folder / name for name in TARGETS_FILES if (folder / name).is_file()), None)
    if found is None and (folder / CONFIG).is_file():
        with suppress(UserError):  # told where the configuration is read
            return None if configured(folder / CONFIG, "providers", "")[0] is None else folder / CONFIG
    return found


def read_targets(path: Path, name: str, unknown: UnknownKeys | None = None) -> Entries:
    """The entries of a targets file, their settings not checked yet. ``unknown``: takes keys that mean nothing. Raises UserError with a
    line for everything that is wrong."""
    value, location = configured(path, "providers", name) if path.parts[-2:] == CONFIG.parts else read_yaml(path, name)
    findings = Findings(unknown=unknown)
    if isinstance(value, list) and value:
        return _read_entries(value, location, findings, PROVIDERS)
    if not isinstance(value, Mapping):
        raise location.error(f"must be a mapping with targets, not {shown(value)}")
    for key in value:
        if key not in _KEYS and not key.startswith(ASIDE):
            findings.unknown_key(location.at(key), suggestion(key, _KEYS))
    given = [key for key in TARGETS_KEYS if key in value]
    if not given:
        findings.problem(location, "targets is required")
    if len(given) > 1:
        findings.problem(location.at(given[1]), f"is the same key as {given[0]}, which is given too")
    key = given[0] if given else None
    return _read_entries([] if key is None else value[key], location.at(*given[:1]), findings, key)


def _read_entries(value: Json, location: Location, findings: Findings, key: str | None) -> Entries:
    """The entries of a file's list. ``key``: that of the list; providers of version 5 become targets. Raises UserError if anything is
    wrong."""
    if key == PROVIDERS:
        value, location = as_targets(value, location, findings)
    entries = entries_of(value, location, findings)
    if findings.problems:
        raise problems_error(findings.problems)
    return entries


def entries_of(value: Json, location: Location, findings: Findings) -> Entries:
    """The entries of a mapping of targets by name, or of a list."""
    entries: Entries = {}
    if not isinstance(value, (list, Mapping)):
        findings.problem(location, f"must be a list or a mapping of targets, not {shown(value)}")
        return {}
    for entry in _entries(value, location, findings):
        if entry.name in entries:
            first = entries[entry.name].location
            findings.problem(
                entry.location, f"{shown(entry.name)} is the name of another target too, in line {first.line}"
            )
        entries.setdefault(entry.name, entry)
    return entries


def _entries(value: Any, location: Location, findings: Findings) -> Iterator[TargetEntry]:
    named = value.items() if isinstance(value, Mapping) else ((None, entry) for entry in value)
    for index, (key, entry) in enumerate(named):
        at = location.at(index if key is None else key)
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
            yield TargetEntry(name, entry, at, findings.unknown)


def identity(target: Target) -> str:
    """What makes a target another one: its kind and settings, as the person wrote them."""
    settings: Json = json.loads(json.dumps(dict(target.settings), sort_keys=True, default=str))
    return digest("target", {"kind": target.kind, "settings": settings}).hex()
