"""Modules that were documented under another name: the former names lead to the same modules, with a DeprecationWarning.

Nothing is imported before somebody asks for a former name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, cast
from warnings import warn

if TYPE_CHECKING:
    from importlib.abc import Loader

_DATASETS = "manyhands.workloads.memory.datasets"
FORMER: Mapping[str, str] = MappingProxyType(
    {
        "manyhands.engine.context": "manyhands.engine.old_contract",
        "manyhands.engine.workload": "manyhands.engine.old_contract",
        "manyhands.graders.entry": "manyhands.io.keys",
        "manyhands.graders.found": "manyhands.graders.protocol",
        "manyhands.memory.datasets.base": f"{_DATASETS}.base",
        "manyhands.memory.datasets.mentions": f"{_DATASETS}.answers.matching",
        "manyhands.memory.model": "manyhands.workloads.memory.conversation.definitions",
        "manyhands.memory.rescoring": "manyhands.workloads.memory.published.rescoring",
        "manyhands.memory.rule_judge": f"{_DATASETS}.registry",
        "manyhands.models.draws": "manyhands.core.digests",
        "manyhands.trajectories.tags": "manyhands.export.sharegpt",
        "manyhands.trajectories.turns": "manyhands.export.sharegpt_reading",
        f"{_DATASETS}.rule_judge": f"{_DATASETS}.registry",
    }
)
"""The module that is meant, by the former name. A name that is used today is never looked up here."""
_PACKAGES = frozenset({"manyhands.memory", "manyhands.memory.datasets", "manyhands.trajectories"})
"""Packages that are gone, and hold nothing but former names."""


class _FormerModule:
    """A loader; not of ``importlib.abc``, whose import alone would make every start of the program slower."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in FORMER:
            warn(f"{name} is now {FORMER[name]}", DeprecationWarning, stacklevel=2)
            sys.modules[name] = import_module(FORMER[name])  # the import system hands out what stands here


class FormerNames:
    """Finds modules by their former names (a finder of ``sys.meta_path``)."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in FORMER and fullname not in _PACKAGES:
            return None
        return ModuleSpec(fullname, cast("Loader", _FormerModule()), is_package=fullname in _PACKAGES)


def install() -> None:
    """Let former names be found, after everything else; once."""
    if not any(isinstance(finder, FormerNames) for finder in sys.meta_path):
        sys.meta_path.append(FormerNames())
