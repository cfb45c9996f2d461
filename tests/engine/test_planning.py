"""Entering items: streamed, in order, and again when the input was edited."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, PlannedItem
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.engine.journal.store import Store
from manyhands.runs.execution import execute_run
from manyhands.runs.making import Opened, create_run
from tests.support.engine_runs import ProgramWorkload, perform_steps_run, start_steps_run


class Recorder:
    """A program that completes every item and keeps their keys."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    async def __call__(self, context: Context) -> Outcome:
        self.executed.append(context.item.key)
        return Outcome(ItemState.COMPLETED, line=("lines.jsonl", context.item.key))


async def execute(folder: Path, workload: ProgramWorkload, notices: list[str] | None = None) -> Any:
    notice = (notices if notices is not None else []).append
    if not folder.exists():
        create_run(folder, "program", workload, version="test", notice=notice)
    return await execute_run(Opened(folder, workload), notice=notice)


def lines(folder: Path) -> list[str]:
    return (folder / "lines.jsonl").read_text().split()


class Streamed(ProgramWorkload):
    """Items that are made one by one, and count how far planning runs ahead."""

    made = 0

    def plan(self) -> Iterator[PlannedItem]:
        for number in range(20_000):
            self.made += 1
            yield PlannedItem(f"item-{number}", {"number": number})


def test_many_items_are_planned_in_order_and_fast(tmp_path: Path) -> None:
    workload = Streamed(Recorder())
    began = time.monotonic()
    create_run(tmp_path / "run", "program", workload, version="test", notice=print)
    assert time.monotonic() - began < 5
    reader = JournalReader(tmp_path / "run")
    assert reader.counts() == {("pending", ""): 20_000}
    assert [row.key for row in reader.items()] == [f"item-{number}" for number in range(20_000)]
    reader.close()


async def test_items_are_claimed_in_the_order_of_the_input(tmp_path: Path) -> None:
    program, keys = Recorder(), [str(n) for n in range(300)]
    await execute(tmp_path / "run", ProgramWorkload(program, keys, concurrency=1))
    assert program.executed == keys


async def test_an_edited_input(tmp_path: Path) -> None:
    """New items are executed, removed ones named and cancelled, moved ones keep their results in the new order."""
    program, notices = Recorder(), list[str]()
    workload = ProgramWorkload(program, ["a", "b", "c"])
    await execute(tmp_path / "run", workload)
    workload.keys = ["new", "c", "a"]
    result = await execute(tmp_path / "run", workload, notices)
    assert program.executed == ["a", "b", "c", "new"]
    assert (result.ledger["items"], result.ledger["completed"]) == (4, 4)
    assert lines(tmp_path / "run") == ["c", "a", "b", "new"]
    assert any("no longer in the input" in notice for notice in notices)
    notices.clear()
    workload.keys = ["new", "c", "a", "newer"]
    await execute(tmp_path / "run", workload, notices)
    assert not any("no longer" in notice for notice in notices), "what was removed earlier is not named again"


async def test_an_edited_input_is_entered_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    program = Recorder()
    workload = ProgramWorkload(program, ["a", "b", "c"])
    await execute(tmp_path / "run", workload)
    edited = [PlannedItem("new", 1), PlannedItem("b", 2, afresh="edited"), PlannedItem("a", 3)]

    def broken() -> Iterator[PlannedItem]:
        yield from edited
        raise UserError("the rest can't be read")

    with closing(Store(tmp_path / "run", SystemClock(), print)) as store:
        before = [*store.reader.items()], store.reader.meta("planned")
        with pytest.raises(UserError, match="the rest"):
            store.replan(broken(), "now", fact=1)
        assert ([*store.reader.items()], store.reader.meta("planned"), store.reader.meta("fact")) == (*before, None)
        store.replan(edited, "now", fact=1)
        assert store.reader.meta("fact") == 1
        assert [(row.key, row.payload, row.state) for row in store.reader.items()][:3] == [
            ("new", 1, ItemState.PENDING), ("b", 2, ItemState.PENDING), ("a", 3, ItemState.COMPLETED),
        ]  # fmt: skip
        number = next(row.number for row in store.reader.items() if row.key == "b")
        assert [(each.attempt, each.reason) for each in store.reader.attempts(number)] == [(1, "edited")]
        assert [each.state for each in store.reader.earlier_outcomes(number)] == ["completed"]
        assert store.reader.left_input("completed") == 1


async def test_a_limit_leaves_what_is_behind_it_pending(tmp_path: Path) -> None:
    """Also what failed and is tried again is within it, and so is what an endpoint refused."""
    tries: list[str] = []

    async def program(context: Context) -> Outcome:
        tries.append(context.item.key)
        if context.item.key == "1" and tries.count("1") == 1:
            raise ItemError(Cause.WORKER_ERROR, "once", retry_after=0.0)
        return Outcome(ItemState.COMPLETED)

    workload = ProgramWorkload(program, [str(number) for number in range(600)], limit=300, concurrency=7)
    result = await execute(tmp_path / "run", workload)
    assert sorted(set(tries), key=int) == [str(number) for number in range(300)]
    assert (result.done, result.exit_code, result.stopped) == (True, 0, None)
    assert (result.ledger["pending"], result.ledger["by_cause"]) == (300, {"pending": {"beyond_limit": 300}})
    again = ProgramWorkload(program, workload.keys)
    assert (await execute(tmp_path / "run", again)).ledger["completed"] == 600


async def test_removed_items_without_an_end_are_cancelled_and_come_back_as_new(tmp_path: Path) -> None:
    async def refusing(context: Context) -> Outcome:
        raise ItemError(Cause.MODEL_REFUSED, "no")

    workload = ProgramWorkload(refusing, ["a", "b"])
    await execute(tmp_path / "run", workload)
    workload.program, workload.keys = Recorder(), ["a"]
    result = await execute(tmp_path / "run", workload)
    assert result.ledger["by_cause"] == {"cancelled": {"removed": 1}}
    assert result.exit_code == 0
    workload.keys = ["a", "b"]
    result = await execute(tmp_path / "run", workload)
    assert (result.ledger["completed"], result.ledger["cancelled"]) == (2, 0)
    reader = JournalReader(tmp_path / "run")
    row = reader.item("b")
    reader.close()
    assert row is not None
    assert (row.reason, row.cause, row.message) == (None, None, None)


async def test_what_a_person_cancelled_does_not_count_once_it_has_left_the_input(tmp_path: Path) -> None:
    workload = ProgramWorkload(Recorder(), ["a", "b"])
    await execute(tmp_path / "run", workload)
    with closing(Store(tmp_path / "run", SystemClock(), print)) as store:
        store.reopen_items([2], "for a test")
        assert store.cancel_items([1, 2], "cancelled by a person") == 1
    assert (await execute(tmp_path / "run", workload)).exit_code == 1
    workload.keys = ["a"]
    result = await execute(tmp_path / "run", workload)
    assert (result.ledger["by_cause"], result.exit_code) == ({"cancelled": {"removed": 1}}, 0)
    workload.keys = ["a", "b"]
    assert (await execute(tmp_path / "run", workload)).ledger["completed"] == 2


async def test_an_input_that_is_gone_does_not_stop_a_resume(tmp_path: Path) -> None:
    class Gone(ProgramWorkload):
        def input_identity(self) -> str | None:
            return None

    program, notices = Recorder(), list[str]()
    create_run(tmp_path / "run", "program", ProgramWorkload(program, ["a"]), version="test", notice=print)
    assert (await execute(tmp_path / "run", Gone(program, []), notices)).ledger["completed"] == 1
    assert any("not there any more" in notice for notice in notices)


@pytest.mark.parametrize("distance", [1, 300, 6000])
def test_two_items_with_one_key_are_refused_and_leave_nothing(tmp_path: Path, distance: int) -> None:
    keys = ["same", *(str(n) for n in range(distance - 1)), "same"]
    with pytest.raises(UserError, match="the same key: same"):
        create_run(tmp_path / "run", "program", ProgramWorkload(Recorder(), keys), version="test", notice=print)
    assert not (tmp_path / "run").exists()


async def test_a_planning_that_failed_half_way_through_an_edit_is_undone_by_the_next(tmp_path: Path) -> None:
    program = Recorder()
    keys = [str(n) for n in range(7000)]
    workload = ProgramWorkload(program, keys, concurrency=100)
    await execute(tmp_path / "run", workload)
    before = lines(tmp_path / "run")
    workload.keys = [*reversed(keys), "6999"]
    with pytest.raises(UserError, match="same key"):
        await execute(tmp_path / "run", workload)
    workload.keys = keys
    result = await execute(tmp_path / "run", workload)
    assert (result.ledger["completed"], len(program.executed)) == (7000, 7000)
    assert sorted(lines(tmp_path / "run")) == sorted(before)
    reader = JournalReader(tmp_path / "run")
    assert [row.key for row in reader.items()] == keys
    reader.close()


@pytest.mark.parametrize("edited", [False, True])
def test_a_crash_while_planning(tmp_path: Path, edited: bool) -> None:
    folder = tmp_path / "run"
    keys = [f"item-{number}" for number in range(60_000)]
    spec = {"items": 60_000, "steps": 1, "lines": False, "execution": {"executor": "local", "concurrency": 500}}
    child = start_steps_run(folder, spec)
    for _ in range(2000):
        if (folder / JOURNAL).exists() and planned(folder):
            break
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=20)
    assert 0 < planned(folder) < 60_000, "the kill came too late to mean anything"
    if edited:
        spec["items"] = keys[1000:1500]
    else:
        spec["items"] = 8000
    result = perform_steps_run(folder, spec)
    assert result.ledger["completed"] == (500 if edited else 8000)
    assert result.ledger["completed"] + result.ledger["cancelled"] == result.ledger["items"]
    assert result.exit_code == 0


def planned(folder: Path) -> int:
    reader = JournalReader(folder)
    try:
        return sum(reader.counts().values())
    except Exception:  # noqa: BLE001 - the tables may not be there yet
        return 0
    finally:
        reader.close()


async def test_items_that_ended_elsewhere_are_entered_with_their_outcome(tmp_path: Path) -> None:
    class Adopting(ProgramWorkload):
        def plan(self) -> Iterator[PlannedItem]:
            yield PlannedItem("old", None, Outcome(ItemState.COMPLETED, {"x": 1}, ("lines.jsonl", "old")))
            yield PlannedItem("new", None)

    program = Recorder()
    result = await execute(tmp_path / "run", Adopting(program))
    assert program.executed == ["new"]
    assert result.ledger["completed"] == 2
    assert lines(tmp_path / "run") == ["old", "new"]


async def test_keys_of_any_text(tmp_path: Path) -> None:
    keys = ["ü", "a/b", "with space", "'; DROP TABLE items; --", "\ud800", "", "0", "²", "9" * 32]
    program = Recorder()
    await execute(tmp_path / "run", ProgramWorkload(program, keys))
    assert len(program.executed) == len(keys)
    reader = JournalReader(tmp_path / "run")
    assert {key for key in keys if reader.item(key) is not None} >= {"ü", "²", "9" * 32}
    reader.close()


async def test_payloads_survive_exactly(tmp_path: Path) -> None:
    payload = {"big": 2**80, "text": "\ud800 ü\n", "nested": [None, True, 1.5, {"a": []}]}
    seen = []

    async def program(context: Context) -> Outcome:
        seen.append(context.item.payload)
        return Outcome(ItemState.COMPLETED)

    workload = ProgramWorkload(program, ["a"])
    workload.payloads = {"a": payload}
    await execute(tmp_path / "run", workload)
    assert seen == [payload]
    assert json.dumps(seen[0]) == json.dumps(payload)
