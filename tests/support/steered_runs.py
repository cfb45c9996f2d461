"""A run that is executed in this process, and orders to it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from manyhands.engine.journal.reader import JOURNAL
from manyhands.runs.execution import Controls, RunResult, execute_run
from manyhands.runs.making import Opened, create_run
from tests.support.engine_runs import ProgramWorkload, make_steps_run

EXECUTORS = [{"executor": "local", "workers": 1, "concurrency": 2}, {"executor": "processes", "workers": 2}]


class Site:
    """A run that is executed in this process, and orders to it."""

    def __init__(self, folder: Path, workload: Any) -> None:
        self.folder = folder
        self.controls = Controls()
        self._task: asyncio.Task[RunResult] = asyncio.create_task(
            execute_run(Opened(folder, workload), controls=self.controls)
        )

    async def order(self, command: str, **about: Any) -> dict[str, Any]:
        return await self.controls.steer({"command": command, "given_by": "tester@here", **about})

    async def change(self, **changes: Any) -> list[tuple[str, Any]]:
        answer = await self.order("set", changes=changes)
        assert "error" not in answer, answer
        return [(change["name"], change["now"]) for change in answer["changes"]]

    async def until(self, condition: Callable[[Counter[str]], object], seconds: float = 20.0) -> None:
        """Wait for a condition on how many items are in each state."""
        async with asyncio.timeout(seconds):
            while self.controls.progress() is None or not condition(self.states()):
                assert not self._task.done(), self._task
                await asyncio.sleep(0.01)

    async def until_in_flight(self, items: int, seconds: float = 20.0) -> None:
        """Wait until so many items are in flight, whether the journal says so or not."""
        async with asyncio.timeout(seconds):
            while self.in_flight != items:
                assert not self._task.done(), self._task
                await asyncio.sleep(0.01)

    @property
    def in_flight(self) -> int:
        """How many items are in flight."""
        progress = self.controls.progress()
        return progress.in_flight if progress else 0

    def states(self) -> Counter[str]:
        """How many items are in each state; none before the run has begun."""
        progress, states = self.controls.progress(), Counter[str]()
        for (state, _), items in progress.counts.items() if progress else ():
            states[state] += items
        return states

    async def ended(self, seconds: float = 60.0) -> RunResult:
        async with asyncio.timeout(seconds):
            return await self._task


def steps(folder: Path, execution: dict[str, Any], **spec: Any) -> Site:
    """A run of StepsWorkload that is made, if it is not there yet, and executed."""
    log = folder.parent / "log"
    log.touch()
    workload = make_steps_run(folder, {"items": 20, "steps": 3, "log": str(log), "execution": execution, **spec})
    return Site(folder, workload)


def program_run(folder: Path, workload: ProgramWorkload) -> Site:
    """The like of a function."""
    create_run(folder, "program", workload, version="test", notice=lambda text: None)
    return Site(folder, workload)


def effects(folder: Path) -> list[str]:
    """What the steps of a run did outside."""
    return (folder.parent / "log").read_text().split()


def total(result: RunResult) -> int:
    """How many items a run has, each in one state."""
    found = result.ledger
    states = (found["completed"], found["discarded"], found["failed"], found["cancelled"], found["pending"])
    assert sum(states) == found["items"]
    return found["items"]


@contextmanager
def slow_disk(folder: Path) -> Iterator[None]:
    """Within this, nothing that is written to the journal of a run is on disk yet."""
    with closing(sqlite3.connect(folder / JOURNAL, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
