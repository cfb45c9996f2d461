"""The datasets by the id of configurations and by the name of folders: ours in one table, those of other packages by entry point.

Also which of them the configuration of a run names, with their arguments there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from manyhands.core.errors import UserError
from manyhands.core.settings import problems, shown, suggestion
from manyhands.io.yaml_files import read_yaml
from manyhands.workloads.memory.datasets.base import BaseDataset, CountTokens, Rules, estimated_tokens
from manyhands.workloads.memory.datasets.configuration import OLDER, DatasetEntry
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS

PLUGINS = "manyhands.memory_datasets"
"""The entry point group: each entry names a subclass of ``datasets.base.BaseDataset``, under its id."""

_FOLDER = "manyhands.workloads.memory.datasets.builtin"
BUILTIN: Mapping[str, str] = {
    "names": "personal:Names",
    "name_list": "personal:NameList",
    "colours": "personal:Colours",
    "shopping": "shopping:Shopping",
    "locations": "locations:Locations",
    "locations_directions": "locations:LocationsDirections",
    "sallyanne": "sallyanne:SallyAnne",
    "jokes": "jokes:Jokes",
    "kv": "key_values:KeyValuePairs",
    "chapterbreak": "chapterbreak:ChapterBreak",
    "delayed_recall": "generated:DelayedRecall",
    "instruction_recall": "generated:InstructionRecall",
    "how_to_think": "generated:HowToThink",
    "conflicting_personal_info": "generated:ConflictingPersonalInformation",
    "prospective_memory": "instructions:ProspectiveMemory",
    "trigger_response": "instructions:TriggerResponse",
    "restaurant": "restaurant:Restaurant",
    "spy_meeting": "spy_meeting:SpyMeeting",
}
"""Module and class by id. One that is not used is not imported."""


def dataset_ids() -> list[str]:
    """All ids, ours first."""
    return list(dict.fromkeys((*BUILTIN, *_plugged())))


def dataset_class(dataset_id: str) -> type[BaseDataset]:
    """A dataset's class by id. Raises UserError, with the nearest id, if there is none, or if it comes from a package that can't be
    used."""
    if dataset_id in BUILTIN:
        module, _, name = BUILTIN[dataset_id].partition(":")
        found: type[BaseDataset] = getattr(import_module(f"{_FOLDER}.{module}"), name)
        return found
    if dataset_id in _plugged():
        return _plugin(dataset_id)
    raise UserError(f"unknown dataset {shown(dataset_id)}{suggestion(dataset_id, dataset_ids())}")


def class_named(name: str) -> type[BaseDataset]:
    """A dataset's class by the name that its folders have. Raises UserError, with the nearest name, if there is none."""
    classes = {each.default_name: each for each in map(dataset_class, dataset_ids())}
    if name not in classes:
        raise UserError(f"unknown name of a dataset {shown(name)}{suggestion(name, classes)}")
    return classes[name]


def create(
    dataset_id: str,
    arguments: Mapping[str, Any] | None = None,
    scoring: Rules = "mended",
    count_tokens: CountTokens = estimated_tokens,
) -> BaseDataset:
    """A dataset by id. ``arguments``: as a configuration gives them. Raises UserError with a line for each that is wrong."""
    return made_of(dataset_class(dataset_id), arguments, scoring, count_tokens)


def made_of(
    kind: type[BaseDataset],
    arguments: Mapping[str, Any] | None = None,
    scoring: Rules = "mended",
    count_tokens: CountTokens = estimated_tokens,
) -> BaseDataset:
    """A dataset of a class. Raises UserError with a line for each argument that is wrong."""
    try:
        return kind(kind.Arguments(**dict(arguments or {})), scoring, count_tokens)
    except ValidationError as error:
        lines = (line.replace("unknown setting", "unknown argument") for line in problems(kind.Arguments, error))
        raise UserError("\n".join(f"dataset {kind.id!r}: {line}" for line in lines)) from None


def dataset_of(entry: DatasetEntry, scoring: Rules, count_tokens: CountTokens) -> BaseDataset:
    """The dataset that an entry of a configuration describes. Raises UserError with a line for each problem: file, line, field."""
    universal = {"memory_span": entry.memory_span, "dataset_examples": entry.examples, "seed": entry.seed}
    try:
        return create(entry.id, {**entry.arguments, **universal}, scoring, count_tokens)
    except UserError as error:
        raise UserError("\n".join(entry.place.says(line) for line in str(error).splitlines())) from None


def _plugin(dataset_id: str) -> type[BaseDataset]:
    found = _plugged()[dataset_id]
    try:
        loaded = found.load()
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"the dataset plug-in {dataset_id!r} ({found.value}) can't be used: {line[:300]}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, BaseDataset)):
        raise UserError(f"the dataset plug-in {dataset_id!r} ({found.value}) is no subclass of BaseDataset")
    return loaded


@cache
def _plugged() -> Mapping[str, Any]:
    return {found.name: found for found in entry_points(group=PLUGINS)}


Configured = Mapping[str, tuple[type[BaseDataset], Mapping[str, Any] | UserError]]
"""Class and arguments of datasets, by the name that their folders have; or what is wrong with the arguments, if they can't be used."""


def configured_datasets(run: Path) -> Configured:
    """Those of a run's folder. A dataset that nobody knows, and one with keys of older versions of the format, is left out. Raises
    UserError for a file that is no YAML."""
    path = run / DEFINITIONS / CONFIGURATION
    content: Any = read_yaml(path)[0] if path.is_file() else None
    datasets = content.get("datasets") if isinstance(content, Mapping) else None
    entries = datasets.get("datasets") if isinstance(datasets, Mapping) else None
    common = datasets.get("args") if isinstance(datasets, Mapping) else None
    # What a dynamic test does follows from the seed.
    seeded = {"seed": common["seed"]} if isinstance(common, Mapping) and isinstance(common.get("seed"), int) else {}
    found: dict[str, tuple[type[BaseDataset], Mapping[str, Any] | UserError]] = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, Mapping):
            continue
        given = entry.get("args")
        arguments = {
            **seeded,
            **({str(name): value for name, value in given.items()} if isinstance(given, Mapping) else {}),
        }
        try:
            kind = dataset_class(str(entry.get("name")))
        except UserError:
            continue
        try:
            found.setdefault(made_of(kind, arguments).name, (kind, arguments))
        except UserError as error:
            if not set(arguments) & set(OLDER):
                found.setdefault(str(arguments.get("name") or kind.default_name), (kind, error))
    return found
