"""The contract of ``Context.step``: replayed or executed, durable before returned, never both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import Interrupted, ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import Usage
from manyhands.engine.contract import Context, Effect
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.execution import Controls, RunResult, execute_run
from manyhands.runs.making import Opened, create_run
from tests.support.engine_runs import ProgramWorkload

DONE = Outcome(ItemState.COMPLETED)


class World:
    """Counts what really happened."""

    def __init__(self) -> None:
        self.effects: list[str] = []

    def effect(self, name: str, output: Any = None, *, error: Exception | None = None, delay: float = 0.0) -> Any:
        async def act() -> Effect:
            self.effects.append(name)
            await asyncio.sleep(delay)
            if error is not None:
                raise error
            return Effect(output, Usage(calls=1))

        return act


def make(folder: Path, workload: ProgramWorkload) -> None:
    create_run(folder, "program", workload, version="test", notice=lambda text: None)


async def execute(folder: Path, workload: ProgramWorkload, **options: Any) -> RunResult:
    if not folder.exists():
        make(folder, workload)
    return await execute_run(Opened(folder, workload), **options)


def steps_of(folder: Path, item: int = 1, attempt: int = 1) -> list[tuple[str, int, str, Any]]:
    reader = JournalReader(folder)
    try:
        return [(s.scope, s.seq, s.kind, s.output) for s in reader.steps(item, attempt)]
    finally:
        reader.close()


def failing_once(steps: Callable[[Context], Awaitable[None]]) -> Callable[[Context], Awaitable[Outcome]]:
    """A program that fails after its steps the first time it is executed."""
    executed = 0

    async def program(context: Context) -> Outcome:
        nonlocal executed
        executed += 1
        await steps(context)
        if executed == 1:
            raise ItemError(Cause.MODEL_REFUSED, "the first time")
        return DONE

    return program


async def test_a_recorded_step_is_replayed_without_its_effect(tmp_path: Path) -> None:
    world, seen = World(), []

    async def steps(context: Context) -> None:
        seen.append((context.replaying, context.resumed, context.address))
        seen.append(await context.step("draw", {"a": 1}, world.effect("draw", {"value": [1, "ü", None]})))

    workload = ProgramWorkload(failing_once(steps))
    assert (await execute(tmp_path / "run", workload)).ledger["failed"] == 1
    result = await execute(tmp_path / "run", workload)
    assert result.exit_code == 0
    assert world.effects == ["draw"]
    assert seen == [(False, False, "/0"), {"value": [1, "ü", None]}, (True, True, "/0"), {"value": [1, "ü", None]}]
    assert result.summary["usage"]["calls"] == 1


async def test_a_changed_request_starts_a_fresh_attempt_and_keeps_the_old_one(tmp_path: Path) -> None:
    world, version = World(), ["old"]

    async def steps(context: Context) -> None:
        await context.step("same", {}, world.effect("same", 0))
        await context.step("ask", {"prompt": version[0]}, world.effect(version[0], version[0]))

    workload = ProgramWorkload(failing_once(steps))
    await execute(tmp_path / "run", workload)
    version[0] = "new"
    result = await execute(tmp_path / "run", workload)
    assert result.ledger["completed"] == 1
    assert world.effects == ["same", "old", "same", "new"]
    assert "fresh attempt" in result.notes[0]
    assert [output for *_, output in steps_of(tmp_path / "run", attempt=1)] == [0, "old"]
    assert [output for *_, output in steps_of(tmp_path / "run", attempt=2)] == [0, "new"]
    reader = JournalReader(tmp_path / "run")
    attempts = reader.attempts(1)
    reader.close()
    assert [each.attempt for each in attempts] == [1]
    assert "another request" in attempts[0].reason


async def test_divergence_can_stop_the_run_instead(tmp_path: Path) -> None:
    world, version = World(), ["old"]

    async def steps(context: Context) -> None:
        await context.step("ask", {"prompt": version[0]}, world.effect(version[0], version[0]))

    workload = ProgramWorkload(failing_once(steps), on_divergence="stop")
    await execute(tmp_path / "run", workload)
    version[0] = "new"
    result = await execute(tmp_path / "run", workload)
    assert isinstance(result.error, UserError)
    assert "\n" not in str(result.error)
    assert (result.ledger["pending"], result.exit_code) == (1, 1)
    version[0] = "old"
    assert (await execute(tmp_path / "run", workload)).exit_code == 0
    assert world.effects == ["old"]


async def test_a_failed_effect_is_not_recorded_and_the_item_goes_on_in_the_same_attempt(tmp_path: Path) -> None:
    world, broken = World(), [True]

    async def program(context: Context) -> Outcome:
        first = await context.step("first", {}, world.effect("first", "kept"))
        error = ItemError(Cause.MODEL_REFUSED, "no") if broken[0] else None
        await context.step("second", {"first": first}, world.effect("second", 2, error=error))
        return DONE

    workload = ProgramWorkload(program)
    await execute(tmp_path / "run", workload)
    assert [kind for _, _, kind, _ in steps_of(tmp_path / "run")] == ["first"]
    broken[0] = False
    assert (await execute(tmp_path / "run", workload)).exit_code == 0
    assert world.effects == ["first", "second", "second"]
    assert [kind for _, _, kind, _ in steps_of(tmp_path / "run")] == ["first", "second"]


async def test_a_recorded_step_that_is_not_performed_any_more_is_a_divergence(tmp_path: Path) -> None:
    world, number = World(), [2]

    async def steps(context: Context) -> None:
        for index in range(number[0]):
            await context.step("step", index, world.effect(str(index)))

    workload = ProgramWorkload(failing_once(steps))
    await execute(tmp_path / "run", workload)
    number[0] = 1
    result = await execute(tmp_path / "run", workload)
    assert result.ledger["completed"] == 1
    assert "not taken any more" in result.notes[0]
    assert world.effects == ["0", "1", "0"]
    assert len(steps_of(tmp_path / "run", attempt=2)) == 1


async def test_a_divergence_that_the_workload_swallows_is_not_lost(tmp_path: Path) -> None:
    world, version = World(), ["old"]

    async def steps(context: Context) -> None:
        try:
            await context.step("ask", version[0], world.effect(version[0]))
        except Exception:  # noqa: BLE001 - what a careless workload does
            return

    workload = ProgramWorkload(failing_once(steps))
    await execute(tmp_path / "run", workload)
    version[0] = "new"
    result = await execute(tmp_path / "run", workload)
    assert world.effects == ["old", "new"]
    assert "fresh attempt" in result.notes[0]


async def test_scopes_run_concurrently_and_replay_in_any_order(tmp_path: Path) -> None:
    world, order = World(), [0.0, 0.02, 0.01]

    async def branch(context: Context, index: int) -> str:
        await asyncio.sleep(order[index])
        scope = context.scope(f"branch-{index}")
        answer = await scope.step("call", {"n": index}, world.effect(f"call-{index}", f"answer-{index}", delay=0.02))
        inner = await scope.scope("inner").step("call", {}, world.effect(f"inner-{index}", index))
        return f"{answer}-{inner}"

    async def steps(context: Context) -> None:
        answers = await asyncio.gather(*(branch(context, index) for index in range(3)))
        assert answers == ["answer-0-0", "answer-1-1", "answer-2-2"]

    workload = ProgramWorkload(failing_once(steps))
    await execute(tmp_path / "run", workload)
    order.reverse()
    assert (await execute(tmp_path / "run", workload)).exit_code == 0
    assert len(world.effects) == 6
    assert {scope for scope, *_ in steps_of(tmp_path / "run")} == {
        f"branch-{n}{inner}" for n in range(3) for inner in ("", "/inner")
    }


async def test_scope_names_are_unique_in_an_item(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        context.scope("twice")
        context.scope("twice")
        return DONE

    result = await execute(tmp_path / "run", ProgramWorkload(program))
    assert result.ledger["by_cause"] == {"failed": {"internal": 1}}


async def test_a_step_is_on_disk_before_the_program_sees_its_output(tmp_path: Path) -> None:
    on_disk: list[int] = []

    async def program(context: Context) -> Outcome:
        for index in range(3):
            await context.step("step", index, World().effect("", index))
            on_disk.append(len(steps_of(tmp_path / "run")))
        return DONE

    await execute(tmp_path / "run", ProgramWorkload(program))
    assert on_disk == [1, 2, 3]


async def test_when_a_branch_fails_the_calls_still_in_flight_are_recorded(tmp_path: Path) -> None:
    world, broken = World(), [True]

    async def program(context: Context) -> Outcome:
        slow, quick = context.scope("slow"), context.scope("quick")
        error = ItemError(Cause.MODEL_REFUSED, "no") if broken[0] else None
        await asyncio.gather(
            slow.step("call", {}, world.effect("slow", 1, delay=0.1)),
            quick.step("call", {}, world.effect("quick", 2, error=error)),
        )
        return DONE

    workload = ProgramWorkload(program)
    await execute(tmp_path / "run", workload)
    broken[0] = False
    assert (await execute(tmp_path / "run", workload)).exit_code == 0
    assert sorted(world.effects) == ["quick", "quick", "slow"]


async def test_a_stop_lets_the_calls_of_other_branches_end(tmp_path: Path) -> None:
    world, controls = World(), Controls()

    async def program(context: Context) -> Outcome:
        async def quick() -> None:
            scope = context.scope("quick")
            await scope.step("call", 0, world.effect("quick-0"))
            controls.stop()
            await scope.step("call", 1, world.effect("quick-1"))

        async with asyncio.TaskGroup() as group:
            group.create_task(context.scope("slow").step("call", {}, world.effect("slow", 1, delay=0.1)))
            group.create_task(quick())
        return DONE

    workload = ProgramWorkload(program)
    result = await execute(tmp_path / "run", workload, controls=controls)
    assert result.exit_code == 130
    assert (await execute(tmp_path / "run", workload)).exit_code == 0
    assert sorted(world.effects) == ["quick-0", "quick-1", "slow"]


async def test_an_interruption_that_the_workload_swallows_does_not_end_the_item(tmp_path: Path) -> None:
    world, controls = World(), Controls()

    async def program(context: Context) -> Outcome:
        await context.step("call", 0, world.effect("first"))
        controls.stop()
        try:
            await context.step("call", 1, world.effect("second"))
        except Interrupted:
            return Outcome(ItemState.DISCARDED, reason="swallowed")
        return DONE

    workload = ProgramWorkload(program)
    result = await execute(tmp_path / "run", workload, controls=controls)
    assert (result.ledger["pending"], result.ledger["discarded"]) == (1, 0)
    assert (await execute(tmp_path / "run", workload)).ledger["completed"] == 1


async def test_a_world_that_is_gone_starts_a_fresh_attempt_at_once(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        await context.step("call", 0, World().effect("", 0))
        if context.attempt < 3:
            raise context.new_attempt_needed("its folder is gone")
        return DONE

    result = await execute(tmp_path / "run", ProgramWorkload(program))
    assert result.ledger["completed"] == 1
    assert len(steps_of(tmp_path / "run", attempt=3)) == 1


async def test_a_world_that_is_always_gone_fails_the_item(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        raise context.new_attempt_needed("its folder is gone")

    result = await execute(tmp_path / "run", ProgramWorkload(program))
    assert result.ledger["by_cause"] == {"failed": {"sandbox_lost": 1}}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("a defect\nin two lines"), "internal"),
        (SystemExit(3), "internal"),
        (asyncio.CancelledError(), "internal"),
        (ItemError(Cause.CONTEXT_OVERFLOW, "lone surrogate \ud800 and \x00"), "context_overflow"),
        (ExceptionGroup("several", [ValueError("x"), ItemError(Cause.MODEL_REFUSED, "no")]), "model_refused"),
    ],
)
async def test_whatever_a_workload_raises_becomes_a_recorded_failure(
    tmp_path: Path, error: BaseException, cause: str
) -> None:
    async def program(context: Context) -> Outcome:
        if context.item.key == "bad":
            raise error
        await context.step("call", 0, World().effect("", 0))
        return DONE

    result = await execute(tmp_path / "run", ProgramWorkload(program, ["bad", "good"]))
    assert result.ledger["by_cause"] == {"failed": {cause: 1}}
    assert (result.ledger["completed"], result.exit_code, result.error) == (1, 1, None)
    reader = JournalReader(tmp_path / "run")
    row = reader.item("bad")
    reader.close()
    assert row is not None
    assert row.message is not None
    assert "\n" not in row.message


async def test_a_record_that_is_not_json_fails_its_item_only(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        return Outcome(ItemState.COMPLETED, {"value": object()} if context.item.key == "bad" else {})

    result = await execute(tmp_path / "run", ProgramWorkload(program, ["bad", "good"]))
    assert result.ledger["by_cause"] == {"failed": {"internal": 1}}
    assert result.ledger["completed"] == 1


async def test_chance_depends_on_seed_key_and_purpose_only(tmp_path: Path) -> None:
    drawn: list[tuple[float, int]] = []

    async def steps(context: Context) -> None:
        drawn.append((context.random("x").random(), context.seed("x")))
        assert context.random("x").random() != context.random("y").random()

    workload = ProgramWorkload(failing_once(steps), seed=7)
    await execute(tmp_path / "run", workload)
    await execute(tmp_path / "run", workload)
    assert drawn[0] == drawn[1]
    assert 0 <= drawn[0][1] < 2**31
