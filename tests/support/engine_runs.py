"""Small runs for tests: programs as workloads, and runs in processes of their own, to be killed.

``python -m tests.support.engine_runs FOLDER SPEC`` makes (or resumes) a run of StepsWorkload and prints how it ended as one line of
JSON; SPEC is the workload's spec as JSON, with ``_limit_bytes`` (RLIMIT_FSIZE) besides.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError, ManyhandsError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, Execution, FinishedItem, Item, PlannedItem, RecordedStep, Workload
from manyhands.engine.journal.reader import JOURNAL
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.interpreters import python_command
from manyhands.runs.execution import RunResult, execute_run
from manyhands.runs.making import Opened, create_run
from manyhands.testing.steps_workload import StepsWorkload
from tests.support.forked import path_of_tests

Program = Callable[[Context], Awaitable[Outcome]]
RULES = ("counts_failures", "max_attempts_of", "stop_reason", "must_wait", "freed")
"""What a ProgramWorkload takes besides fields of Execution: methods of Workload (``max_attempts_of``: its ``max_attempts``)."""


class ProgramWorkload(Workload):
    """Runs every item by one Python function, in this process. ``keys``: the items; ``execution``: fields of Execution, and
    rules of the workload as functions (``RULES``)."""

    name = "program"

    def __init__(self, program: Program, keys: Iterable[str] = ("one",), **execution: Any) -> None:
        self.program = program
        self.keys = list(keys)
        self.spec: dict[str, Any] = {}
        self.payloads: dict[str, Any] = {}
        self._rules = {name: execution.pop(name) for name in RULES if name in execution}
        self._execution: dict[str, Any] = {"executor": "local", "workers": 1, "concurrency": 10, **execution}

    @property
    def execution(self) -> Execution:
        return Execution(**self._execution)

    def input_identity(self) -> str | None:
        return json.dumps([self.keys, self.payloads])

    def plan(self) -> Iterable[PlannedItem]:
        return (PlannedItem(key, self.payloads.get(key)) for key in self.keys)

    async def run(self, context: Context) -> Outcome:
        return await self.program(context)

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> tuple[str, str] | None:
        return ("lines.jsonl", finished.item.key) if finished.outcome.state is ItemState.COMPLETED else None

    @property
    def counts_failures(self) -> bool:
        return bool(self._rules.get("counts_failures"))

    def max_attempts(self, item: Item, failure: ItemError) -> int | None:
        found: int | None = self._ask("max_attempts_of", item, failure, otherwise=None)
        return found

    def stop_reason(self, item: Item, outcome: Outcome) -> str | None:
        found: str | None = self._ask("stop_reason", item, outcome, otherwise=None)
        return found

    def must_wait(self, item: Item) -> bool:
        return bool(self._ask("must_wait", item, otherwise=False))

    def freed(self) -> Sequence[int]:
        found: Sequence[int] = self._ask("freed", otherwise=())
        return found

    def _ask(self, rule: str, *about: Any, otherwise: Any) -> Any:
        return self._rules[rule](*about) if rule in self._rules else otherwise


def make_steps_run(folder: Path, spec: dict[str, Any]) -> StepsWorkload:
    """A run of StepsWorkload, made if it is not there yet."""
    workload = StepsWorkload(spec, folder)
    if not (folder / JOURNAL).exists():
        create_run(folder, workload.name, workload, version="test", notice=lambda text: None)
    return workload


def perform_steps_run(folder: Path, spec: dict[str, Any]) -> RunResult:
    """Make (or resume) a run of StepsWorkload and perform it in this process."""
    return run_on_loop(execute_run(Opened(folder, make_steps_run(folder, spec))))


def start_steps_run(folder: Path, spec: dict[str, Any]) -> subprocess.Popen[str]:
    """The like in a process of its own, in a session of its own."""
    return subprocess.Popen(
        python_command("tests.support.engine_runs", str(folder), json.dumps(spec)),
        env={**os.environ, "PYTHONPATH": path_of_tests()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def main() -> None:
    folder, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
    if limit := spec.pop("_limit_bytes", None):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        result = perform_steps_run(folder, spec)
    except ManyhandsError as error:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
        sys.exit(2)
    error_text = None if result.error is None else str(result.error)
    kind = type(result.error).__name__
    print(json.dumps({"ledger": result.ledger, "stopped": result.stopped, "error": error_text, "kind": kind}))
    sys.exit(result.exit_code)


if __name__ == "__main__":
    main()
