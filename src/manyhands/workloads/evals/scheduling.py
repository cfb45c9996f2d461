"""When the tests of one session are executed: how many at once, in which order, how often, and what ends the session early.

**Concurrency.** The maximum concurrency of the run, of each eval file and of each target hold beside each other. A test acquires that of
its target first and releases it with the answer; those of the file and of the run it keeps until it is graded. So nobody who waits for a
busy target keeps others from an idle one.

**Samples.** With pass_at_k no sample of a test begins after one has passed, and with a cost limit none once those before have cost it. Such
a sample ends at once, as discarded with its reason: it is in the engine's ledger, and no part of the test's result. A sample waits only for
earlier ones that run at this moment. One that broke, and is tried again later, is not waited for: then a sample more than needed may be
made.

**Dependencies.** A test that depends on others does not begin before those have ended. A dependency has failed where it has no score
because of an error: its target's, a grader's, or that of what it depends on itself; or where it was left out as invalid. A low score is
none. ``on_dependency_failure`` then says what is done with the test: ``skip``, ``fail``, ``run``. A test that waits takes no slot of the
engine's: it is held, and freed by the last end that it waits for. So nothing can wait for a slot that somebody holds who waits for it,
however few there are. Each target has its own answers to wait for. Of a test with several samples all have ended first, and it has failed
if together they come to an error.

**Attempts.** What took too long is tried again, and what may pass by itself: an endpoint that is down or limits the rate, a sandbox that
was lost. A command that ends with an error, an answer that can't be read and a grader that breaks would do so again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.core.errors import ItemError
from manyhands.core.failures import FAILURES, Cause
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Context, Item, ItemRow
from manyhands.engine.journal.reader import JournalReader
from manyhands.workloads.evals.evalfile.contents import JudgeNeed, judge_needs
from manyhands.workloads.evals.items import (
    COST_LIMIT,
    DEPENDENCY_FAILED,
    ERROR,
    FAILED_DEPENDENCIES,
    GRADER_ERROR,
    PASS_AT_K,
    PASSED,
    PASSED_BEFORE,
    SKIPPED,
    StopRules,
    TestItem,
    item_key,
    stop_rules,
)
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.settings import RETRIES, EvalSpec
from manyhands.workloads.evals.targets.definitions import Target
from manyhands.workloads.evals.targets.kinds.model_keys import RETRYING

MAX_FOR_COMMANDS = 3
MAX_FOR_MODELS = 16
"""Maximum concurrency of a target where nobody says, by what it is."""
MAX_FOR_BATCHES = 1000
"""Maximum number of tests that wait at once for the records of a command that answers all of them."""
MAX_SLOTS = 10_000
_FINAL = frozenset((Cause.WORKER_ERROR, Cause.INVALID_OUTPUT, Cause.TARGET_ERROR, Cause.GRADER_ERROR))
_OF_ENDPOINTS = frozenset((Cause.MODEL_ERROR, Cause.RATE_LIMIT))


class SessionSchedule:
    """Concurrency, order, attempts and time of the tests of one session."""

    def __init__(self, prepared: PreparedEval, run_folder: Path, *, replay: bool) -> None:
        """``replay``: nothing is run, so that every sample that was made is needed."""
        self.replay = replay
        self.concurrency = ConcurrencyLimits(prepared)
        self._recorded = RecordedItems(run_folder)
        self.samples = SampleOrder(self._recorded)
        self.dependencies = Dependencies(self._recorded)
        self.time = ItemTime(prepared.options.item_timeout)
        self._prepared = prepared

    def close(self) -> None:
        """Idempotent."""
        self._recorded.close()

    def stop_rules(self, item: TestItem, target: Target) -> StopRules | None:
        """When no further sample of a test is needed; None if all are made. A command that answers all tests is invoked for each sample
        whatever comes."""
        options = self._prepared.options
        if item.samples == 1 or answers_all(target) or options.regrade is not None:
            return None
        return stop_rules(item.test.trials, options.trials)

    def threshold(self, item: TestItem) -> float:
        """The score from which on a test has passed."""
        own = item.threshold
        return self._prepared.thresholds[item.file] if own is None else own

    def max_attempts(self, item: Item, failure: ItemError) -> int | None:
        """How many attempts an item may have in all before such a failure ends it; None: as the failure table says."""
        if self.time.is_over(item.number):
            return 1
        payload: Json = item.payload
        target = self._prepared.target_of(payload["file"], payload["target"])
        involved: Iterable[Target] = [target]
        if failure.record.get("status") == GRADER_ERROR:
            # A test without graders is judged by its target's judge.
            needs = list(judge_needs(payload["test"].get("graders", ()))) or [JudgeNeed("")]
            involved = self._prepared.judges_of(payload["file"], target, needs)
        retried = any(each.settings.get(name) is not None for each in involved for name in RETRYING)
        return max_attempts(self._prepared.options, failure.cause, calls_retried=retried)

    def stop_reason(self, item: Item, outcome: Outcome) -> str | None:
        """Why an item's end ends the run, None if it does not: with ``fail_on_error`` the first test whose target fails does."""
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


class RecordedItems:
    """The items of a run as its journal has them, which is opened when one is first needed."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._reader: JournalReader | None = None

    def by_key(self, key: str) -> ItemRow | None:
        """An item; None if the run has none with that key."""
        if self._reader is None:
            self._reader = JournalReader(self._folder)
        return self._reader.item_by_key(key)

    def close(self) -> None:
        """Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


# --- Concurrency


class RunLimit:
    """How many tests of a run are executed at once, which may change meanwhile."""

    def __init__(self, maximum: int | None) -> None:
        """``maximum``: None for no limit."""
        self._maximum = inf if maximum is None else maximum
        self._executed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def change(self, maximum: int) -> None:
        """With fewer, those that are executed come to their end."""
        self._maximum = maximum
        self._admit()

    async def __aenter__(self) -> None:
        if self._executed < self._maximum and not self._waiting:
            self._executed += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._executed -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._executed < self._maximum:
            turn = self._waiting.popleft()
            if not turn.done():
                self._executed += 1
                turn.set_result(None)


class ConcurrencyLimits:
    """How many tests of one session run at once."""

    def __init__(self, prepared: PreparedEval) -> None:
        self._prepared = prepared
        self._run = RunLimit(prepared.options.workers)
        self._files = [None if file.workers is None else asyncio.Semaphore(file.workers) for file in prepared.files]
        self._targets: dict[tuple[str, str], asyncio.Semaphore] = {}

    @asynccontextmanager
    async def for_target(self, file: int, target: Target) -> AsyncIterator[None]:
        """Wait until a target may be run, which is the same one for all files that name it."""
        limit = max_at_target(self._prepared, file, target)
        if limit is None:
            yield
            return
        key = (str(target.location), target.name)
        async with self._targets.setdefault(key, asyncio.Semaphore(limit)):
            yield

    def for_test(self, file: int) -> AbstractAsyncContextManager[None]:
        """Wait until a test of a file may be executed, for the file's and the run's sake."""
        of_file = self._files[file]
        return self._run if of_file is None else _both(of_file, self._run)

    def resize(self, workers: int) -> int:
        """Another maximum for the run; how many tests are claimed at once for that."""
        self._prepared = replace(self._prepared, options=self._prepared.options.changed({"workers": workers}))
        self._run.change(workers)
        return slots(self._prepared)


@asynccontextmanager
async def _both(first: asyncio.Semaphore, second: RunLimit) -> AsyncIterator[None]:
    async with first, second:
        yield


def max_at_target(prepared: PreparedEval, file: int, target: Target) -> int | None:
    """Maximum concurrency of a target; None if only the file's or the run's counts."""
    regraded = prepared.options.regrade is not None
    if target.workers is not None and not regraded:
        return target.workers
    if prepared.options.workers is not None or prepared.files[file].workers is not None:
        return None
    return MAX_FOR_COMMANDS if target.facts.starts_programs and not regraded else MAX_FOR_MODELS


def slots(prepared: PreparedEval) -> int:
    """How many tests are claimed at once, so that all targets can be busy: also where samples wait for earlier ones."""
    options = prepared.options
    total = 0
    for index, file in enumerate(prepared.files):
        for target in file.targets:
            if answers_all(target) and options.regrade is None:
                total += MAX_FOR_BATCHES
            else:
                limits = (max_at_target(prepared, index, target), file.workers, options.workers)
                total += min(limit for limit in limits if limit is not None) * file.in_turn
    return max(1, min(total, MAX_SLOTS))


def answers_all(target: Target) -> bool:
    """Whether a target's answers come from one file, for all tests."""
    return target.batching or target.facts.one_file_for_all


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

    def __init__(self, recorded: RecordedItems) -> None:
        self._recorded = recorded
        self._tests: dict[tuple[int, str, str], _Samples] = {}

    @contextmanager
    def running(self, item: TestItem, threshold: float) -> Iterator[SampleTurn]:
        """While a sample runs. ``threshold``: the score from which on it has passed."""
        key = (item.file, item.test.id, item.target)
        known = self._tests.get(key)
        if known is None:
            known = self._tests[key] = self._known(item, threshold)
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

    def _known(self, item: TestItem, threshold: float) -> _Samples:
        """What the journal holds of the other samples: of those before, and of those behind, if this one is made once more."""
        found = _Samples()
        for number in range(item.samples):
            row = None if number == item.sample else self._recorded.by_key(replace(item, sample=number).key)
            if row is not None and row.state.final:
                record = row.record or {}
                score = record.get("score") if row.state is ItemState.COMPLETED else None
                found.passed = found.passed or (score is not None and score >= threshold)
                found.cost += record.get("cost_usd") or 0.0
            elif number > item.sample:
                break
        return found


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


# --- Dependencies


_BROKEN = frozenset((ERROR, GRADER_ERROR, SKIPPED))


class _Key(NamedTuple):
    """A test, as a target answers it."""

    file: int
    dataset: str
    test_id: str
    target: str


class Dependencies:
    """What the tests of a session wait for."""

    def __init__(self, recorded: RecordedItems) -> None:
        """``recorded``: says what ended in earlier sessions."""
        self._recorded = recorded
        self._ended: dict[_Key, dict[int, str]] = {}
        self._failed: dict[_Key, bool] = {}
        self._waiting: dict[_Key, list[int]] = {}
        self._freed: list[int] = []

    def holds(self, item: Item) -> bool:
        """Whether something that the test depends on has not ended."""
        payload: Json = item.payload
        for named in payload.get("test", {}).get("depends_on", ()):
            key = _Key(payload["file"], payload["dataset"], named, payload["target"])
            if key in self._waiting or self._has_failed(key) is None:
                self._waiting.setdefault(key, []).append(item.number)
                return True
        return False

    def ended(self, item: Item, outcome: Outcome) -> None:
        """An item has ended, which may not be on disk yet."""
        payload: Json = item.payload
        if not payload.get("awaited"):
            return
        key = _Key(payload["file"], payload["dataset"], payload["test"]["id"], payload["target"])
        self._ended.setdefault(key, {})[payload["trial"]] = _status(outcome.state, outcome.record, outcome.reason)
        if key in self._waiting and self._has_failed(key) is not None:
            self._freed += self._waiting.pop(key)

    def freed(self) -> list[int]:
        """The tests that need not wait any more for what they waited for, each once."""
        freed, self._freed = self._freed, []
        return freed

    def reopened(self, item: Item) -> None:
        """An item that had ended is executed again."""
        payload: Json = item.payload
        if payload.get("awaited"):
            key = _Key(payload["file"], payload["dataset"], payload["test"]["id"], payload["target"])
            self._failed.pop(key, None)
            self._ended.get(key, {}).pop(payload["trial"], None)

    def failed(self, item: TestItem) -> tuple[str, ...]:
        """The ids of what a test depends on that has failed. Of what has not ended, nothing is known."""
        named = item.written.get("depends_on", ())
        return tuple(
            each for each in named if self._has_failed(_Key(item.file, item.dataset, each, item.target)) is True
        )

    def _has_failed(self, key: _Key) -> bool | None:
        """None if not all of its samples have ended."""
        if key not in self._failed:
            found = self._found(key)
            if found is None:
                return None
            self._failed[key] = found
            self._ended.pop(key, None)
        return self._failed[key]

    def _found(self, key: _Key) -> bool | None:
        known, statuses = self._ended.get(key, {}), list[str]()
        number, samples, strategy = 0, 1, PASS_AT_K
        while number < samples:
            row = self._recorded.by_key(item_key(key.dataset, key.test_id, key.target, number))
            if row is None or row.left_input:
                return True  # it was left out as invalid, or is not requested any more
            samples = row.payload.get("trials", 1)
            strategy = (row.payload["test"].get("trials") or {}).get("strategy", PASS_AT_K)
            status = known.get(number)
            if status is None and row.state.final:
                status = _status(row.state, row.record or {}, row.reason)
            if status is None:
                return None
            statuses.append(status)
            number += 1
        if strategy == PASS_AT_K and PASSED in statuses:
            return False
        return not _BROKEN.isdisjoint(statuses)


def _status(state: ItemState, record: Mapping[str, Any], reason: str | None) -> str:
    """How one sample ended."""
    if state is ItemState.COMPLETED:
        return str(record.get("status"))
    if state is ItemState.DISCARDED:
        return SKIPPED if reason == DEPENDENCY_FAILED else str(reason)
    return ERROR


# --- Attempts and time


def max_attempts(options: EvalSpec, cause: Cause, *, calls_retried: bool = False) -> int | None:
    """How many attempts a test may have in all before such a failure ends it; None: as the failure table says. ``calls_retried``: the
    target says itself how often a failed call is tried again, which has been done."""
    if cause in _FINAL or (cause in _OF_ENDPOINTS and calls_retried):
        return 1
    retries = options.retries
    if cause is Cause.TIMEOUT:
        return 1 + (RETRIES if retries is None else retries)
    return None if retries is None or not FAILURES[cause].retried else 1 + retries


class ItemTime:
    """The time that tests have, over all attempts of a session."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._used: dict[int, float] = {}

    def is_over(self, item: int) -> bool:
        """Whether a test, by the number of its item, has used up its time."""
        return self._used.get(item, 0.0) >= self._seconds

    def forget(self, item: int) -> None:
        """A test has ended."""
        self._used.pop(item, None)

    @asynccontextmanager
    async def running(self, context: Context) -> AsyncIterator[None]:
        """What is done for a test. Raises ItemError(TIMEOUT) when its time is over."""
        item = context.item.number
        limit: asyncio.Timeout | None = None
        before = self._used.get(item, 0.0)
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
    """Seconds that are left of a time limit, at most 0 if it is over; None where that is not known, as in a pause."""
    if limit is None or (when := limit.when()) is None:
        return None
    return -inf if limit.expired() else when - asyncio.get_running_loop().time()


def _meant(limit: asyncio.Timeout | None, error: TimeoutError, message: str) -> Exception:
    """What a TimeoutError means, which may be of somebody else's making."""
    return ItemError(Cause.TIMEOUT, message) if limit is not None and limit.expired() else error
