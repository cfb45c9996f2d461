"""What holds a session's tests back, and what ends it early."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.context import Item
from manyhands.evals.dependencies import FAILED_DEPENDENCIES, Dependencies
from manyhands.evals.grading import GRADER_ERROR
from manyhands.evals.items import TestItem
from manyhands.evals.judge_needs import JudgeNeed, judge_needs
from manyhands.evals.places import Places, answers_all
from manyhands.evals.prepared import PreparedEval
from manyhands.evals.retrying import Time, tries
from manyhands.evals.target_blocks import RETRYING
from manyhands.evals.targets import Target
from manyhands.evals.trial_order import Rules, TrialOrder, rules_of


class RunControl:
    """Places, trials' order and time of one session. ``replay``: nothing is asked, so that every trial that was made is needed."""

    def __init__(self, prepared: PreparedEval, run_folder: Path, *, replay: bool) -> None:
        self.places = Places(prepared)
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
