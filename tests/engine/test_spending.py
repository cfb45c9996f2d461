"""What may have been spent is on disk before it is spent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import CallReport
from manyhands.engine.journal.store import Store
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import STEPS, SharedLimits, SpendingMark


class Session:
    """A session of a run with a budget of $8 and 8,000 tokens."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.store = Store(folder, SystemClock(), lambda text: None)
        self.mark = SpendingMark(self.store)
        self.budget = Budget(8.0, 8000, spent=self.store.reader.usage(), assumed=self.mark.assumed)
        self.limits = SharedLimits(budget=self.budget, mark=self.mark)
        self.store.begin()

    async def end(self, *, killed: bool) -> None:
        """End it; ``killed``: without what is done at an end."""
        await self.store.end("")
        if not killed:
            self.mark.close(self.budget)
        self.store.close()


async def test_what_is_reserved_when_a_run_is_killed_counts_as_spent(tmp_path: Path) -> None:
    session = Session(tmp_path / "run")
    permits = [await session.limits.acquire("key", Reserve(1000, 1.0)) for _ in range(3)]
    session.limits.release(permits[0], CallReport(Usage(input_tokens=10, cost=0.01)))
    await session.end(killed=True)
    again = Session(tmp_path / "run")
    assert 2.01 <= again.budget.spent.cost <= 3.01 + 8.0 / STEPS
    assert 2010 <= again.budget.spent.total_tokens <= 3010 + 8000 // STEPS
    assert again.mark.assumed == again.budget.assumed
    spent = again.budget.spent
    await again.end(killed=True)
    third = Session(tmp_path / "run")
    assert third.budget.spent == spent, "a session without calls changes nothing"
    await third.end(killed=False)


async def test_a_session_that_ends_keeps_exactly_what_no_step_has_recorded(tmp_path: Path) -> None:
    session = Session(tmp_path / "run")
    for report in (CallReport(Usage(input_tokens=10, cost=0.01)), CallReport(unknown=True), CallReport(failed=True)):
        session.limits.release(await session.limits.acquire("key", Reserve(1000, 1.0)), report)
    await session.end(killed=False)
    again = Session(tmp_path / "run")
    assert again.budget.spent.cost == pytest.approx(1.01)
    assert again.budget.spent.total_tokens == 1010
    await again.end(killed=False)


async def test_few_calls_write_and_the_mark_comes_down_again(tmp_path: Path) -> None:
    session = Session(tmp_path / "run")
    session.limits.release(await session.limits.acquire("key", Reserve(7000, 7.0)), CallReport())
    for _ in range(500):
        permit = await session.limits.acquire("key", Reserve(10, 0.01))
        session.limits.release(permit, CallReport(Usage(input_tokens=1, cost=0.001)))
    assert session.store.writer.commits < 60
    await session.end(killed=True)
    again = Session(tmp_path / "run")
    assert 0.5 <= again.budget.spent.cost <= 0.5 + 10 * 8.0 / STEPS
    await again.end(killed=False)


async def test_many_calls_at_once_wait_for_the_same_mark(tmp_path: Path) -> None:
    session = Session(tmp_path / "run")
    await asyncio.gather(*(session.limits.acquire("key", Reserve(100, 0.1)) for _ in range(60)))
    assert session.store.writer.commits <= 3
    await session.end(killed=True)
    again = Session(tmp_path / "run")
    assert again.budget.spent.cost >= 6.0 - 1e-9
    await again.end(killed=False)
