"""When the tests of one session are executed: where, how many at once, in which order, how often, and what ends the session early. All
of it is decided by the run's owner.

**Processes.** Any worker process may execute any test, and reads of the journal only what was planned. What it needs to know of other tests
it is told with each test (``Facts``). Tests that share something in the memory of whoever executes them are of one group, which one process
executes (``SessionSchedule.group``): those that one command, or one file, answers; those that have a workspace in turn; and the samples of
a test that go one after another. What is done once for the run, before its first test and after its last one, the owner does.

**Concurrency.** The maximum concurrency of the run, of each eval file and of each target hold beside each other, over all processes: the
engine keeps these limits for the run (``own_limits``). A test acquires that of its target first and releases it with the answer; those of
the file and of the run it keeps until it is graded. So nobody who waits for a busy target keeps others from an idle one.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from zlib import crc32

from manyhands.core.errors import ItemError
from manyhands.core.failures import FAILURES, Cause
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Item, ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.processes.system import processors
from manyhands.workloads.evals.evalfile.contents import JudgeNeed, judge_needs
from manyhands.workloads.evals.grading.graded_answer import PROGRAMS
from manyhands.workloads.evals.items import (
    DEPENDENCY_FAILED,
    ERROR,
    FAILED_DEPENDENCIES,
    GRADER_ERROR,
    PASS_AT_K,
    PASSED,
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


_SAMPLE_GROUPS = 256
"""Into how many groups tests are divided whose samples go one after another."""


class Facts(TypedDict, total=False):
    """What whoever executes a test is told of it, as the journal may not say so where he is."""

    seconds: float
    """What it has used of its time in this session."""
    rerun: bool
    """Whether somebody had it executed again that had ended."""
    passed: bool
    """Whether another sample of it has passed, where no more are needed then."""
    cost: float
    """What its other samples have cost, in US dollars."""
    failed: tuple[str, ...]
    """The ids of what it depends on that has failed."""


SECONDS = "seconds_used"
"""The key in the record of a failed attempt that says what the test has used of its time."""


class SessionSchedule:
    """Concurrency, order, attempts and time of the tests of one session."""

    def __init__(self, prepared: PreparedEval, run_folder: Path) -> None:
        self._prepared = prepared
        self.recorded = RecordedItems(run_folder)
        self._samples = SampleEnds(self.recorded)
        self._seconds: dict[int, float] = {}
        """What tests have used of their time, by the numbers of their items."""
        self._limits = own_limits(prepared)
        self.dependencies = Dependencies(self.recorded)

    def close(self) -> None:
        """Idempotent."""
        self.recorded.close()

    def group(self, item: Item) -> str | None:
        """Which tests one process has to execute together with this one; None: any process may execute it."""
        if self._prepared.options.regrade is not None:
            return None
        test = TestItem.from_json(item.payload)
        target = self._prepared.target_of(test.file, test.target)
        if answers_all(target):
            return f"answers {test.file} {test.sample if target.batching else 0} {test.target}"
        workspace = test.test.workspace if "workspace" in test.written else None
        if workspace is not None and workspace.shared:
            return f"workspace {workspace.path if workspace.in_place else test.file}"
        if stop_rules_of(self._prepared, test, target) is not None:
            return f"samples {crc32(f'{test.file} {test.target} {test.test_id}'.encode()) % _SAMPLE_GROUPS}"
        return None

    def facts(self, item: Item, attempt: int) -> Facts:
        """What whoever executes a test is told of it."""
        facts: Facts = {}
        if item.number in self._seconds:
            facts["seconds"] = self._seconds[item.number]
        if attempt > 1 and self.recorded.ended_before(item.number):
            facts["rerun"] = True
        if item.payload.get("trials", 1) > 1:
            test = TestItem.from_json(item.payload)
            if stop_rules_of(self._prepared, test, self._prepared.target_of(test.file, test.target)) is not None:
                facts["passed"], facts["cost"] = self._samples.known(test, threshold_of(self._prepared, test))
        if "depends_on" in item.payload["test"]:
            facts["failed"] = self.dependencies.failed(TestItem.from_json(item.payload))
        return facts

    def own_limit(self, name: str) -> int | None:
        """How many tests may be at a limit at once; None: any number."""
        return self._limits.get(name)

    def resize(self, workers: int) -> int:
        """Another maximum for the run; how many tests are claimed at once for that."""
        self._prepared = replace(self._prepared, options=self._prepared.options.changed({"workers": workers}))
        self._limits = own_limits(self._prepared)
        return slots(self._prepared)

    def reopened(self, numbers: Iterable[int]) -> None:
        """Items of these numbers that had ended are executed again."""
        for number in numbers:
            if (item := self.recorded.by_number(number)) is not None and "test" in item.payload:
                self.dependencies.reopened(item)
                self._samples.reopened(TestItem.from_json(item.payload))

    def max_attempts(self, item: Item, failure: ItemError) -> int | None:
        """How many attempts an item may have in all before such a failure ends it; None: as the failure table says."""
        # What the attempt took is told with the failure, and no part of the item's record.
        self._seconds[item.number] = failure.record.pop(SECONDS, self._seconds.get(item.number, 0.0))
        if self._seconds[item.number] >= self._prepared.options.item_timeout:
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
        self._seconds.pop(item.number, None)
        if "awaited" in item.payload:
            self.dependencies.ended(item, outcome)
        if item.payload.get("trials", 1) > 1:
            self._samples.ended(TestItem.from_json(item.payload), outcome)
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
        return self._opened.item_by_key(key)

    def by_number(self, number: int) -> Item | None:
        """An item by its number."""
        row = self._opened.item(str(number))
        return None if row is None else row.item

    def steps(self, number: int, attempt: int) -> Sequence[RecordedStep]:
        """The steps of an attempt, by the number of its item."""
        return self._opened.steps(number, attempt)

    def ended_before(self, number: int) -> bool:
        """Whether somebody had an item executed again that had ended."""
        return bool(self._opened.earlier_outcomes(number))

    @property
    def _opened(self) -> JournalReader:
        if self._reader is None:
            self._reader = JournalReader(self._folder)
        return self._reader

    def close(self) -> None:
        """Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


# --- Concurrency


RUN = "run"
"""The limit of the run."""


def of_file(file: int) -> str:
    """The limit of an eval file."""
    return f"file {file}"


def of_target(target: Target) -> str:
    """The limit of a target, which is the same one for all files that name it."""
    return f"target {target.location} {target.name}"


def own_limits(prepared: PreparedEval) -> dict[str, int | None]:
    """How many tests may be at each limit at once; without those of targets that have none."""
    options = prepared.options
    # Each node of a cluster runs as many programs as it has processors.
    programs = options.grader_processes or (None if options.executor == "ray" else processors())
    limits: dict[str, int | None] = {RUN: options.workers, PROGRAMS: programs}
    for index, file in enumerate(prepared.files):
        limits[of_file(index)] = file.workers
        for target in file.targets:
            if (limit := max_at_target(prepared, index, target)) is not None:
                limits.setdefault(of_target(target), limit)
    return limits


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


def stop_rules_of(prepared: PreparedEval, item: TestItem, target: Target) -> StopRules | None:
    """When no further sample of a test is needed; None if all are made. A command that answers all tests is invoked for each sample
    whatever comes."""
    options = prepared.options
    if item.samples == 1 or answers_all(target) or options.regrade is not None:
        return None
    return stop_rules(item.test.trials, options.trials)


def threshold_of(prepared: PreparedEval, item: TestItem) -> float:
    """The score from which on a test has passed."""
    own = item.threshold
    return prepared.thresholds[item.file] if own is None else own


class SampleEnds:
    """How the samples of tests have ended, where no more are needed if one has passed, or all have cost enough."""

    def __init__(self, recorded: RecordedItems) -> None:
        self._recorded = recorded
        self._tests: dict[tuple[int, str, str], dict[int, tuple[float | None, float]]] = {}
        """Score and cost of each sample that has ended, by its number."""

    def known(self, item: TestItem, threshold: float) -> tuple[bool, float]:
        """Whether one has passed, and what they have cost, but for this one. ``threshold``: the score from which on one has passed."""
        key = (item.file, item.test_id, item.target)
        if key not in self._tests:
            self._tests[key] = self._found(item)
        others = [ended for number, ended in self._tests[key].items() if number != item.sample]
        passed = any(score is not None and score >= threshold for score, _ in others)
        return passed, sum(cost for _, cost in others)

    def ended(self, item: TestItem, outcome: Outcome) -> None:
        """A sample has ended, which may not be on disk yet."""
        samples = self._tests.get((item.file, item.test_id, item.target))
        if samples is not None:
            samples[item.sample] = _score_and_cost(outcome.state, outcome.record)

    def reopened(self, item: TestItem) -> None:
        """A sample that had ended is executed again."""
        self._tests.get((item.file, item.test_id, item.target), {}).pop(item.sample, None)

    def _found(self, item: TestItem) -> dict[int, tuple[float | None, float]]:
        """What the journal holds of the samples: of those before, and of those behind, if this one is made once more."""
        found = dict[int, tuple[float | None, float]]()
        for number in range(item.samples):
            row = self._recorded.by_key(replace(item, sample=number).key)
            if row is not None and row.state.final:
                found[number] = _score_and_cost(row.state, row.record or {})
        return found


def _score_and_cost(state: ItemState, record: Mapping[str, Any]) -> tuple[float | None, float]:
    return record.get("score") if state is ItemState.COMPLETED else None, record.get("cost_usd") or 0.0


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


# --- Attempts


def max_attempts(options: EvalSpec, cause: Cause, *, calls_retried: bool = False) -> int | None:
    """How many attempts a test may have in all before such a failure ends it; None: as the failure table says. ``calls_retried``: the
    target says itself how often a failed call is tried again, which has been done."""
    if cause in _FINAL or (cause in _OF_ENDPOINTS and calls_retried):
        return 1
    retries = options.retries
    if cause is Cause.TIMEOUT:
        return 1 + (RETRIES if retries is None else retries)
    return None if retries is None or not FAILURES[cause].retried else 1 + retries
