"""SIGKILL at random instants, of the owner and of workers: nothing finished is repeated, nothing recorded is paid twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import ManyhandsError
from manyhands.core.failures import Cause
from manyhands.engine.attempt import Claim, Ended, Failed
from manyhands.engine.contract import Item
from manyhands.engine.executors import wire
from manyhands.engine.executors.processes import ProcessExecutor
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.engine.journal.records import StepRow
from manyhands.engine.limits.shared import SharedLimits
from manyhands.runs.registry import workload_target
from tests.support.engine_runs import perform_steps_run, start_steps_run

STEPS = 5
ITEMS = 60
IN_FLIGHT = 8
KILLS = 4


def steps_spec(log: Path, executor: str, **extra: Any) -> dict[str, Any]:
    execution = {"executor": executor, "workers": 2, "concurrency": IN_FLIGHT // 2}
    return {"items": ITEMS, "steps": STEPS, "delay": 0.02, "log": str(log), "execution": execution, **extra}


def wait_until(condition: Any, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def effects(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


def completed(folder: Path) -> set[str]:
    if not (folder / JOURNAL).exists():
        return set()
    reader = JournalReader(folder)
    try:
        return {finished.item.key for finished in reader.finished("completed")}
    except ManyhandsError:  # killed before the tables were made
        return set()
    finally:
        reader.close()


def sorted_lines(folder: Path) -> dict[str, list[str]]:
    return {path.name: sorted(path.read_text().splitlines(keepends=True)) for path in folder.glob("part_*.jsonl")}


def descendants(process: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, last = {process}, 0
    while len(found) != last:
        last = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found - {process}


def is_alive(process: int) -> bool:
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=20)


@pytest.mark.parametrize("executor", [pytest.param("local", marks=pytest.mark.slow), "processes"])
def test_owner_killed_at_random_instants(tmp_path: Path, executor: str) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    spec = steps_spec(log, executor)
    instants = random.Random(executor)
    for _ in range(KILLS):
        before, known = len(effects(log)), completed(folder)
        child = start_steps_run(folder, spec)
        wait_until(lambda: len(effects(log)) > before or child.poll() is not None)  # noqa: B023 - called at once
        time.sleep(instants.uniform(0.0, 0.15))
        workers = descendants(child.pid)
        kill(child)
        wait_until(lambda: not any(map(is_alive, workers)), 5.0)  # noqa: B023 - called at once
        assert not {line.partition("/")[0] for line in effects(log)[before:]} & known
    left, before = completed(folder), len(effects(log))
    assert left
    assert len(left) < ITEMS, "the kills came too late to mean anything"
    child = start_steps_run(folder, spec)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert json.loads(output)["ledger"]["completed"] == ITEMS
    assert not {line.partition("/")[0] for line in effects(log)[before:]} & left

    counts = Counter(effects(log))
    assert set(counts) == {f"item-{item}/{step}" for item in range(ITEMS) for step in range(STEPS)}
    assert sum(counts.values()) - len(counts) <= KILLS * IN_FLIGHT
    perform_steps_run(tmp_path / "calm", {**spec, "delay": 0, "log": None, "execution": {"executor": "local"}})
    assert sorted_lines(folder) == sorted_lines(tmp_path / "calm")


def test_worker_killed_at_random_instants(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    child = start_steps_run(folder, steps_spec(log, "processes"))
    instants, kills = random.Random(3), 0
    for _ in range(3):
        before = len(effects(log))
        wait_until(lambda: len(effects(log)) > before + 5 or child.poll() is not None)  # noqa: B023 - called at once
        time.sleep(instants.uniform(0.0, 0.1))
        if workers := sorted(descendants(child.pid)):
            os.kill(instants.choice(workers), signal.SIGKILL)
            kills += 1
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert json.loads(output)["ledger"]["completed"] == ITEMS
    counts = Counter(effects(log))
    assert len(counts) == ITEMS * STEPS
    assert sum(counts.values()) - len(counts) <= kills * IN_FLIGHT // 2
    reader = JournalReader(folder)
    crashes = [failure.cause for number in range(1, ITEMS + 1) for failure in reader.failures(number)]
    reader.close()
    assert set(crashes) == {"worker_crash"}
    assert len(crashes) <= kills * IN_FLIGHT // 2


def test_an_item_that_kills_its_process_ends_failed_and_takes_no_other_along(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    spec = {
        "items": 12,
        "steps": 3,
        "delay": 0.05,
        "failures": {"item-2": ["die"]},
        "log": str(tmp_path / "log"),
        "execution": {"executor": "processes", "workers": 2, "concurrency": 4},
    }
    result = perform_steps_run(folder, spec)
    assert result.ledger["completed"] == 11
    assert result.ledger["by_cause"] == {"failed": {"worker_crash": 1}}
    assert result.exit_code == 1
    assert Counter(effects(tmp_path / "log"))["item-2/0"] == 3


def test_with_one_performance_allowed_the_innocent_still_survive(tmp_path: Path) -> None:
    spec = {
        "items": 6,
        "steps": 2,
        "delay": 0.05,
        "failures": {"item-0": ["die"]},
        "execution": {"executor": "processes", "workers": 1, "concurrency": 6, "max_attempts": 1},
    }
    assert perform_steps_run(tmp_path / "run", spec).ledger["by_cause"] == {"failed": {"worker_crash": 1}}


def test_workers_end_with_their_owner(tmp_path: Path) -> None:
    spec = steps_spec(tmp_path / "log", "processes", delay=30.0)
    child = start_steps_run(tmp_path / "run", spec)
    wait_until(lambda: len(effects(tmp_path / "log")) >= IN_FLIGHT)
    workers = descendants(child.pid)
    assert len(workers) == 2
    kill(child)
    wait_until(lambda: not any(map(is_alive, workers)), 5.0)


def test_a_workload_that_can_not_start_in_a_worker_stops_the_run_with_one_line(tmp_path: Path) -> None:
    spec = {"items": 4, "unusable": "no key", "execution": {"executor": "processes", "workers": 2, "concurrency": 1}}
    result = perform_steps_run(tmp_path / "run", spec)
    assert str(result.error) == "no key"
    assert result.ledger["pending"] == 4


def test_workers_that_die_before_they_are_ready_stop_the_run(tmp_path: Path) -> None:
    spec = {"items": 4, "unusable": "die", "execution": {"executor": "processes", "workers": 2, "concurrency": 1}}
    result = perform_steps_run(tmp_path / "run", spec)
    assert "before they are ready" in str(result.error)
    assert result.ledger["pending"] == 4


class Nothing:
    """A journal that records nothing."""

    async def record(self, row: StepRow) -> None:
        return


async def test_a_worker_that_hangs_beyond_the_time_limit_is_killed(tmp_path: Path) -> None:
    begin = wire.Begin(workload_target("steps"), {"blocks": {"b": 60.0}}, {}, str(tmp_path), 0, item_timeout=0.3)
    executor = ProcessExecutor(begin, "test", Nothing(), SharedLimits(), workers=1, concurrency=1, grace=0.3)
    began = time.monotonic()
    try:
        await executor.start()
        hung = await executor.execute(Claim(Item(1, "b", {"position": 0}), 1))
        assert isinstance(hung, Failed)
        assert hung.failure.cause is Cause.TIMEOUT
        assert isinstance(await executor.execute(Claim(Item(2, "a", {"position": 1}), 1)), Ended)
    finally:
        await executor.close()
    assert time.monotonic() - began < 15


async def test_a_worker_that_becomes_ready_gets_all_the_items_it_has_places_for(tmp_path: Path) -> None:
    begin = wire.Begin(workload_target("steps"), {"delay": 0.5}, {}, str(tmp_path), 0, item_timeout=None)
    executor = ProcessExecutor(begin, "test", Nothing(), SharedLimits(), workers=1, concurrency=20)
    ended: list[float] = []

    async def execute(number: int) -> None:
        assert isinstance(await executor.execute(Claim(Item(number, str(number), {"position": number}), 1)), Ended)
        ended.append(time.monotonic())

    try:
        await executor.start()
        await asyncio.gather(*(execute(number) for number in range(1, 21)))
    finally:
        await executor.close()
    assert max(ended) - min(ended) < 0.45
