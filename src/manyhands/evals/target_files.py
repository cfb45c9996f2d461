"""Where targets are written down, and reading such a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.places import Place
from manyhands.core.settings import shown, suggestion
from manyhands.core.yaml_files import read_yaml
from manyhands.evals.file_references import Surroundings
from manyhands.evals.findings import Findings, told

NAMES = (
    *("targets.yaml", "targets.yml", ".agentv/targets.yaml", ".agentv/targets.yml"),
    *("agentv-targets.yaml", "agentv-targets.yml", "providers.yaml", "providers.yml", ".agentv/providers.yaml"),
)
"""What is looked for in each folder, in this order."""
LISTS = ("targets", "providers")
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
