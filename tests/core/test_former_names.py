"""Modules by the names that they had: the same modules, with a warning; and none is imported for that before it is asked for."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

from manyhands.former_names import FORMER

_DATASETS = "manyhands.workloads.memory.datasets"
DOCUMENTED = {
    "manyhands.engine.context": ("CallReport", "Context", "Effect", "Item", "Limits"),
    "manyhands.engine.workload": ("Execution", "FinishedItem", "PlannedItem", "RecordedStep", "RunReader", "Workload"),
    "manyhands.graders.entry": ("Entry", "key", "read"),
    "manyhands.graders.found": ("found", "all_or_nothing", "nothing_to_compare"),
    "manyhands.memory.datasets.base": ("BaseDataset", "DatasetArguments", "last_of", "some_of"),
    "manyhands.memory.datasets.mentions": ("mentions",),
    "manyhands.memory.model": ("Definition", "Evaluation", "Message", "Wait"),
    "manyhands.memory.rescoring": ("rescore",),
    "manyhands.memory.rule_judge": ("rule_judge",),
    "manyhands.models.draws": ("Draws",),
    "manyhands.trajectories.tags": ("unescape",),
    "manyhands.trajectories.turns": ("messages_of",),
    f"{_DATASETS}.rule_judge": ("rule_judge",),
}


def test_all_documented_names_are_known() -> None:
    assert set(FORMER) == set(DOCUMENTED)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_former_name_is_the_same_module(name: str) -> None:
    sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match=f"^{name} is now {FORMER[name]}$"):
        module = import_module(name)
    assert module is import_module(FORMER[name])
    assert module.__name__ == FORMER[name]
    for symbol in DOCUMENTED[name]:
        assert hasattr(module, symbol)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert import_module(name) is module  # said once


@pytest.mark.parametrize(
    "name", ["manyhands.memory.workload", "manyhands.memory.datasets.names", "manyhands.trajectory"]
)
def test_other_former_modules_are_gone(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"'{name}'"):
        import_module(name)


def test_the_warning_names_the_line_that_imports() -> None:
    program = "import manyhands, sys\nassert 'manyhands.core.digests' not in sys.modules\nfrom manyhands.models.draws import Draws"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stderr.startswith(
        "<string>:3: DeprecationWarning: manyhands.models.draws is now manyhands.core.digests"
    )
