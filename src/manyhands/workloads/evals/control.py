"""What holds a session's tests back, which failures are tried again, and what ends a session early.

The maximum concurrency of the run, of each eval file and of each target hold beside each other. A test acquires that of its target first
and releases it with the answer; those of the file and of the run it keeps until it is graded. So nobody who waits for a busy target keeps
others from an idle one.

What took too long is tried again, and what may pass by itself: an endpoint that is down or limits the rate, a sandbox that was lost. A
command that ends with an error, an answer that can't be read and a grader that breaks would do so again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import FAILURES, Cause
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Item
from manyhands.workloads.evals.evalfile.grader_lists import JudgeNeed, judge_needs
from manyhands.workloads.evals.items import GRADER_ERROR, TestItem
from manyhands.workloads.evals.order import FAILED_DEPENDENCIES, Dependencies, Rules, TrialOrder, rules_of
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.settings import RETRIES, EvalSpec
from manyhands.workloads.evals.targets.definitions import Target
from manyhands.workloads.evals.targets.keys import RETRYING


class RunControl:
    """Concurrency limits, order of trials and time of one session. ``replay``: nothing is asked, so that every
    trial that was made is needed."""

    def __init__(self, prepared: PreparedEval, run_folder: Path, *, replay: bool) -> None:
        self.concurrency = ConcurrencyLimits(prepared)
        self.order = TrialOrder(run_folder)
        self.dependencies = Dependencies(run_folder)
        self.time = Time(prepared.options.item_timeout)
        self._prepared = prepared
        self.replay = replay

    def rules(self, item: TestItem, target: Target) -> Rules | None:
        """When the trials of a test are over. A command that answers all tests is invoked for each trial whatever comes."""
        options = self._prepared.options
        if item.trials == 1 or answers_all(target) or options.regrade is not None:
            return None
        return rules_of(item.test.trials, options.trials)

    def limit(self, item: TestItem) -> float:
        """The score from which on a test has passed."""
        own = item.threshold
        return self._prepared.limits[item.file] if own is None else own

    def tries(self, item: Item, failure: ItemError) -> int | None:
        """See ``Execution``."""
        if self.time.is_over(item.number):
            return 1
        asked: Iterable[Target] = [self._target(item.payload)]
        if failure.record.get("status") == GRADER_ERROR:
            asked = self._judges(item.payload)
        retried = any(each.settings.get(name) is not None for each in asked for name in RETRYING)
        return tries(self._prepared.options, failure.cause, calls_retried=retried)

    def stops(self, item: Item, outcome: Outcome) -> str | None:
        """See ``Execution``: with ``fail_on_error`` the first test whose target fails ends the run."""
        self.time.forget(item.number)
        if "awaited" in item.payload:
            self.dependencies.ended(item, outcome)
        if outcome.state is not ItemState.FAILED or outcome.record.get("status") == GRADER_ERROR:
            return None
        file = self._prepared.files[item.payload["file"]]
        if not file.fail_on_error or FAILED_DEPENDENCIES in outcome.record:  # then what it depends on is the error
            return None
        named = item.payload["test"]["id"]
        return f"{Path(file.path).name} says fail_on_error, and test {named} is an error: {outcome.message}"

    def _judges(self, payload: Any) -> Iterator[Target]:
        """Who is asked where a test is graded. One without graders is judged by its target's judge."""
        needs = list(judge_needs(payload["test"].get("graders", ()))) or [JudgeNeed("")]
        return self._prepared.judges_of(payload["file"], self._target(payload), needs)

    def _target(self, payload: Any) -> Target:
        index: int = payload["file"]
        return next(each for each in self._prepared.files[index].targets if each.name == payload["target"])


MAX_FOR_COMMANDS = 3
MAX_FOR_MODELS = 16
"""Tests that a target answers at once where nobody says, by what they wait for."""
MAX_FOR_BATCHES = 1000
"""Tests that wait at once for the records of commands that answer all of them."""
MAX_SLOTS = 10_000


class ConcurrencyLimits:
    """How many tests of one session are executed at once."""

    def __init__(self, prepared: PreparedEval) -> None:
        self._prepared = prepared
        workers = prepared.options.workers
        self._run = None if workers is None else asyncio.Semaphore(workers)
        self._files = [None if file.workers is None else asyncio.Semaphore(file.workers) for file in prepared.files]
        self._targets: dict[tuple[str, str], asyncio.Semaphore] = {}

    @asynccontextmanager
    async def for_target(self, file: int, target: Target) -> AsyncIterator[None]:
        """Wait until a target may be asked, which is the same one for all files that name it."""
        most = max_at_target(self._prepared, file, target)
        if most is None:
            yield
            return
        key = (str(target.place), target.name)
        async with self._targets.setdefault(key, asyncio.Semaphore(most)):
            yield

    def for_test(self, file: int) -> AbstractAsyncContextManager[None] | None:
        """Wait until a test of a file may be executed, for the file's and the run's sake; None where nobody has to wait."""
        of_file = self._files[file]
        if of_file is None and self._run is None:
            return None
        return _all_of([each for each in (of_file, self._run) if each is not None])


@asynccontextmanager
async def _all_of(semaphores: Sequence[asyncio.Semaphore]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for semaphore in semaphores:
            await stack.enter_async_context(semaphore)
        yield


def max_at_target(prepared: PreparedEval, file: int, target: Target) -> int | None:
    """How many tests a target answers at once; None if only the file's or the run's number counts."""
    regraded = prepared.options.regrade is not None
    if target.workers is not None and not regraded:
        return target.workers
    if prepared.options.workers is not None or prepared.files[file].workers is not None:
        return None
    return MAX_FOR_COMMANDS if target.kind in COMMANDS and not regraded else MAX_FOR_MODELS


def slots(prepared: PreparedEval) -> int:
    """How many tests are claimed at once, so that all places can be taken: also where tests wait for their turn."""
    options = prepared.options
    total = 0
    for index, file in enumerate(prepared.files):
        for target in file.targets:
            if answers_all(target) and options.regrade is None:
                total += MAX_FOR_BATCHES
            else:
                said = (max_at_target(prepared, index, target), file.workers, options.workers)
                total += min(number for number in said if number is not None) * file.in_turn
    return max(1, min(total, MAX_SLOTS))


def answers_all(target: Target) -> bool:
    """Whether a target's answers come from one file, for all tests."""
    return target.batching or target.kind == "replay"


COMMANDS = frozenset(("cli", "claude", "codex", "copilot", "gemini-cli", "pi"))
"""Kinds of targets that start a program for each test."""


FINAL = frozenset((Cause.WORKER_ERROR, Cause.INVALID_OUTPUT, Cause.TARGET_ERROR, Cause.GRADER_ERROR))
OF_ENDPOINTS = frozenset((Cause.MODEL_ERROR, Cause.RATE_LIMIT))


def tries(options: EvalSpec, cause: Cause, *, calls_retried: bool = False) -> int | None:
    """How often a test may be performed in all before such a failure ends it; None: as the failure table says. ``calls_retried``: the
    target says itself how often a failed call is tried again, which has been done."""
    if cause in FINAL or (cause in OF_ENDPOINTS and calls_retried):
        return 1
    retries = options.retries
    if cause is Cause.TIMEOUT:
        return 1 + (RETRIES if retries is None else retries)
    return None if retries is None or not FAILURES[cause].retried else 1 + retries


class Time:
    """The time that tests have, over all tries of a session."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._used: dict[int, float] = {}

    def is_over(self, item: int) -> bool:
        """Whether a test, by the number of its item, has used up its time."""
        return self._used.get(item, 0.0) >= self._seconds

    def forget(self, item: int) -> None:
        """A test has ended."""
        self._used.pop(item, None)

    def running(self, item: int) -> AbstractAsyncContextManager[None]:
        """What is done for a test. Raises ItemError(TIMEOUT) when its time is over."""
        return _Running(self._seconds, self._used, item)


class _Running:
    """See ``Time.running``. (No generator, because every test comes here: this takes half the time.)"""

    __slots__ = ("_before", "_began", "_item", "_limit", "_seconds", "_used")

    def __init__(self, seconds: float, used: dict[int, float], item: int) -> None:
        self._seconds = seconds
        self._used = used
        self._item = item
        self._before = used.get(item, 0.0)
        self._began = asyncio.get_running_loop().time()
        self._limit = asyncio.timeout(seconds - self._before)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as over:
            error = over
        used = self._before + asyncio.get_running_loop().time() - self._began
        self._used[self._item] = inf if self._limit.expired() else used
        if isinstance(error, TimeoutError):
            raise _ended(self._limit, error, f"took longer than {self._seconds:g} s (--item_timeout)") from None


@asynccontextmanager
async def within(seconds: float | None, message: str) -> AsyncIterator[None]:
    """A time limit; None: none. Raises ItemError(TIMEOUT) with the message."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        raise _ended(limit, error, message) from None


def _ended(limit: asyncio.Timeout, error: TimeoutError, message: str) -> Exception:
    """What a TimeoutError means, which may be of somebody else's making."""
    return ItemError(Cause.TIMEOUT, message) if limit.expired() else error
