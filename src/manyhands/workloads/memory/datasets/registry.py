"""The datasets by the id of configurations and by the name of folders: ours in one table, those of other packages by entry point.

Also which of them the configuration of a run names, with their arguments there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from manyhands.core.errors import UserError
from manyhands.core.settings import shown
from manyhands.core.text import suggestion
from manyhands.io.keys import plain_problem
from manyhands.io.plugins import load_plugin, plugins
from manyhands.workloads.memory.conversation.definitions import Ask
from manyhands.workloads.memory.datasets.answers.judging import ANSWERS, answers_by_rule, data_of
from manyhands.workloads.memory.datasets.base import (
    BaseDataset,
    CountTokens,
    DatasetArguments,
    JudgeRule,
    Rules,
    estimated_tokens,
)
from manyhands.workloads.memory.datasets.configuration import OLDER, DatasetEntry, recorded_configuration
from manyhands.workloads.memory.folders import CONFIGURATION, DEFINITIONS

PLUGINS = "manyhands.memory_datasets"
"""The entry point group: each entry names a subclass of ``datasets.base.BaseDataset``, under its id."""

_FOLDER = "manyhands.workloads.memory.datasets.builtin"
BUILTIN: Mapping[str, str] = {
    "names": "personal:Names",
    "name_list": "personal:NameList",
    "colours": "personal:Colours",
    "shopping": "lists:Shopping",
    "locations": "locations:Locations",
    "locations_directions": "locations:LocationsDirections",
    "sallyanne": "sallyanne:SallyAnne",
    "jokes": "jokes:Jokes",
    "kv": "lists:KeyValuePairs",
    "chapterbreak": "chapterbreak:ChapterBreak",
    "delayed_recall": "written_by_model:DelayedRecall",
    "instruction_recall": "written_by_model:InstructionRecall",
    "how_to_think": "written_by_model:HowToThink",
    "conflicting_personal_info": "written_by_model:ConflictingPersonalInformation",
    "prospective_memory": "instructions:ProspectiveMemory",
    "trigger_response": "instructions:TriggerResponse",
    "restaurant": "restaurant:Restaurant",
    "spy_meeting": "spy_meeting:SpyMeeting",
}
"""Module and class by id. One that is not used is not imported."""


def dataset_ids() -> list[str]:
    """All ids, ours first."""
    return list(dict.fromkeys((*BUILTIN, *plugins(PLUGINS))))


def dataset_class(dataset_id: str) -> type[BaseDataset]:
    """A dataset's class by id. Raises UserError, with the nearest id, if there is none, or if it comes from a package that can't be
    used."""
    if dataset_id in BUILTIN:
        module, _, name = BUILTIN[dataset_id].partition(":")
        found: type[BaseDataset] = getattr(import_module(f"{_FOLDER}.{module}"), name)
        return found
    if dataset_id in plugins(PLUGINS):
        return _plugin(dataset_id)
    raise UserError(f"unknown dataset {shown(dataset_id)}{suggestion(dataset_id, dataset_ids())}")


def class_named(name: str) -> type[BaseDataset]:
    """A dataset's class by the name that its folders have. Raises UserError, with the nearest name, if there is none."""
    classes = {each.default_name: each for each in map(dataset_class, dataset_ids())}
    if name not in classes:
        raise UserError(f"unknown name of a dataset {shown(name)}{suggestion(name, classes)}")
    return classes[name]


def reset_messages(datasets: Iterable[BaseDataset] = ()) -> dict[str, str]:
    """What takes back what a test told the agent, by the dataset's name: of all of ours, then of those of other packages among
    ``datasets``, so that a package that a run does not use changes nothing about it."""
    classes = sorted(map(dataset_class, BUILTIN), key=lambda each: each.default_name)
    classes += [type(each) for each in datasets if each.id not in BUILTIN]
    return {each.default_name: each.default_reset for each in classes if each.default_reset}


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
        lines = (_problem(kind.Arguments, detail) for detail in error.errors(include_url=False))
        raise UserError("\n".join(f"dataset {kind.id!r}: {line}" for line in lines)) from None


def _problem(model: type[DatasetArguments], detail: Mapping[str, Any]) -> str:
    if not detail["loc"]:
        return plain_problem(detail)
    name = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        return f"unknown argument {name}{suggestion(name, model.model_fields)}"
    if detail["type"] == "missing":
        return f"{name} is required"
    return f"{name} {plain_problem(detail)}, not {shown(detail['input'])}"


def dataset_of(entry: DatasetEntry, scoring: Rules, count_tokens: CountTokens) -> BaseDataset:
    """The dataset that an entry of a configuration describes. Raises UserError with a line for each problem: file, line, field."""
    universal = {"memory_span": entry.memory_span, "dataset_examples": entry.examples, "seed": entry.seed}
    try:
        return create(entry.id, {**entry.arguments, **universal}, scoring, count_tokens)
    except UserError as error:
        raise UserError("\n".join(entry.location.says(line) for line in str(error).splitlines())) from None


def _plugin(dataset_id: str) -> type[BaseDataset]:
    found = plugins(PLUGINS)[dataset_id]
    loaded = load_plugin(found, "dataset")
    if not (isinstance(loaded, type) and issubclass(loaded, BaseDataset)):
        raise UserError(f"the dataset plug-in {dataset_id!r} ({found.value}) is no subclass of BaseDataset")
    return loaded


def rule_judge(ask: Ask) -> str:
    """What rules answer in place of the model that judges, for trying things out without one. They understand nothing: an answer is right
    if the words that were expected are in it. A purpose for which no dataset has a rule gets an empty object."""
    rule = next((rules[ask.purpose] for rules in _judge_rules() if ask.purpose in rules), None)
    return "{}" if rule is None else json.dumps(rule(data_of(ask)), ensure_ascii=False)


def _judge_rules() -> Iterator[Mapping[str, JudgeRule]]:
    yield {ANSWERS: answers_by_rule}
    for dataset_id in dataset_ids():
        with suppress(UserError):  # a plug-in that can't be used has no rules
            yield dataset_class(dataset_id).judge_rules


Configured = Mapping[str, tuple[type[BaseDataset], Mapping[str, Any] | UserError]]
"""Class and arguments of datasets, by the name that their folders have; or what is wrong with the arguments, if they can't be used."""


def configured_datasets(run: Path) -> Configured:
    """Those of a run's folder. A dataset that nobody knows, and one with keys of older versions of the format, is left out. Raises
    UserError for a file that is no YAML."""
    recorded = recorded_configuration(run / DEFINITIONS / CONFIGURATION)
    seeded = {} if recorded.seed is None else {"seed": recorded.seed}  # what a dynamic test does follows from it
    found: dict[str, tuple[type[BaseDataset], Mapping[str, Any] | UserError]] = {}
    for name, own in recorded.datasets:
        arguments = {**seeded, **own}
        try:
            kind = dataset_class(name)
        except UserError:
            continue
        try:
            found.setdefault(made_of(kind, arguments).name, (kind, arguments))
        except UserError as error:
            if not set(arguments) & set(OLDER):
                found.setdefault(str(arguments.get("name") or kind.default_name), (kind, error))
    return found
