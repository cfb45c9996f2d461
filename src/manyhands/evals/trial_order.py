"""Trials of a test, one after another where a later one may prove needless.

With pass_at_k no trial begins after one has passed, and with a cost limit none once those before have cost it. Such a trial ends at once,
as discarded with its reason: it is in the engine's ledger, and no part of the test's result. A trial waits only for earlier ones that are
being performed at this moment. One that broke, and is tried again later, is not waited for: then a trial more than needed may be made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.reader import JournalReader
from manyhands.evals.items import TestItem
from manyhands.evals.model import Trials

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
