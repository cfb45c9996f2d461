"""Orders to a run that is executed in this process: pause, concurrency, items again, cancelled items."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import CallReport, Context, Effect, RunReader
from manyhands.engine.executors.processes import WORKER
from manyhands.engine.journal.reader import JournalReader
from manyhands.engine.journal.store import Store
from tests.support.engine_runs import ProgramWorkload
from tests.support.steered_runs import EXECUTORS, effects, program_run, steps, total


@pytest.mark.parametrize("execution", EXECUTORS, ids=lambda each: each["executor"])
async def test_in_a_pause_no_step_begins_and_time_limits_stand_still(tmp_path: Path, execution: dict[str, Any]) -> None:
    began = monotonic()
    site = steps(tmp_path / "run", {**execution, "item_timeout": 1.5}, items=6, delay=0.15)
    await site.until(lambda counts: counts["completed"] >= 1)
    assert await site.change(pause=True) == [("paused", None)]
    assert await site.change(pause=True) == []
    await asyncio.sleep(0.5)
    begun = effects(site.folder)
    await asyncio.sleep(2.0)
    assert effects(site.folder) == begun
    assert await site.change(go_on=True) == [("gone on", None)]
    result = await site.ended()
    assert (total(result), result.ledger["completed"]) == (6, 6)
    assert Counter(effects(site.folder)).most_common(1)[0][1] == 1
    assert result.summary["working_seconds"] < monotonic() - began - 2.0  # the pause is not counted
    with closing(JournalReader(site.folder)) as reader:
        assert [order.details["changes"][0]["name"] for order in reader.orders(9)] == ["gone on", "paused"]


@pytest.mark.parametrize("execution", EXECUTORS, ids=lambda each: each["executor"])
async def test_more_and_fewer_items_are_in_flight(tmp_path: Path, execution: dict[str, Any]) -> None:
    site = steps(tmp_path / "run", execution, items=60, delay=0.1)
    await site.until(lambda counts: counts["completed"] >= 1)
    assert await site.change(max_concurrency=13) == [("max_concurrency", 13)]
    await site.until(lambda counts: counts["running"] == 13)
    await site.change(max_concurrency=3)
    await site.until(lambda counts: counts["running"] <= 3)
    await site.change(max_concurrency=50)
    result = await site.ended()
    assert (total(result), result.ledger["completed"]) == (60, 60)
    with closing(JournalReader(site.folder)) as reader:
        assert reader.meta("spec")["execution"]["max_in_flight"] == 50


async def test_one_item_a_process_grows_by_processes(tmp_path: Path) -> None:
    execution = {"executor": "processes", "workers": 1, "one_item_a_process": True}
    site = steps(tmp_path / "run", execution, items=12, delay=0.2)
    await site.until(lambda counts: counts["completed"] >= 1)
    await site.change(max_concurrency=4)
    await site.until(lambda counts: counts["running"] == 4)
    assert (await site.ended()).ledger["completed"] == 12


@pytest.mark.parametrize("execution", EXECUTORS, ids=lambda each: each["executor"])
async def test_cancelled_items_end_and_their_steps_stop(tmp_path: Path, execution: dict[str, Any]) -> None:
    site = steps(tmp_path / "run", execution, items=12, steps=2, delay=0.05)
    await site.until(lambda counts: counts["completed"] >= 1)
    await site.change(pause=True)
    answer = await site.order("cancel", numbers=list(range(1, 13)), firm=False, select="all")
    assert 0 < answer["items"] < 12  # those that had ended are none of them
    await site.change(go_on=True)
    result = await site.ended()
    assert total(result) == 12
    assert result.ledger["pending"] == 0
    assert result.ledger["by_cause"]["cancelled"] == {"cancelled": result.ledger["cancelled"]}
    assert result.ledger["cancelled"] >= 8
    assert result.exit_code == 1


@pytest.mark.parametrize("execution", EXECUTORS, ids=lambda each: each["executor"])
async def test_what_is_stuck_is_stopped_at_once(tmp_path: Path, execution: dict[str, Any]) -> None:
    site = steps(tmp_path / "run", execution, items=2, steps=1, delay=60.0)
    await site.until(lambda counts: counts["running"] == 2)
    await asyncio.sleep(0.3)
    await site.order("cancel", numbers=[1, 2], firm=True)
    async with asyncio.timeout(10):
        result = await site.ended()
    assert (total(result), result.ledger["cancelled"]) == (2, 2)
    site = steps(tmp_path / "run", execution, items=2, steps=1)
    assert (await site.ended()).ledger["cancelled"] == 2


async def test_items_are_executed_again_in_the_same_session_once(tmp_path: Path) -> None:
    failures = {f"item-{number}": ["model_refused"] for number in range(5)}
    site = steps(tmp_path / "run", EXECUTORS[0], items=400, steps=1, delay=0.01, failures=failures)
    await site.until(lambda counts: counts["completed"] + counts["failed"] >= 20)
    with closing(JournalReader(site.folder)) as reader:
        ended = [row.number for row in reader.items() if row.state.final]
    await site.order("retry", numbers=ended, fresh=False)
    await site.change(max_concurrency=40)
    result = await site.ended()
    assert (total(result), result.ledger["completed"]) == (400, 400)
    times = Counter(effects(site.folder))
    assert {key: count for key, count in times.items() if count != 1} == {f"item-{n - 1}/0": 2 for n in ended}
    lines = [json.loads(line)["key"] for part in site.folder.glob("part_*.jsonl") for line in part.open()]
    assert (len(lines), len(set(lines))) == (400, 400)


@pytest.mark.parametrize("execution", EXECUTORS, ids=lambda each: each["executor"])
async def test_two_equal_orders_in_a_pause_are_one_execution(tmp_path: Path, execution: dict[str, Any]) -> None:
    site = steps(tmp_path / "run", execution, items=8, steps=1, delay=0.2)
    await site.until(lambda counts: counts["completed"] >= 2)
    await site.change(pause=True)
    await site.until(lambda counts: not counts["running"])
    answers = [await site.order("retry", numbers=[1], fresh=False) for _ in range(2)]
    assert [answer["items"] for answer in answers] == [1, 0]
    await site.change(go_on=True)
    result = await site.ended()
    assert (total(result), result.ledger["completed"], result.stopped) == (8, 8, None)
    assert Counter(effects(site.folder))["item-0/0"] == 2
    with closing(JournalReader(site.folder)) as reader:
        assert [order.details["items"] for order in reader.orders(9) if order.command == "retry"] == [0, 1]


async def test_the_concurrency_of_a_run_is_not_that_of_the_items_left_when_it_began(tmp_path: Path) -> None:
    execution = {"executor": "processes", "workers": 4, "concurrency": 3}
    assert (await steps(tmp_path / "run", execution, items=30, steps=1).ended()).ledger["completed"] == 30
    with closing(Store(tmp_path / "run", SystemClock(), print)) as store:
        store.reopen_items([30], "for a test")
    site = steps(tmp_path / "run", execution, items=30, steps=1, delay=0.7)
    await site.until(lambda counts: counts["running"] == 1)
    assert children() == 1
    assert (await site.order("retry", numbers=list(range(1, 30)), fresh=False))["items"] == 29
    await site.until(lambda counts: counts["running"] == 12)
    await site.until(lambda counts: children() == 4)
    assert (await site.ended()).ledger["completed"] == 30


async def test_no_more_processes_are_started_than_there_are_items(tmp_path: Path) -> None:
    execution = {"executor": "processes", "workers": 1, "one_item_a_process": True}
    site = steps(tmp_path / "run", execution, items=4, steps=1, delay=1.0)
    await site.until(lambda counts: counts["running"] == 1)
    await site.change(max_concurrency=60)
    await site.until(lambda counts: counts["running"] >= 3)
    assert children() <= 4
    assert (await site.ended()).ledger["completed"] == 4


async def test_a_change_tells_the_concurrency_that_was_given_before(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        await asyncio.sleep(1.0)
        return Outcome(ItemState.COMPLETED)

    workload = ProgramWorkload(program, concurrency=6)
    workload.spec = {"options": {"max_concurrency": 2}}
    site = program_run(tmp_path / "run", workload)
    await site.until(lambda counts: counts["running"] == 1)
    answer = await site.order("set", changes={"max_concurrency": 4})
    assert answer["changes"] == [{"name": "max_concurrency", "before": 2, "now": 4}]
    await site.ended()
    with closing(Store(tmp_path / "run", SystemClock(), print)) as store:
        assert store.reader.orders(1)[0].details["changes"] == answer["changes"]


async def test_an_order_that_breaks_is_told_as_that(tmp_path: Path) -> None:
    class Broken(ProgramWorkload):
        def reopened(self, reader: RunReader, numbers: Sequence[int]) -> None:
            raise KeyError("a mistake")

    done: list[str] = []

    async def program(context: Context) -> Outcome:
        done.append(context.item.key)
        await asyncio.sleep(0.3 * len(done))
        return Outcome(ItemState.COMPLETED)

    site = program_run(tmp_path / "run", Broken(program, "ab", concurrency=2))
    await site.until(lambda counts: counts["completed"] == 1)
    answer = await site.order("retry", numbers=[1], fresh=False)
    assert answer["error"].startswith("retry: broke while it was carried out: KeyError: 'a mistake' (in reopened")
    assert ((await site.ended()).ledger["completed"], sorted(done)) == (2, ["a", "a", "b"])


def children() -> int:
    """How many worker processes this one has started that have not ended."""
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    started = [process for task in tasks for process in (task / "children").read_text().split()]
    return sum(WORKER.encode() in Path(f"/proc/{process}/cmdline").read_bytes() for process in started)


async def test_calls_wait_in_a_pause_though_their_steps_have_begun(tmp_path: Path) -> None:
    made: list[str] = []
    gate = asyncio.Event()

    async def program(context: Context) -> Outcome:
        async def effect() -> Effect:
            await gate.wait()
            permit = await context.limits.acquire("endpoint", Reserve(tokens=1))
            made.append(context.item.key)
            context.limits.release(permit, CallReport(Usage(calls=1)))
            return Effect(1)

        await context.step("call", {}, effect)
        return Outcome(ItemState.COMPLETED)

    workload = ProgramWorkload(program, [f"i{n}" for n in range(5)])
    site = program_run(tmp_path / "run", workload)
    await site.until(lambda counts: counts["running"] == 5)
    await site.change(pause=True)
    gate.set()
    await asyncio.sleep(0.2)
    assert made == []
    site.controls.stop()  # a pause keeps nobody from stopping the run
    result = await site.ended()
    assert (made, result.ledger["pending"], result.interrupted) == ([], 5, True)
    refused = await site.order("set", changes={"pause": True})
    assert refused["later"]


async def test_a_run_without_a_budget_gets_one_that_holds(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        async def effect() -> Effect:
            permit = await context.limits.acquire("endpoint", Reserve(tokens=10, model="m", output_tokens=5))
            await asyncio.sleep(0.01)
            context.limits.release(permit, CallReport(usage := Usage(calls=1, input_tokens=5, output_tokens=5)))
            return Effect(1, usage)

        await context.step("call", {}, effect)
        return Outcome(ItemState.COMPLETED)

    workload = ProgramWorkload(program, [f"i{n}" for n in range(400)])
    workload.spec = {"options": {"max_total_tokens": None}}
    site = program_run(tmp_path / "run", workload)
    await site.until(lambda counts: counts["completed"] >= 20)
    progress = site.controls.progress()
    assert progress is not None
    bound = progress.usage.total_tokens + 300
    assert await site.change(max_total_tokens=bound) == [("max_total_tokens", bound)]
    result = await site.ended()
    assert (result.interrupted, total(result)) == (False, 400)
    assert "(max_total_tokens)" in (result.stopped or "")
    assert bound - 100 <= result.summary["usage"]["total_tokens"] <= bound
    with closing(JournalReader(site.folder)) as reader:
        assert reader.meta("spec") == {"options": {"max_total_tokens": bound}}
        assert reader.meta("spending")["mark"] is None


async def test_what_a_run_does_not_heed_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    site = steps(tmp_path / "run", EXECUTORS[0], items=10, delay=0.05)
    await site.until(lambda counts: counts["completed"] >= 1)
    for order in (
        {"command": "set", "changes": {"max_cost": "much"}},
        {"command": "set", "changes": {}},
        {"command": "set", "changes": {"pause": True, "go_on": True}},
        {"command": "set"},
        {"command": "halt"},
        {"command": "retry", "numbers": None, "fresh": False},
    ):
        answer = await site.controls.steer({"given_by": "tester@here", **order})
        assert answer["error"]
    assert (await site.ended()).ledger["completed"] == 10
    with closing(JournalReader(site.folder)) as reader:
        assert reader.orders(9) == []
