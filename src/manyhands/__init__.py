"""manyhands: thousands of agent tasks on one machine; after a crash, at most the calls in flight are made again.

The public names are imported when they are first used, so that the command line starts at once.
"""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"]:  # python -m manyhands, about to begin: the current folder is in front of everything else
    from manyhands.processes.interpreters import leave_current_folder

    leave_current_folder()

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manyhands.core import VERSION
from manyhands.former_names import install

__version__ = VERSION
install()

if TYPE_CHECKING:
    from manyhands.core.errors import ManyhandsError, RunError, StorageError, ToolError, UserError
    from manyhands.runs.execution import Controls, RunResult
    from manyhands.runs.progress import Progress
    from manyhands.tools.registry import tool
    from manyhands.workloads.evals.in_python.evaluate import evaluate, evaluate_async
    from manyhands.workloads.evals.in_python.evaluation import EvalCounts, Evaluation, EvaluationFailed
    from manyhands.workloads.evals.results.result_lines import TestResult
    from manyhands.workloads.trajectories.batch_runner import BatchRunner, Callbacks, InvalidBatch, MissingDataset

_WHERE = {
    "BatchRunner": "manyhands.workloads.trajectories.batch_runner",
    "Callbacks": "manyhands.workloads.trajectories.batch_runner",
    "Controls": "manyhands.runs.execution",
    "EvalCounts": "manyhands.workloads.evals.in_python.evaluation",
    "Evaluation": "manyhands.workloads.evals.in_python.evaluation",
    "EvaluationFailed": "manyhands.workloads.evals.in_python.evaluation",
    "InvalidBatch": "manyhands.workloads.trajectories.batch_runner",
    "ManyhandsError": "manyhands.core.errors",
    "MissingDataset": "manyhands.workloads.trajectories.batch_runner",
    "Progress": "manyhands.runs.progress",
    "RunError": "manyhands.core.errors",
    "RunResult": "manyhands.runs.execution",
    "StorageError": "manyhands.core.errors",
    "TestResult": "manyhands.workloads.evals.results.result_lines",
    "ToolError": "manyhands.core.errors",
    "UserError": "manyhands.core.errors",
    "evaluate": "manyhands.workloads.evals.in_python.evaluate",
    "evaluate_async": "manyhands.workloads.evals.in_python.evaluate",
    "tool": "manyhands.tools.registry",
}

__all__ = [
    "BatchRunner",
    "Callbacks",
    "Controls",
    "EvalCounts",
    "Evaluation",
    "EvaluationFailed",
    "InvalidBatch",
    "ManyhandsError",
    "MissingDataset",
    "Progress",
    "RunError",
    "RunResult",
    "StorageError",
    "TestResult",
    "ToolError",
    "UserError",
    "evaluate",
    "evaluate_async",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
