"""Tests that depend on others: none begins before those have ended, and what became of them may end it unperformed.

A dependency has failed where it has no score because of an error: its target's, a grader's, or that of what it depends on itself; or where
it was left out as invalid. A low score is none. ``on_dependency_failure`` then says what becomes of the test: ``skip``, ``fail``, ``run``.

A test that waits takes no slot of the engine's: it is held, and freed by the last end that it waits for. So nothing can wait for a slot
that somebody holds who waits for it, however few there are. Each target has its own answers to wait for. Of a test with several trials all
have ended first, and it has failed if together they come to an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.context import Item
from manyhands.engine.reader import JournalReader
from manyhands.evals.grading import ERROR, GRADER_ERROR, PASSED
from manyhands.evals.items import TestItem, item_key
from manyhands.evals.trial_order import PASS_AT_K

SKIP, FAIL, RUN = POLICIES = ("skip", "fail", "run")
SKIPPED = "skipped"
"""What became of a test that was not performed, as what it depends on has failed."""
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


def unperformed(item: TestItem, failed: tuple[str, ...]) -> Outcome | None:
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
