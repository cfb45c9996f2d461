"""Workloads that others wrote for the contract of version 0.1.0, as a package with an entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.old_contract import current
from manyhands.runs.making import create_run

PLUGIN = """
from contextlib import asynccontextmanager

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.context import Context, Effect
from manyhands.engine.workload import Execution, PlannedItem


class Greetings:
    name = "greetings"

    def __init__(self, spec, run_folder):
        self.spec, self.opened_here = spec, False

    @property
    def execution(self):
        return Execution(executor=self.spec["executor"], workers=1, concurrency=2, most_in_flight=2, **self.rules())

    def rules(self):
        ended = []

        def stops(item, outcome):
            ended.append(item.key)
            return "enough" if len(ended) == self.spec.get("enough") else None

        return {"tries": lambda item, failure: 3, "stops": stops}

    def input_identity(self):
        return "names"

    def plan(self):
        return (PlannedItem(name, None) for name in ("Ada", "Bob", "Eve"))

    @asynccontextmanager
    async def performing(self, *, replay=False):
        self.opened_here = True
        yield

    async def perform(self, context: Context):
        assert self.opened_here
        assert context.place == "/0"
        scope = context.scope("greeting")
        assert scope.place == "greeting/0"

        async def greet():
            return Effect(f"Hello {context.item.key}")

        said = await scope.step("greet", {}, greet)
        if context.item.key == "Eve":
            raise ItemError(Cause.TIMEOUT, "too slow")
        return Outcome(ItemState.COMPLETED, {"said": said}, ("said.jsonl", said))

    def describe_step(self, step):
        return [("said", step.output)]

    def render(self, finished, steps):
        return "said.jsonl", steps[-1].output

    def export(self, reader):
        (reader.folder / "exported").touch()

    def secrets(self):
        return {"a": "b"}

    def set_secrets(self, secrets):
        assert secrets == {"a": "b"}
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for PYTHONPATH, with the plug-in installed in it."""
    folder = tmp_path / "packages"
    information = folder / "greetings-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "greetings.py").write_text(PLUGIN)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[manyhands.workloads]\ngreetings = greetings:Greetings\n")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("greetings", None)


def resumed(packages: Path, folder: Path, spec: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Make a run of the plug-in, and have the command line execute it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it imports from modules that have other names now
        workload = current(import_module("greetings").Greetings(spec, folder))
    create_run(folder, "greetings", workload, version="test", notice=print)
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": path}
    words = [sys.executable, "-m", "manyhands", "resume", str(folder)]
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_it_is_executed_and_shown(packages: Path, tmp_path: Path, executor: str) -> None:
    folder = tmp_path / "run"
    ended = resumed(packages, folder, {"executor": executor})
    assert ended.returncode == 1, ended.stderr  # an item failed
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["ledger"]["completed"], summary["ledger"]["by_cause"]["failed"]) == (2, {"timeout": 1})
    assert sorted((folder / "said.jsonl").read_text().splitlines()) == ["Hello Ada", "Hello Bob"]
    assert (folder / "exported").exists()
    with closing(JournalReader(folder)) as reader:
        assert len(reader.failures(3)) == 3  # as its own rule says


def test_its_rules_stop_the_run(packages: Path, tmp_path: Path) -> None:
    ended = resumed(packages, tmp_path / "run", {"executor": "local", "enough": 1})
    assert "enough" in ended.stdout + ended.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ledger"]["pending"] >= 1
