"""Runs of evaluations for tests: files in a folder, performed in this process."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import loads
from manyhands.engine.contract import ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.execution import RunResult, execute_run
from manyhands.workloads.evals.making import open_eval
from manyhands.workloads.evals.results.reading import RESULTS
from manyhands.workloads.evals.results.summary import SUMMARY, exit_code
from manyhands.workloads.evals.settings import EvalSpec


@dataclass(frozen=True, slots=True)
class EvalRun:
    """A run that was performed. ``said``: the notices on the way; ``ungraded``: tests that nothing grades were allowed."""

    folder: Path
    result: RunResult
    said: list[str] = field(default_factory=list)
    ungraded: bool = False

    @property
    def summary(self) -> Any:
        return loads((self.folder / SUMMARY).read_bytes())

    @property
    def code(self) -> int:
        """What the command would have ended with."""
        return exit_code(self.result, self.summary, "any", ungraded=self.ungraded)

    def records(self) -> list[dict[str, Any]]:
        """What stands in ``results.jsonl``."""
        return [loads(line) for line in (self.folder / RESULTS).read_bytes().splitlines()]

    def record(self, test_id: str, target: str | None = None) -> dict[str, Any]:
        """The result of a test, by a target if there are several."""
        return next(each for each in self.records() if each["test_id"] == test_id and target in (None, each["target"]))

    def statuses(self) -> dict[str, str]:
        return {each["test_id"]: each["status"] for each in self.records()}

    def items(self) -> list[ItemRow]:
        """As the journal holds them."""
        with closing(JournalReader(self.folder)) as reader:
            return list(reader.items())

    def steps(self, key: str) -> list[tuple[str, str]]:
        """Scope and kind of each step of an item."""
        with closing(JournalReader(self.folder)) as reader:
            row = reader.item_by_key(key)
            assert row is not None
            return [(step.scope, step.kind) for step in reader.steps(row.number, row.attempt)]


async def perform_eval(folder: Path, name: str = "run", file: str = "suite.yaml", **settings: Any) -> EvalRun:
    """Perform ``file`` of a folder as the run ``name`` in its ``data``. Raises as ``open_eval`` and ``perform_run`` do."""
    said: list[str] = []
    given = {"eval_files": [str(folder / file)], "data_dir": str(folder / "data"), "run_name": name, **settings}
    options = EvalSpec.make(given)
    session = await open_eval(options, resume=options.resume, notice=said.append, environ=os.environ)
    result = await execute_run(session, notice=said.append)
    return EvalRun(session.folder, result, said, session.workload.prepared.options.allow_ungraded)
