"""Small runs for tests: programs as workloads, and runs in processes of their own, to be killed.

``python -m manyhands.testing.engine_runs FOLDER SPEC`` makes (or resumes) a run of StepsWorkload and prints how it ended as one line of
JSON; SPEC is the workload's spec as JSON, with ``_limit_bytes`` (RLIMIT_FSIZE) besides.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from manyhands.core.errors import ManyhandsError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, Execution, FinishedItem, PlannedItem, RecordedStep, RunReader
from manyhands.engine.journal.reader import JOURNAL
from manyhands.processes.event_loop import run_on_loop
from manyhands.processes.interpreters import python_command
from manyhands.runs.execution import RunResult, create_run, perform_run
from manyhands.testing.steps_workload import StepsWorkload

Program = Callable[[Context], Awaitable[Outcome]]


class ProgramWorkload:
    """Performs every item by one Python function, in this process. ``keys``: the items."""

    name = "program"

    def __init__(self, program: Program, keys: Iterable[str] = ("one",), **execution: Any) -> None:
        self.program = program
        self.keys = list(keys)
        self.spec: dict[str, Any] = {}
        self.payloads: dict[str, Any] = {}
        self._execution: dict[str, Any] = {"executor": "local", "workers": 1, "concurrency": 10, **execution}

    @property
    def execution(self) -> Execution:
        return Execution(**self._execution)

    def input_identity(self) -> str | None:
        return json.dumps([self.keys, self.payloads])

    def plan(self) -> Iterable[PlannedItem]:
        return (PlannedItem(key, self.payloads.get(key)) for key in self.keys)

    @asynccontextmanager
    async def performing(self, *, replay: bool = False) -> AsyncIterator[None]:
        yield

    async def perform(self, context: Context) -> Outcome:
        return await self.program(context)

    def describe_step(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        return [(step.kind, str(step.output))]

    def render(self, finished: FinishedItem, steps: Sequence[RecordedStep]) -> tuple[str, str] | None:
        return ("lines.jsonl", finished.item.key) if finished.outcome.state is ItemState.COMPLETED else None

    def export(self, reader: RunReader) -> None:
        return

    def secrets(self) -> dict[str, str]:
        return {}

    def set_secrets(self, secrets: Mapping[str, str]) -> None:
        return


def make_steps_run(folder: Path, spec: dict[str, Any]) -> StepsWorkload:
    """A run of StepsWorkload, made if it is not there yet."""
    workload = StepsWorkload(spec, folder)
    if not (folder / JOURNAL).exists():
        create_run(folder, workload.name, workload, version="test", notice=lambda text: None)
    return workload


def perform_steps_run(folder: Path, spec: dict[str, Any]) -> RunResult:
    """Make (or resume) a run of StepsWorkload and perform it in this process."""
    return run_on_loop(perform_run(folder, make_steps_run(folder, spec)))


def start_steps_run(folder: Path, spec: dict[str, Any]) -> subprocess.Popen[str]:
    """The like in a process of its own, in a session of its own."""
    return subprocess.Popen(
        python_command("manyhands.testing.engine_runs", str(folder), json.dumps(spec)),
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
