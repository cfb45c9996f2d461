"""Providers as targets: ``id`` is the kind (``openai:MODEL``, ``exec:COMMAND``, ``cli``), ``label`` the name, ``config`` the settings.

A provider is a text (the name of a target, or a kind with a colon in it), a mapping with ``id``, or a mapping of one kind to the rest:
``{"openai:gpt-4.1": {label: fast}}``. Without a label its kind is its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.locations import Findings, Location
from manyhands.workloads.evals.evalfile.agentv5.given import Given
from manyhands.workloads.evals.evalfile.agentv5.rendering import with_present_variables

_EARLIER = ("provider", "name")
"""Keys that only targets of earlier versions have."""
_PREFIXES = ("chat", "responses", "messages")
_IDLE = {
    "delay": "--workers, or workers of the target, bounds how much is asked at once",
    "inputs": "",
}
_REFUSED = {
    "transform": "answers are graded as they are; let the target, or a script, change them",
    "environment": "write environment for the file or for a test",
}
_AGENTS = {"codex": "codex", "codex-sdk": "codex", "codex-app-server": "codex", "codex-desktop": "codex"}


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider that a file names or defines."""

    name: str
    location: Location
    definition: dict[str, Json] | None = None
    """As a target; None if it only names one."""
    hooks: Json = None
    prompts: tuple[str, ...] | None = None
    """The prompts that it is given, by id or label; None: all."""
    moved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys of the definition that stand elsewhere in its entry, and where."""


def is_provider(value: Any) -> bool:
    """Whether an entry of a list is a provider of this version, and no target of an earlier one."""
    if isinstance(value, str):
        return True
    if not isinstance(value, Mapping) or any(key in value for key in _EARLIER):
        return False
    return "id" in value or (bool(value) and all(isinstance(each, Mapping) for each in value.values()))


def read_providers(value: Json, location: Location, findings: Findings, *, names: bool = True) -> Iterator[Provider]:
    """The providers of a list, or of one entry. ``names``: whether a text without a colon is the name of a target, and not a kind."""
    several = isinstance(value, list)
    for index, entry in enumerate(value if several else [value]):
        at = location.at(index) if several else location
        if isinstance(entry, str) and entry.strip():
            text = entry.strip()
            yield Provider(text, at) if names and ":" not in text else _provider({"id": text}, at, findings)
        elif not isinstance(entry, Mapping):
            findings.problem(at, f"must be a provider: a text or a mapping, not {shown(entry)}")
        elif "id" in entry:
            yield _provider(entry, at, findings)
        else:
            yield from _of_kinds(entry, at, findings)


def as_targets(value: Json, location: Location, findings: Findings) -> tuple[Json, Location]:
    """The entries of a targets file with providers among them as targets, and their location. What is none of them stays as it is."""
    if not isinstance(value, list) or not any(is_provider(entry) for entry in value):
        return value, location
    found: list[Json] = []
    moved, lines = dict(location.moved), dict(location.lines)
    for index, entry in enumerate(value):
        at = location.at(index)
        if not is_provider(entry):
            moved[(*location.path, len(found))] = at.standing
            found.append(entry)
            continue
        for provider in read_providers(entry, at, findings, names=False):
            path = (*location.path, len(found))
            places = {path: provider.location} | {
                (*path, key): provider.location.at(*place) for key, place in provider.moved.items()
            }
            moved |= {to: place.standing for to, place in places.items()}
            lines |= {to: place.line for to, place in places.items() if place.line is not None}
            found.append(provider.definition or {})
    return found, Location(location.file, location.path, lines, moved)


def _of_kinds(entry: Mapping[str, Json], location: Location, findings: Findings) -> Iterator[Provider]:
    """The providers of a mapping of kinds to the rest."""
    if not entry:
        findings.problem(location, "id is required")
    for kind, rest in entry.items():
        if isinstance(rest, Mapping) and kind not in _EARLIER:
            yield _provider({**rest, "id": kind}, location.at(kind), findings)
        else:
            findings.problem(location, "id, the kind of provider, is required; label is its name")
            return


def _provider(entry: Mapping[str, Json], location: Location, findings: Findings) -> Provider:
    given = Given(entry, location, findings)
    kind, label = given.take("id"), given.take("label")
    for key, value in (("id", kind), ("label", label)):
        if value is not None and not (isinstance(value, str) and value.strip()):
            findings.problem(given.at(key), f"must be a text that is not empty, not {shown(value)}")
    kind = kind.strip() if isinstance(kind, str) else ""
    given.idle(_IDLE)
    given.refuse(_REFUSED)
    _check_runtime(given, findings)
    hooks, prompts = given.take("hooks"), given.take("prompts")
    config = given.mapping("config")
    rest = given.left
    spelled = {**_of_spec(kind), **config, **rest}
    name = label.strip() if isinstance(label, str) and label.strip() else kind
    moved = {key: ("config", key) for key in config if key not in rest} | {"name": ("label",), "provider": ("id",)}
    definition = _with_program({"name": name, **spelled})
    named = [prompts] if isinstance(prompts, str) else prompts
    only = tuple(map(str, named)) if isinstance(named, list) else None
    return Provider(
        name, location, {key: with_present_variables(part) for key, part in definition.items()}, hooks, only, moved
    )


def _check_runtime(given: Given, findings: Findings) -> None:
    runtime = given.take("runtime")
    mode = runtime.get("mode") if isinstance(runtime, Mapping) else runtime
    if mode not in (None, "host"):
        findings.problem(given.at("runtime"), f"{shown(mode)} is not supported; programs are run as host")


def _of_spec(kind: str) -> dict[str, Json]:
    """The kind of target, and the settings, that an id stands for."""
    backend, colon, spec = kind.partition(":")
    if not colon or kind.startswith(("file://", "package:")):
        return {"provider": _AGENTS.get(kind, kind)}
    if backend == "exec":
        return {"provider": "cli", "command": spec}
    head, inner, model = spec.partition(":")
    if backend == "agentv" and head == "codex-cli":
        return {"provider": "codex", **({"model": model} if inner else {})}
    if backend == "openai" and head in _AGENTS:
        return {"provider": _AGENTS[head], **({"model": model} if inner else {})}
    if inner and head in _PREFIXES:
        return {"provider": backend, "model": model, **({"api_format": head} if head != "messages" else {})}
    return {"provider": backend, "model": spec}


def _with_program(definition: dict[str, Json]) -> dict[str, Json]:
    """Of an agent whose command is a list, the program and its arguments apart."""
    command = definition.get("command")
    if definition.get("provider") == "cli" or not isinstance(command, list) or not command:
        return definition
    rest = {key: value for key, value in definition.items() if key != "command"}
    return {**rest, "executable": command[0], **({"args": command[1:]} if len(command) > 1 else {})}


def provider_names(value: Json, location: Location, findings: Findings) -> list[str]:
    """The names of providers that a test gives: one, or a list of them."""
    entries = value if isinstance(value, list) else [value]
    found = [entry.strip() for entry in entries if isinstance(entry, str) and entry.strip()]
    if len(found) < len(entries):
        findings.problem(location, "must be the label of a provider, or a list of them")
    return found
