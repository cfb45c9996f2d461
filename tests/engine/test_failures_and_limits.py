"""What a failure leads to, and what ends a run before its work is done."""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import ItemError, StorageError
from manyhands.core.failures import FAILURES, Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.attempt import Failed, classify
from manyhands.engine.contract import CallReport, Context, Effect
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.execution import RunResult, execute_run
from manyhands.runs.making import Opened, create_run
from tests.support.engine_runs import ProgramWorkload

DONE = Outcome(ItemState.COMPLETED)


async def execute(folder: Path, workload: ProgramWorkload, *, retry_failed: bool = True, **options: Any) -> RunResult:
    if not folder.exists():
        create_run(folder, "program", workload, version="test", notice=lambda text: None)
    return await execute_run(Opened(folder, workload, retry_failed=retry_failed), **options)


class Failing:
    """Fails so often with a cause, then completes; keeps the times of its executions."""

    def __init__(self, cause: Cause, times: int = 1000, *, retry_after: float | None = None) -> None:
        self.cause = cause
        self.times = times
        self.retry_after = retry_after
        self.executed: list[float] = []
        self.attempts: list[int] = []

    async def __call__(self, context: Context) -> Outcome:
        self.executed.append(time.monotonic())
        self.attempts.append(context.attempt)
        if len(self.executed) <= self.times:
            raise ItemError(self.cause, "asked to", retry_after=self.retry_after)
        return DONE


@pytest.mark.parametrize(
    "cause", [Cause.TOOL_ERROR, Cause.INVALID_OUTPUT, Cause.MODEL_REFUSED, Cause.CONTEXT_OVERFLOW, Cause.INTERNAL]
)
async def test_an_item_is_performed_as_often_as_the_table_says(tmp_path: Path, cause: Cause) -> None:
    program = Failing(cause)
    result = await execute(tmp_path / "run", ProgramWorkload(program))
    assert result.ledger["by_cause"] == {"failed": {cause.value: 1}}
    assert len(program.executed) == FAILURES[cause].max_attempts
    assert result.exit_code == 1
    reader = JournalReader(tmp_path / "run")
    assert len(reader.failures(1)) == FAILURES[cause].max_attempts
    reader.close()


@pytest.mark.parametrize(("allowed", "executed"), [(1, 1), (3, 3)])
async def test_max_attempts_overrides_the_table_where_it_retries_at_all(
    tmp_path: Path, allowed: int, executed: int
) -> None:
    retried, refused = Failing(Cause.INVALID_OUTPUT), Failing(Cause.MODEL_REFUSED)
    await execute(tmp_path / "a", ProgramWorkload(retried, max_attempts=allowed))
    await execute(tmp_path / "b", ProgramWorkload(refused, max_attempts=allowed))
    assert (len(retried.executed), len(refused.executed)) == (executed, 1)


@pytest.mark.parametrize(("times", "executed", "state"), [(10, 11, "completed"), (1000, 11, "failed")])
async def test_lost_nodes_count_for_nothing_but_not_for_ever(
    tmp_path: Path, times: int, executed: int, state: str
) -> None:
    program = Failing(Cause.NODE_LOST, times)
    result = await execute(tmp_path / "r", ProgramWorkload(program, ["a"], max_attempts=1))
    assert (len(program.executed), result.ledger[state]) == (executed, 1)  # type: ignore[literal-required]
    assert result.summary["interruptions"] == {"went_on": executed - (state == "completed"), "afresh": 0}


async def test_the_delay_before_the_next_performance_is_honoured(tmp_path: Path) -> None:
    program = Failing(Cause.TOOL_ERROR, 1)
    assert (await execute(tmp_path / "run", ProgramWorkload(program))).exit_code == 0
    assert 1.0 <= program.executed[1] - program.executed[0] < 2.5


async def test_a_server_that_asks_for_a_longer_pause_gets_it(tmp_path: Path) -> None:
    program = Failing(Cause.INVALID_OUTPUT, 1, retry_after=0.4)
    assert (await execute(tmp_path / "run", ProgramWorkload(program))).exit_code == 0
    assert 0.4 <= program.executed[1] - program.executed[0] < 1.5


async def test_an_item_that_waits_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    began, ended = time.monotonic(), {}

    async def program(context: Context) -> Outcome:
        if context.item.key == "slow" and "slow" not in ended:
            ended["slow"] = 0.0
            raise ItemError(Cause.TOOL_ERROR, "later")
        ended[context.item.key] = time.monotonic() - began
        return DONE

    workload = ProgramWorkload(program, ["slow", *(str(n) for n in range(30))], concurrency=2)
    assert (await execute(tmp_path / "run", workload)).ledger["completed"] == 31
    assert max(seconds for key, seconds in ended.items() if key != "slow") < ended["slow"]
    assert ended["slow"] >= 1.0


async def test_many_waiting_items_are_all_taken_up_again(tmp_path: Path) -> None:
    failed: set[str] = set()

    async def program(context: Context) -> Outcome:
        if context.item.key not in failed:
            failed.add(context.item.key)
            raise ItemError(Cause.TOOL_ERROR, "later", retry_after=0.5 + context.item.number % 7 / 20)
        return DONE

    workload = ProgramWorkload(program, [str(n) for n in range(1000)], concurrency=300)
    began = time.monotonic()
    assert (await execute(tmp_path / "run", workload)).ledger["completed"] == 1000
    assert time.monotonic() - began < 8


async def test_a_failure_with_a_fresh_attempt_starts_from_nothing(tmp_path: Path) -> None:
    program = Failing(Cause.INVALID_OUTPUT, 1)
    await execute(tmp_path / "run", ProgramWorkload(program))
    assert program.attempts == [1, 2]


@pytest.mark.parametrize("cause", [Cause.AUTHENTICATION, Cause.PAYMENT])
async def test_a_failure_that_all_would_share_stops_the_run_and_leaves_items_pending(
    tmp_path: Path, cause: Cause
) -> None:
    program = Failing(cause)
    workload = ProgramWorkload(program, [str(n) for n in range(100)], concurrency=3)
    result = await execute(tmp_path / "run", workload)
    assert (result.ledger["pending"], result.ledger["failed"], result.exit_code) == (100, 0, 1)
    assert result.stopped == "asked to"
    assert len(program.executed) <= 3
    program.times = 0
    assert (await execute(tmp_path / "run", workload)).exit_code == 0


async def test_an_outage_stops_the_run_instead_of_failing_everything(tmp_path: Path) -> None:
    program = Failing(Cause.MODEL_ERROR)
    workload = ProgramWorkload(program, [str(n) for n in range(200)], concurrency=5)
    result = await execute(tmp_path / "run", workload)
    assert (result.ledger["pending"], result.ledger["failed"]) == (200, 0)
    assert "seems to be down" in str(result.stopped)
    assert len(program.executed) <= 15
    program.times = 0
    assert (await execute(tmp_path / "run", workload)).ledger["completed"] == 200


async def test_failed_items_are_retried_on_resume_only_if_asked_for(tmp_path: Path) -> None:
    program = Failing(Cause.MODEL_REFUSED, 1)
    workload = ProgramWorkload(program)
    await execute(tmp_path / "run", workload)
    assert (await execute(tmp_path / "run", workload, retry_failed=False)).ledger["failed"] == 1
    assert (await execute(tmp_path / "run", workload)).ledger["completed"] == 1


async def test_the_time_limit_of_an_item(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        await asyncio.sleep(30 if context.item.key == "slow" else 0)
        return DONE

    result = await execute(tmp_path / "run", ProgramWorkload(program, ["slow", "quick"], item_timeout=0.2))
    assert result.ledger["by_cause"] == {"failed": {"timeout": 1}}
    assert result.ledger["completed"] == 1


async def test_a_time_out_of_the_workloads_own_is_not_the_items_limit(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        raise TimeoutError("something else")

    result = await execute(tmp_path / "run", ProgramWorkload(program, item_timeout=10.0))
    assert result.ledger["by_cause"] == {"failed": {"internal": 1}}


def paying(tokens: int, cost: float) -> Any:
    """A program of one limited call a step, three steps an item."""

    async def program(context: Context) -> Outcome:
        for number in range(3):
            await context.step("call", number, lambda: call(context))
        return DONE

    async def call(context: Context) -> Effect:
        permit = await context.limits.acquire("endpoint", Reserve(tokens, cost))
        usage = Usage(calls=1, input_tokens=tokens, cost=cost)
        context.limits.release(permit, CallReport(usage))
        return Effect(None, usage)

    return program


@pytest.mark.parametrize(
    ("budget", "name"), [({"max_total_tokens": 500}, "max_total_tokens"), ({"max_cost": 5.0}, "max_cost")]
)
async def test_a_budget_holds_over_all_sessions_and_leaves_the_run_resumable(
    tmp_path: Path, budget: dict[str, Any], name: str
) -> None:
    keys = [str(n) for n in range(40)]
    for _ in range(3):
        result = await execute(tmp_path / "run", ProgramWorkload(paying(10, 0.1), keys, **budget))
        assert name in str(result.stopped)
        assert (result.summary["usage"]["total_tokens"], result.exit_code) == (500, 1)
        assert result.summary["usage"]["cost"] == pytest.approx(5.0)
        assert result.ledger["failed"] == 0
        assert result.ledger["completed"] + result.ledger["pending"] == 40
    result = await execute(tmp_path / "run", ProgramWorkload(paying(10, 0.1), keys))
    assert (result.ledger["completed"], result.summary["usage"]["calls"]) == (40, 120)


async def test_the_time_limit_of_a_run_is_met_even_when_nothing_is_claimed(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        for number in range(1000):
            await context.step("wait", number, wait)
        return DONE

    async def wait() -> Effect:
        await asyncio.sleep(0.02)
        return Effect(None)

    began = time.monotonic()
    result = await execute(tmp_path / "run", ProgramWorkload(program, max_seconds=0.3))
    assert time.monotonic() - began < 5
    assert "wall time" in str(result.stopped)
    assert (result.ledger["pending"], result.exit_code) == (1, 1)
    again = await execute(tmp_path / "run", ProgramWorkload(program, max_seconds=0.3))
    assert "wall time" in str(again.stopped)


async def test_a_stop_ends_the_waiting_for_limits_too(tmp_path: Path) -> None:
    """Items that wait for a rate limit to pass must not delay the end, nor make their calls after it."""
    calls = []

    async def program(context: Context) -> Outcome:
        async def call() -> Effect:
            permit = await context.limits.acquire("endpoint", Reserve())
            calls.append(context.item.key)
            context.limits.release(permit, CallReport(rate_limited=True, retry_after=60.0))
            raise ItemError(Cause.PAYMENT, "no credit")

        await context.step("call", 0, call)
        return DONE

    began = time.monotonic()
    workload = ProgramWorkload(program, [str(n) for n in range(300)], concurrency=200)
    result = await execute(tmp_path / "run", workload)
    assert time.monotonic() - began < 10
    assert len(calls) <= 64
    assert (result.stopped, result.ledger["pending"]) == ("no credit", 300)


async def test_a_storage_error_from_within_an_item_stops_the_run(tmp_path: Path) -> None:
    async def program(context: Context) -> Outcome:
        raise StorageError("the disk is full")

    result = await execute(tmp_path / "run", ProgramWorkload(program, ["a", "b"]))
    assert isinstance(result.error, StorageError)
    assert (result.ledger["pending"], result.exit_code) == (2, 1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_behind_other_errors(number: int) -> None:
    error = ItemError(Cause.SANDBOX_LOST, "can't make the sandbox's folder")
    error.__cause__ = OSError(number, "no room", "/place")
    with pytest.raises(StorageError, match=r"can't make the sandbox's folder \("):
        classify(ExceptionGroup("", [error]))


def test_an_error_that_is_its_own_cause() -> None:
    error = ItemError(Cause.GRADER_ERROR, "broke")
    error.__cause__ = error
    result = classify(error)
    assert isinstance(result, Failed)
    assert result.failure.cause is Cause.GRADER_ERROR
