"""In which order tests of a session are executed: samples of a test that may prove needless, and tests that depend on others.

With pass_at_k no sample begins after one has passed, and with a cost limit none once those before have cost it. Such a sample ends at
once, as discarded with its reason: it is in the engine's ledger, and no part of the test's result. A sample waits only for earlier ones
that are being executed at this moment. One that broke, and is tried again later, is not waited for: then a sample more than needed may be
made.

A test that depends on others does not begin before those have ended. A dependency has failed where it has no score because of an error:
its target's, a grader's, or that of what it depends on itself; or where it was left out as invalid. A low score is none.
``on_dependency_failure`` then says what is done with the test: ``skip``, ``fail``, ``run``.

A test that waits takes no slot of the engine's: it is held, and freed by the last end that it waits for. So nothing can wait for a slot
that somebody holds who waits for it, however few there are. Each target has its own answers to wait for. Of a test with several samples
all have ended first, and it has failed if together they come to an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Item
from manyhands.engine.journal.reader import JournalReader
from manyhands.workloads.evals.evalfile.tests import Trials
from manyhands.workloads.evals.items import ERROR, GRADER_ERROR, PASSED, SKIPPED, TestItem, item_key

PASSED_BEFORE = "passed_before"
COST_LIMIT = "cost_limit"
NEEDLESS = (PASSED_BEFORE, COST_LIMIT)
"""Why trials were left out: the reasons of discarded items."""
PASS_AT_K = "pass_at_k"
_MESSAGES = {
    PASSED_BEFORE: "not needed: another trial of the test has passed",
    COST_LIMIT: "the trials of the test have cost what they may (cost_limit_usd)",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """When trials of a test are over. ``at_first_pass``; ``cost_limit``: US dollars, None for no limit."""

    at_first_pass: bool
    cost_limit: float | None


def rules_of(trials: Trials | None, given: int | None) -> Rules | None:
    """None if all trials are made whatever comes. ``given``: how many the settings ask for; then that many are made."""
    if trials is None:
        return None
    at_first_pass = given is None and trials.stop_early and trials.strategy == PASS_AT_K
    return Rules(at_first_pass, trials.cost_limit_usd) if at_first_pass or trials.cost_limit_usd is not None else None


def in_turn(trials: Iterable[Trials], given: int | None) -> int:
    """How many trials of a test go one after another, at most. ``trials``: what the tests say."""
    counts = (each.count if given is None else given for each in trials if rules_of(each, given) is not None)
    return max(counts, default=1)


def stopping_early(outcome: Outcome) -> Outcome:
    """A trial's end, with it on record that further trials would not have been made, which makes estimates of their passing biased."""
    return replace(outcome, record={**outcome.record, "stops_early": True})


def left_out(reason: str) -> Outcome:
    """The end of a trial that is not made."""
    return Outcome(ItemState.DISCARDED, {"status": reason}, reason=reason, message=_MESSAGES[reason])


@dataclass(slots=True)
class _Test:
    """What is known of a test's trials. ``running``: those being performed, by number."""

    passed: bool = False
    cost: float = 0.0
    running: dict[int, asyncio.Future[None]] = field(default_factory=dict)


class TrialOrder:
    """The trials of a session that go one after another."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._reader: JournalReader | None = None
        self._tests: dict[tuple[int, str, str], _Test] = {}

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @contextmanager
    def performing(self, item: TestItem, limit: float) -> Iterator[Turn]:
        """A trial that is being performed. ``limit``: the score from which on it has passed."""
        key = (item.file, item.test.id, item.target)
        known = self._tests.get(key)
        if known is None:
            known = self._tests[key] = self._recorded(item, limit)
        ended = known.running[item.trial] = asyncio.get_running_loop().create_future()
        turn = Turn(known, item.trial)
        try:
            yield turn
        except ItemError as failure:
            turn.told(failure.record)
            raise
        finally:
            ended.set_result(None)
            del known.running[item.trial]
            if item.trial == item.trials - 1 and not known.running:
                self._tests.pop(key, None)

    def _recorded(self, item: TestItem, limit: float) -> _Test:
        """What the journal holds of the other trials: of those before, and of those behind, if this one is made once more."""
        found = _Test()
        if self._reader is None:
            self._reader = JournalReader(self._folder)
        for number in range(item.trials):
            row = None if number == item.trial else self._reader.item_by_key(replace(item, trial=number).key)
            if row is not None and row.state.final:
                record = row.record or {}
                score = record.get("score") if row.state is ItemState.COMPLETED else None
                found.passed = found.passed or (score is not None and score >= limit)
                found.cost += record.get("cost_usd") or 0.0
            elif number > item.trial:
                break
        return found


class Turn:
    """One trial's turn."""

    def __init__(self, test: _Test, trial: int) -> None:
        self._test = test
        self._trial = trial

    async def needless(self, rules: Rules) -> str | None:
        """Wait for the trials before that are being performed; why this one is not needed, None if it is."""
        while waiting := [ended for trial, ended in self._test.running.items() if trial < self._trial]:
            await asyncio.wait(waiting)
        if rules.at_first_pass and self._test.passed:
            return PASSED_BEFORE
        if rules.cost_limit is not None and self._test.cost >= rules.cost_limit:
            return COST_LIMIT
        return None

    def told(self, record: Mapping[str, Any], *, passed: bool = False) -> None:
        """How the trial ended."""
        self._test.passed = self._test.passed or passed
        self._test.cost += record.get("cost_usd") or 0.0


SKIP, FAIL, RUN = POLICIES = ("skip", "fail", "run")
DEPENDENCY_FAILED = "dependency_failed"
"""The reason of such discarded items."""
FAILED_DEPENDENCIES = "failed_dependencies"
"""In records: the ids of those that have failed."""
_BROKEN = frozenset((ERROR, GRADER_ERROR, SKIPPED))


class _Key(NamedTuple):
    """A test, as a target answers it."""

    file: int
    dataset: str
    test_id: str
    target: str


class Dependencies:
    """What the tests of a session wait for. ``run_folder``: the run's, whose journal says what ended in earlier sessions."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._reader: JournalReader | None = None
        self._ended: dict[_Key, dict[int, str]] = {}
        self._failed: dict[_Key, bool] = {}
        self._waiting: dict[_Key, list[int]] = {}
        self._freed: list[int] = []

    def close(self) -> None:
        """Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def holds(self, item: Item) -> bool:
        """See ``Execution``: whether something that the test depends on has not ended."""
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
        """See ``Execution``: the tests that need not wait any more for what they waited for, each told once."""
        freed, self._freed = self._freed, []
        return freed

    def failed(self, item: TestItem) -> tuple[str, ...]:
        """The ids of what a test depends on that has failed. Of what has not ended, nothing is known."""
        named = item.written.get("depends_on", ())
        return tuple(
            each for each in named if self._has_failed(_Key(item.file, item.dataset, each, item.target)) is True
        )

    def _has_failed(self, key: _Key) -> bool | None:
        """None if not all of its trials have ended."""
        if key not in self._failed:
            found = self._found(key)
            if found is None:
                return None
            self._failed[key] = found
            self._ended.pop(key, None)
        return self._failed[key]

    def _found(self, key: _Key) -> bool | None:
        if self._reader is None:
            self._reader = JournalReader(self._folder)
        told, statuses = self._ended.get(key, {}), list[str]()
        number, trials, strategy = 0, 1, PASS_AT_K
        while number < trials:
            row = self._reader.item_by_key(item_key(key.dataset, key.test_id, key.target, number))
            if row is None or row.left_input:
                return True  # it was left out as invalid, or is not asked for any more
            trials = row.payload.get("trials", 1)
            strategy = (row.payload["test"].get("trials") or {}).get("strategy", PASS_AT_K)
            status = told.get(number)
            if status is None and row.state.final:
                status = _status(row.state, row.record or {}, row.reason)
            if status is None:
                return None
            statuses.append(status)
            number += 1
        if strategy == PASS_AT_K and PASSED in statuses:
            return False
        return not _BROKEN.isdisjoint(statuses)


def ended_by_dependencies(item: TestItem, failed: tuple[str, ...]) -> Outcome | None:
    """The end of a test some of whose dependencies have ``failed``; None if it is to be performed."""
    policy = item.written.get("on_dependency_failure", SKIP)
    if not failed or policy == RUN:
        return None
    named = ", ".join(failed)
    why = f"test {named}, which it depends on, has" if len(failed) == 1 else f"tests {named}, which it depends on, have"
    message = f"{why} no score because of an error"
    record: dict[str, Any] = {FAILED_DEPENDENCIES: list(failed), "target": item.target, "trial": item.trial}
    if policy == FAIL:
        record |= {"status": ERROR, "score": None, "error": message}
        return Outcome(ItemState.FAILED, record, cause=Cause.TARGET_ERROR, message=message)
    return Outcome(ItemState.DISCARDED, {**record, "status": SKIPPED}, reason=DEPENDENCY_FAILED, message=message)


def _status(state: ItemState, record: Mapping[str, Any], reason: str | None) -> str:
    """What became of one trial."""
    if state is ItemState.COMPLETED:
        return str(record.get("status"))
    if state is ItemState.DISCARDED:
        return SKIPPED if reason == DEPENDENCY_FAILED else str(reason)
    return ERROR
