"""Which datasets the configuration of a run names, with their arguments there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.yaml_files import read_yaml
from manyhands.memory.configuration import OLDER
from manyhands.memory.dataset_registry import dataset_class, made_of
from manyhands.memory.datasets.base import BaseDataset
from manyhands.memory.places import CONFIGURATION, DEFINITIONS

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
