"""Commits shared by many, and what happens when the disk says no."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import StorageError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.redaction import protect
from manyhands.core.usage import Usage
from manyhands.engine.contract import PlannedItem
from manyhands.engine.journal.records import StepRow, pack
from manyhands.engine.journal.store import Store
from tests.support.clocks import ManualClock
from tests.support.engine_runs import perform_steps_run, start_steps_run


def make_store(folder: Path, items: int = 1) -> Store:
    folder.mkdir(exist_ok=True)
    store = Store(folder, SystemClock(), print)
    store.plan((PlannedItem(str(n), None) for n in range(items)), 1)
    return store


def step_row(item: int, seq: int = 0, scope: str = "") -> StepRow:
    blob = pack({"seq": seq})
    return StepRow(item, 1, scope, seq, "test", b"digest", blob, blob, Usage(calls=1, input_tokens=2), 1.0, 2.0)


async def test_concurrent_steps_share_commits(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.begin()
    await asyncio.gather(*(store.record(step_row(1, seq)) for seq in range(2000)))
    assert store.writer.commits < 200
    await store.end("finished")
    assert len(store.reader.steps(1, 1)) == 2000
    assert store.reader.usage() == Usage(calls=2000, input_tokens=4000)
    store.close()


async def test_whoever_waits_sees_the_row_on_disk(tmp_path: Path) -> None:
    store = make_store(tmp_path, 20)
    store.begin()

    async def one(item: int) -> None:
        for seq in range(10):
            await store.record(step_row(item, seq))
            assert len(store.reader.recorded_outputs(item, 1)) == seq + 1

    await asyncio.gather(*(one(item) for item in range(1, 21)))
    await store.end("finished")
    store.close()


async def test_items_that_begin_and_end_between_commits_are_entered_as_if_they_had_not(tmp_path: Path) -> None:
    store = make_store(tmp_path, 3)
    store.begin()
    done = asyncio.Event()
    store.start(1)
    await store.writer.committed()
    assert [row.state for row in store.reader.items()] == ["running", "pending", "pending"]
    store.start(2)
    store.settle(1, Outcome(ItemState.COMPLETED), lambda failure: None)
    store.settle(2, Outcome(ItemState.FAILED, cause=Cause.TIMEOUT), lambda failure: done.set())
    store.start(3)
    await asyncio.wait_for(done.wait(), 5)
    await store.end("finished")
    rows = list(store.reader.items())
    assert [(row.state, row.performances) for row in rows] == [("completed", 1), ("failed", 1), ("running", 1)]
    assert all(row.started_at is not None and row.started_at <= (row.finished_at or row.started_at) for row in rows)
    assert store.reader.counts() == {("completed", ""): 1, ("failed", "timeout"): 1, ("running", ""): 1}
    store.close()


async def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.begin()
    store.writer.submit("add_failures", (1, 1, 1.0, "timeout", "too long"))
    await store.end("finished")
    assert len(store.reader.failures(1)) == 1
    store.close()


@pytest.mark.parametrize("row", [("too", "few"), (1, 1, 1.0, "x", "lone surrogate \ud800"), (1, 2**70, 1.0, "x", "y")])
async def test_a_row_that_can_not_be_written_is_an_error_for_everyone_and_hangs_nobody(
    tmp_path: Path, row: tuple[Any, ...]
) -> None:
    store = make_store(tmp_path)
    store.begin()
    store.writer.submit("add_failures", row)
    with pytest.raises(StorageError):
        await asyncio.wait_for(store.writer.committed(), 5)
    with pytest.raises(StorageError):
        await asyncio.wait_for(store.record(step_row(1)), 5)
    await asyncio.wait_for(store.end("stopped"), 5)
    store.close()


def run_child(folder: Path, spec: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    child = start_steps_run(folder, spec)
    output, errors = child.communicate(timeout=60)
    assert output, errors
    return child.returncode, json.loads(output)


@pytest.mark.parametrize("executor", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_disk_that_fills_up_stops_the_run_with_one_line_and_loses_nothing(tmp_path: Path, executor: str) -> None:
    """A limit on file size stands for the disk: SQLite and the output files meet it as a write that fails."""
    folder, log = tmp_path / "run", tmp_path / "log"
    execution = {"executor": executor, "workers": 2, "concurrency": 10}
    spec = {"items": 3000, "steps": 3, "log": str(log), "execution": execution, "filler": 300}
    code, said = run_child(folder, {**spec, "_limit_bytes": 1_500_000})
    assert (code, said["kind"]) == (1, "StorageError")
    assert "\n" not in said["error"]
    assert "run.db" in said["error"]
    assert 0 < said["ledger"]["completed"] < 3000
    assert sum(said["ledger"][s] for s in ("completed", "pending")) == 3000
    paid = len(log.read_text().split())
    result = perform_steps_run(folder, {**spec, "execution": {"executor": "local", "concurrency": 20}})
    assert result.ledger["completed"] == 3000
    assert len(log.read_text().split()) - 9000 <= 20
    assert paid < 9000
    assert sum(len(path.read_text().splitlines()) for path in folder.glob("part_*")) == 3000


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Any:
    """A file system of 3 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    made = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    yield disk if made else None
    if made:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_disk_that_is_really_full(tiny_disk: Path | None) -> None:
    if tiny_disk is None:  # mounting needs rights that not everybody has; the test above stands in
        return
    folder = tiny_disk / "run"
    spec = {"items": 3000, "steps": 3, "execution": {"executor": "local", "concurrency": 10}, "filler": 300}
    code, said = run_child(folder, spec)
    assert code != 0
    # Either the journal meets it first, or a file of output does.
    assert "the disk is full" in said["error"] or "No space left on device" in said["error"]
    subprocess.run(["mount", "-o", "remount,size=64m", str(tiny_disk)], check=True)
    code, said = run_child(folder, spec)
    assert (code, said["ledger"]["completed"]) == (0, 3000)
    assert sum(len(path.read_text().splitlines()) for path in folder.glob("part_*")) == 3000


def test_a_folder_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError) as caught:
        perform_steps_run(tmp_path / "file" / "run", {"items": 1})
    assert "\n" not in str(caught.value)


async def test_a_session_that_is_killed_after_a_pause_has_worked_for_as_long_as_it_was_seen(tmp_path: Path) -> None:
    clock = ManualClock()
    store = Store(tmp_path, clock, print)
    store.begin()
    clock.time += 1
    store.pause()
    clock.time += 4
    store.go_on()
    await store.writer.committed()
    assert store.reader.working_seconds() == 1  # no heartbeat came
    await store.end("finished")
    store.close()


async def test_facts_that_come_while_items_are_executed_hold_no_secret(tmp_path: Path) -> None:
    protect(["a-secret-that-nobody-may-see"])
    store = make_store(tmp_path)
    store.begin()
    store.note_meta("fact", [{"reason": "no a-secret-that-nobody-may-see"}])
    await store.end("finished")
    assert store.reader.meta("fact") == [{"reason": "no [redacted]"}]
    store.close()


def test_what_is_written_together_is_written_as_a_whole(tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)

    def broken() -> None:
        with store.together():
            store.set_meta(fact=1)
            store.cancel_items([1], "for a test")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert (store.reader.meta("fact"), store.reader.counts()) == (None, {("pending", ""): 2})
    store.close()
