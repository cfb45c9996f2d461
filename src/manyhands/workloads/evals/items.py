"""Items of a run: every test × target × trial, as the journal holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypedDict

from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import PlannedItem
from manyhands.graders.protocol import ScoreRecord
from manyhands.workloads.evals.evalfile.tests import EvalFile, Test

PASSED = "passed"


FAILED = "failed"


ERROR = "error"


GRADER_ERROR = "grader_error"


UNGRADED = "ungraded"
"""What becomes of a test. (Tests that were left out are ``items.INVALID``.)"""


SKIPPED = "skipped"
"""What became of a test that was not performed, as what it depends on has failed."""


INVALID = "invalid"
"""The reason of tests that were left out because they can't be run."""


class ItemRecord(TypedDict, total=False):
    """What the journal records of an item's end (``Outcome.record``), as far as results are made of it."""

    status: str
    score: float | None
    target: str
    trial: int
    answer: str
    output: list[dict[str, Json]] | None
    trace: dict[str, Json] | None
    token_usage: dict[str, float] | None
    cost_usd: float | None
    duration_ms: float | None
    notices: list[str]
    simulated: bool
    scores: list[ScoreRecord]
    hits: list[str]
    misses: list[str]
    reasoning: str | None
    verdict: str | None
    threshold: float
    turns: list[dict[str, Json]]
    error: str
    failed_dependencies: list[str]
    stops_early: bool
    file_changes: str
    before_each_output: str
    after_each_output: str
    workspace: str
    """Where the workspace is, below the run folder."""


@dataclass(slots=True)  # not frozen: see Outcome
class TestItem:
    """One item. ``file``: the index of the eval file among the run's; ``trial`` counts from 0, of ``trials`` in all; ``written``: the test
    as the journal holds it, which is read as a whole only if somebody needs more of it than what stands here."""

    file: int
    dataset: str
    written: Mapping[str, Any]
    target: str
    trial: int
    trials: int = 1
    _test: Test | None = None

    @property
    def test(self) -> Test:
        if self._test is None:
            self._test = Test.from_json(self.written)
        return self._test

    @property
    def test_id(self) -> str:
        found: str = self.written["id"]
        return found

    @property
    def graders(self) -> Sequence[Mapping[str, Any]]:
        """See ``Test``; also the next one."""
        found: Sequence[Mapping[str, Any]] = self.written.get("graders", ())
        return found

    @property
    def threshold(self) -> float | None:
        return self.written.get("threshold")

    @property
    def key(self) -> str:
        return item_key(self.dataset, self.test_id, self.target, self.trial)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """An item of its payload."""
        trials = value.get("trials", 1)
        return cls(value["file"], value["dataset"], value["test"], value["target"], value["trial"], trials)


def plan_tests(
    files: Sequence[EvalFile], targets: Sequence[Sequence[str]], trials: int | None
) -> Iterator[PlannedItem]:
    """The items in order of files and tests; of a test, by target, then by trial. ``targets``: of each file. Those that others depend on
    say so (``awaited``)."""
    for index, (file, names) in enumerate(zip(files, targets, strict=True)):
        awaited = {each for test in file.tests for each in test.depends_on}
        for test in map(Test.to_json, file.tests):
            own, of_file = test.get("trials"), 1 if file.trials is None else file.trials.count
            count = trials or (of_file if own is None else own["count"])
            for target in names if test.get("targets") is None else [name for name in names if name in test["targets"]]:
                for trial in range(count):
                    payload = _payload(index, file.dataset, test, target, trial, count)
                    if test["id"] in awaited:
                        payload["awaited"] = True
                    yield PlannedItem(item_key(file.dataset, test["id"], target, trial), payload)
        for number, invalid in enumerate(file.invalid):
            key = f"{file.dataset}/{invalid.id or 'test'}!{number}"
            payload = {"file": index, "dataset": file.dataset, "id": invalid.id, "place": str(invalid.place)}
            outcome = Outcome(ItemState.DISCARDED, {"status": INVALID}, reason=INVALID, message=invalid.message)
            yield PlannedItem(key, payload, outcome=outcome)


def item_key(dataset: str, test_id: str, target: str, trial: int) -> str:
    """The key of an item among those of its run. ``trial`` counts from 0."""
    return f"{dataset}/{test_id}@{target}" + (f"#{trial}" if trial else "")


def _payload(file: int, dataset: str, test: Json, target: str, trial: int, trials: int) -> dict[str, Any]:
    """``group``: tests that share one are not independent of each other (a conversation, or ``metadata.group``)."""
    group = test.get("conversation_id") or test.get("metadata", {}).get("group")
    return {
        "file": file,
        "dataset": dataset,
        "test": test,
        "target": target,
        "trial": trial,
        **({"trials": trials} if trials > 1 else {}),
        "group": None if group is None else str(group),
    }
