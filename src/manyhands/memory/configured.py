"""Which datasets the configuration of a run names, with their arguments there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.yaml_files import read_yaml
from manyhands.memory.dataset_registry import dataset_class, made_of
from manyhands.memory.datasets.base import BaseDataset
from manyhands.memory.places import CONFIGURATION, DEFINITIONS

Configured = Mapping[str, tuple[type[BaseDataset], Mapping[str, Any]]]
"""Class and arguments of datasets, by the name that their folders have."""


def configured_datasets(run: Path) -> Configured:
    """Those of a run's folder. What older versions of the format say of a dataset, and what nobody knows, is left out. Raises UserError for
    a file that is no YAML."""
    path = run / DEFINITIONS / CONFIGURATION
    content: Any = read_yaml(path)[0] if path.is_file() else None
    datasets = content.get("datasets") if isinstance(content, Mapping) else None
    entries = datasets.get("datasets") if isinstance(datasets, Mapping) else None
    found: dict[str, tuple[type[BaseDataset], Mapping[str, Any]]] = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, Mapping):
            continue
        given = entry.get("args")
        arguments = {str(name): value for name, value in given.items()} if isinstance(given, Mapping) else {}
        try:
            kind = dataset_class(str(entry.get("name")))
            found.setdefault(made_of(kind, arguments).name, (kind, arguments))
        except UserError:
            continue
    return found
