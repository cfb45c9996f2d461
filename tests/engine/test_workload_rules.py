"""A workload's own rules: how often a failure is tried again, and which end of an item stops the run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, Item
from manyhands.runs.execution import execute_run
from manyhands.runs.making import Opened, create_run
from tests.support.engine_runs import ProgramWorkload


@pytest.mark.parametrize(
    ("cause", "own", "often"), [(Cause.TIMEOUT, 3, 3), (Cause.TOOL_ERROR, 1, 1), (Cause.TIMEOUT, None, 1)]
)
async def test_a_workload_may_say_how_often_a_failure_is_tried(
    tmp_path: Path, cause: Cause, own: int | None, often: int
) -> None:
    executed: Counter[str] = Counter()

    async def program(context: Context) -> Outcome:
        executed[context.item.key] += 1
        if context.item.key == "bad":
            raise ItemError(cause, "no luck")
        return Outcome(ItemState.COMPLETED)

    def tries(item: Item, failure: ItemError) -> int | None:
        assert (item.key, failure.cause) == ("bad", cause)
        return own

    workload = ProgramWorkload(program, ("good", "bad"), max_attempts_of=tries)
    create_run(tmp_path / "r", "program", workload, version="test", notice=print)
    result = await execute_run(Opened(tmp_path / "r", workload))
    assert executed == {"good": 1, "bad": often}
    assert (result.ledger["completed"], result.ledger["failed"]) == (1, 1)


async def test_the_end_of_an_item_may_stop_the_run_before_the_next_one_begins(tmp_path: Path) -> None:
    executed: list[str] = []

    async def program(context: Context) -> Outcome:
        executed.append(context.item.key)
        return Outcome(ItemState.COMPLETED)

    def stops(item: Item, outcome: Outcome) -> str | None:
        return f"{item.key} was the last" if item.key == "b" else None

    workload = ProgramWorkload(program, "abcd", concurrency=1, stop_reason=stops)
    create_run(tmp_path / "r", "program", workload, version="test", notice=print)
    result = await execute_run(Opened(tmp_path / "r", workload))
    assert executed == ["a", "b"]
    assert (result.stopped, result.ledger["pending"], result.interrupted) == ("b was the last", 2, False)
    assert (await execute_run(Opened(tmp_path / "r", workload))).ledger["completed"] == 4


@pytest.mark.parametrize("slots", [1, 3])
async def test_items_that_are_held_take_no_slot_until_they_are_freed(tmp_path: Path, slots: int) -> None:
    executed: list[str] = []
    ended: set[str] = set()
    waiting: dict[str, int] = {}

    async def program(context: Context) -> Outcome:
        executed.append(context.item.key)
        if context.item.key == "z" and executed.count("z") == 1:
            raise ItemError(Cause.TOOL_ERROR, "once more")  # it goes back, and is executed again later
        return Outcome(ItemState.COMPLETED)

    def holds(item: Item) -> bool:
        """Every item waits for the one behind it in the alphabet."""
        following = {"w": "x", "x": "y", "y": "z"}.get(item.key)
        if following is None or following in ended:
            return False
        waiting[following] = item.number
        return True

    def stops(item: Item, outcome: Outcome) -> str | None:
        ended.add(item.key)
        return None

    def freed() -> list[int]:
        return [waiting.pop(key) for key in list(waiting) if key in ended]

    workload = ProgramWorkload(program, "wxyaz", concurrency=slots, must_wait=holds, stop_reason=stops, freed=freed)
    create_run(tmp_path / "r", "program", workload, version="test", notice=print)
    result = await execute_run(Opened(tmp_path / "r", workload))
    assert sorted(executed[:2]) == ["a", "z"]
    assert executed[2:] == ["z", "y", "x", "w"]
    assert result.ledger["completed"] == 5


async def test_items_that_are_never_freed_stay_pending_and_the_run_ends(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        return Outcome(ItemState.COMPLETED)

    workload = ProgramWorkload(program, "ab", must_wait=lambda item: item.key == "a", freed=lambda: ())
    create_run(tmp_path / "r", "program", workload, version="test", notice=print)
    result = await execute_run(Opened(tmp_path / "r", workload))
    assert (result.ledger["completed"], result.ledger["pending"]) == (1, 1)
