"""What a test waits for where it is executed: its turn at its target, its file and the run, and earlier samples that run; and the time that
it has. What holds for the whole run, ``scheduling`` decides in the run's owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.engine.contract import Context, OwnLimit
from manyhands.workloads.evals.items import COST_LIMIT, PASSED_BEFORE, StopRules, TestItem
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.scheduling import RUN, Facts, max_at_target, of_file, of_target
from manyhands.workloads.evals.targets.definitions import Target

# --- Concurrency


class Concurrency:
    """How tests wait for their turns."""

    def __init__(self, prepared: PreparedEval, *, replay: bool) -> None:
        """``replay``: nothing is run, and nobody waits."""
        self._prepared = prepared
        self._replay = replay

    def for_target(self, context: Context, file: int, target: Target) -> AbstractAsyncContextManager[None]:
        """Wait until a target may be run."""
        if self._replay or max_at_target(self._prepared, file, target) is None:
            return nullcontext()
        return OwnLimit(of_target(target)).held(context.limits)

    @asynccontextmanager
    async def for_test(self, context: Context, file: int) -> AsyncIterator[None]:
        """Wait until a test of a file may be executed, for the file's and the run's sake."""
        async with AsyncExitStack() as held:
            if not self._replay and self._prepared.files[file].workers is not None:
                await held.enter_async_context(OwnLimit(of_file(file)).held(context.limits))
            if not self._replay:
                await held.enter_async_context(OwnLimit(RUN).held(context.limits))
            yield


# --- Samples


@dataclass(slots=True)
class _Samples:
    """What is known of a test's samples."""

    passed: bool = False
    """Whether one has passed."""
    cost: float = 0.0
    """US dollars, of all that have ended."""
    running: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    """Of those that run, by number: done at their end."""


class SampleOrder:
    """The samples of a session that go one after another."""

    def __init__(self) -> None:
        self._tests: dict[tuple[int, str, str], _Samples] = {}

    @contextmanager
    def running(self, item: TestItem, facts: Facts) -> Iterator[SampleTurn]:
        """While a sample runs."""
        key = (item.file, item.test_id, item.target)
        known = self._tests.get(key)
        if known is None:
            known = self._tests[key] = _Samples(facts.get("passed", False), facts.get("cost", 0.0))
        ended = known.running[item.sample] = asyncio.get_running_loop().create_future()
        turn = SampleTurn(known, item.sample)
        try:
            yield turn
        except ItemError as failure:
            turn.ended(failure.record)
            raise
        finally:
            ended.set_result(None)
            del known.running[item.sample]
            if item.sample == item.samples - 1 and not known.running:
                self._tests.pop(key, None)


class SampleTurn:
    """One sample among those of its test."""

    def __init__(self, samples: _Samples, number: int) -> None:
        self._samples = samples
        self._number = number

    async def needless(self, rules: StopRules) -> str | None:
        """Wait for earlier samples that run; why this one is not needed, None if it is."""
        while waiting := [ended for number, ended in self._samples.running.items() if number < self._number]:
            await asyncio.wait(waiting)
        if rules.at_first_pass and self._samples.passed:
            return PASSED_BEFORE
        if rules.cost_limit is not None and self._samples.cost >= rules.cost_limit:
            return COST_LIMIT
        return None

    def ended(self, record: Mapping[str, Any], *, passed: bool = False) -> None:
        """Note how the sample ended."""
        self._samples.passed = self._samples.passed or passed
        self._samples.cost += record.get("cost_usd") or 0.0


# --- Time


class ItemTime:
    """The time that tests have, over all attempts of a session."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._used: dict[int, float] = {}

    def used(self, item: int) -> float | None:
        """What an attempt at a test, by the number of its item, that has just ended has used of the test's time, with what was used before;
        None if it has not come to that."""
        return self._used.pop(item, None)

    @asynccontextmanager
    async def running(self, context: Context) -> AsyncIterator[None]:
        """What is done for a test. Raises ItemError(TIMEOUT) when its time is over."""
        item = context.item.number
        limit: asyncio.Timeout | None = None
        facts: Facts = context.facts or {}
        before = self._used.get(item, facts.get("seconds", 0.0))
        try:
            async with context.time_limit(self._seconds - before) as limit:
                yield
        except TimeoutError as error:
            raise _meant(limit, error, f"took longer than {self._seconds:g} s (--item_timeout)") from None
        finally:
            self._used[item] = before if (left := _left(limit)) is None else self._seconds - left


@asynccontextmanager
async def within(context: Context, seconds: float | None, message: str) -> AsyncIterator[None]:
    """A time limit, without the time in which the run is paused; None: none. Raises ItemError(TIMEOUT) with the message."""
    limit: asyncio.Timeout | None = None
    try:
        async with context.time_limit(seconds) as limit:
            yield
    except TimeoutError as error:
        raise _meant(limit, error, message) from None


def _left(limit: asyncio.Timeout | None) -> float | None:
    """Seconds that are left of a time limit, 0 if it is over; None where that is not known, as in a pause."""
    if limit is None or (when := limit.when()) is None:
        return None
    return 0.0 if limit.expired() else when - asyncio.get_running_loop().time()


def _meant(limit: asyncio.Timeout | None, error: TimeoutError, message: str) -> Exception:
    """What a TimeoutError means, which may be of somebody else's making."""
    return ItemError(Cause.TIMEOUT, message) if limit is not None and limit.expired() else error
