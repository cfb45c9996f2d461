"""Ending a run on request: what is in flight ends and is recorded, nothing new begins."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, Effect
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.execution import Controls, RunResult, execute_run
from manyhands.runs.making import Opened, create_run
from manyhands.runs.progress import Progress
from tests.support.engine_runs import ProgramWorkload, make_steps_run


class Calls:
    """A program of three slow steps, which counts how many began and ended."""

    def __init__(self, seconds: float = 0.1) -> None:
        self.seconds = seconds
        self.begun = 0
        self.ended = 0
        self.first = asyncio.Event()

    async def __call__(self, context: Context) -> Outcome:
        for number in range(3):
            await context.step("call", number, self._call)
        return Outcome(ItemState.COMPLETED, line=("lines.jsonl", context.item.key))

    async def _call(self) -> Effect:
        self.begun += 1
        self.first.set()
        await asyncio.sleep(self.seconds)
        self.ended += 1
        return Effect(None)


def recorded_steps(folder: Path) -> int:
    reader = JournalReader(folder)
    try:
        return sum(len(reader.recorded_outputs(row.number, row.attempt)) for row in reader.items())
    finally:
        reader.close()


async def execute(folder: Path, workload: ProgramWorkload, **options: Any) -> RunResult:
    if not folder.exists():
        create_run(folder, "program", workload, version="test", notice=lambda text: None)
    return await execute_run(Opened(folder, workload), **options)


async def test_a_stop_finishes_the_steps_in_flight_and_begins_nothing(tmp_path: Path) -> None:
    program, controls = Calls(), Controls()
    workload = ProgramWorkload(program, [str(n) for n in range(30)], concurrency=10)
    running = asyncio.create_task(execute(tmp_path / "run", workload, controls=controls))
    await program.first.wait()
    await asyncio.sleep(0.02)
    controls.stop()
    result = await running
    assert (program.begun, program.ended, recorded_steps(tmp_path / "run")) == (10, 10, 10)
    assert (result.ledger["pending"], result.interrupted, result.exit_code) == (30, True, 130)
    last = result.summary["last_session"]
    assert last is not None
    assert last["ending"] == "stopped: interrupted"
    result = await execute(tmp_path / "run", workload)
    assert (result.exit_code, program.begun) == (0, 90)


async def test_a_second_stop_ends_at_once_and_loses_nothing_recorded(tmp_path: Path) -> None:
    program, controls = Calls(seconds=30.0), Controls()
    workload = ProgramWorkload(program, ["a", "b"])
    running = asyncio.create_task(execute(tmp_path / "run", workload, controls=controls))
    await program.first.wait()
    controls.stop()
    began = time.monotonic()
    controls.stop()
    result = await running
    assert time.monotonic() - began < 15
    assert (result.ledger["pending"], result.exit_code) == (2, 130)
    program.seconds = 0
    assert (await execute(tmp_path / "run", workload)).ledger["completed"] == 2


@pytest.mark.parametrize("instant", [0.0, 0.002, 0.004, 0.008, 0.016])
async def test_stops_at_once_at_any_instant_leave_whole_files(tmp_path: Path, instant: float) -> None:
    program, controls = Calls(seconds=0.0), Controls()
    workload = ProgramWorkload(program, [str(n) for n in range(100)])
    running = asyncio.create_task(execute(tmp_path / "run", workload, controls=controls))
    await program.first.wait()
    await asyncio.sleep(instant)
    controls.stop()
    controls.stop()
    result = await running
    file = tmp_path / "run" / "lines.jsonl"
    lines = file.read_text().split() if file.exists() else []
    assert len(lines) == result.ledger["completed"]
    await execute(tmp_path / "run", workload)
    assert Counter(file.read_text().split()) == Counter(str(n) for n in range(100))


async def test_a_stop_before_the_run_begins_performs_nothing(tmp_path: Path) -> None:
    program, controls = Calls(), Controls()
    controls.stop()
    result = await execute(tmp_path / "run", ProgramWorkload(program), controls=controls)
    assert (program.begun, result.exit_code) == (0, 130)


async def test_a_stop_while_items_wait_for_their_time_ends_at_once(tmp_path: Path) -> None:
    failed, controls = asyncio.Event(), Controls()

    async def program(context: Context) -> Outcome:
        failed.set()
        raise ItemError(Cause.RATE_LIMIT, "later")

    running = asyncio.create_task(execute(tmp_path / "run", ProgramWorkload(program), controls=controls))
    await failed.wait()
    await asyncio.sleep(0.05)
    controls.stop()
    result = await asyncio.wait_for(running, 5)
    assert (result.ledger["pending"], result.exit_code) == (1, 130)


@pytest.mark.parametrize("stops", [1, 2])
async def test_a_stop_of_worker_processes(tmp_path: Path, stops: int) -> None:
    log, controls = tmp_path / "log", Controls()
    execution = {"executor": "processes", "workers": 2, "concurrency": 3}
    spec = {"items": 20, "steps": 5, "delay": 0.1, "log": str(log), "execution": execution}
    workload = make_steps_run(tmp_path / "run", spec)
    running = asyncio.create_task(execute_run(Opened(tmp_path / "run", workload), controls=controls))
    while not log.exists():
        await asyncio.sleep(0.01)
    for _ in range(stops):
        controls.stop()
    began = time.monotonic()
    result = await running
    assert time.monotonic() - began < 5
    assert result.exit_code == 130
    executed = len(log.read_text().split())
    assert executed <= 12
    if stops == 1:
        assert recorded_steps(tmp_path / "run") == executed
    spec["delay"] = 0
    assert (await execute_run(Opened(tmp_path / "run", make_steps_run(tmp_path / "run", spec)))).ledger[
        "completed"
    ] == 20
    assert len(log.read_text().split()) <= 100 + (6 if stops == 2 else 0)


async def test_cancelling_the_run_from_outside_leaves_it_resumable(tmp_path: Path) -> None:
    program = Calls(seconds=30.0)
    workload = ProgramWorkload(program, ["a", "b"])
    running = asyncio.create_task(execute(tmp_path / "run", workload))
    await program.first.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    program.seconds = 0
    assert (await execute(tmp_path / "run", workload)).exit_code == 0


async def test_a_progress_callback_that_breaks_stops_the_run(tmp_path: Path) -> None:
    program = Calls(seconds=0.05)

    def broken(progress: Progress) -> None:
        raise RuntimeError("a defect of the caller")

    workload = ProgramWorkload(program, [str(n) for n in range(100)], concurrency=1)
    with pytest.raises(RuntimeError, match="a defect of the caller"):
        await execute(tmp_path / "run", workload, on_progress=broken)
    assert program.begun < 10
    assert (await execute(tmp_path / "run", ProgramWorkload(program, workload.keys, concurrency=100))).exit_code == 0


class NeverStarted:
    """An executor that has no machine to start workers on."""

    def __init__(self) -> None:
        self.begun, self.given_up = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()


async def test_a_stop_does_not_wait_for_workers_to_be_started() -> None:
    controls, executor = Controls(), NeverStarted()
    async with asyncio.timeout(20):
        starting = asyncio.create_task(controls.started(executor))  # type: ignore[arg-type]
        await executor.begun.wait()
        controls.stop()
        await starting
    assert executor.given_up.is_set()
