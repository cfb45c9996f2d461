"""Items of a run: every test × target × sample, as the journal holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict

from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import PlannedItem
from manyhands.graders.protocol import ScoreRecord
from manyhands.workloads.evals.evalfile.contents import EvalFile, Test, Trials

PASSED, FAILED, ERROR, GRADER_ERROR, UNGRADED = "passed", "failed", "error", "grader_error", "ungraded"
"""The statuses of tests that were executed."""
SKIPPED = "skipped"
"""The status of a test that was not executed, as a test that it depends on has failed, and of a trial that proved needless."""
INVALID = "invalid"
"""The status of a test that was left out because it can't be run; also the reason why its item was discarded."""
PASS_AT_K = "pass_at_k"
"""The strategy for samples by which the best one counts."""
PASSED_BEFORE, COST_LIMIT = NEEDLESS = ("passed_before", "cost_limit")
"""Why samples were left out as needless: reasons of discarded items."""
DEPENDENCY_FAILED = "dependency_failed"
"""The reason why the item of a skipped test was discarded; also the cause of an error that comes of it."""
FAILED_DEPENDENCIES = "failed_dependencies"
"""The field of records with the ids of the tests that have failed, of those that a test depends on."""


RERUN = "--rerun_failed"
"""Why tests are executed again from nothing that have failed, or ended in errors."""


class ItemRecord(TypedDict, total=False):
    """What the journal records of an item's end (``Outcome.record``), as far as results are made of it; with the answer's
    figures (``FIGURES`` of ``targets.answer_figures``)."""

    status: str
    score: float | None
    target: str
    trial: int
    answer: str
    output: list[dict[str, Json]] | None
    trace: dict[str, Json] | None
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
    collected: dict[str, Any]
    verified: dict[str, Any]
    """Of a task folder, see ``Answer.verified``."""
    before_each_output: str
    after_each_output: str
    workspace: str
    """Where the workspace is, below the run folder."""


@dataclass(slots=True)  # not frozen: see Outcome
class TestItem:
    """One item."""

    file: int
    """The index of the eval file among the run's."""
    dataset: str
    """What results call the eval file."""
    written: Mapping[str, Any]
    """The test as the journal holds it, which is read as a whole only if somebody needs more of it than what stands here."""
    target: str
    """The name of the target."""
    sample: int
    """The number of the sample, from 0."""
    samples: int = 1
    """How many samples there are of the test."""
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
        """The test's graders, in normal form."""
        found: Sequence[Mapping[str, Any]] = self.written.get("graders", ())
        return found

    @property
    def threshold(self) -> float | None:
        """The score from which on the test has passed, if it has its own."""
        return self.written.get("threshold")

    @property
    def key(self) -> str:
        return item_key(self.dataset, self.test_id, self.target, self.sample)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """An item of its payload."""
        samples = value.get("trials", 1)
        return cls(value["file"], value["dataset"], value["test"], value["target"], value["trial"], samples)


def plan_tests(
    files: Sequence[EvalFile], targets: Sequence[Sequence[str]], samples: int | None
) -> Iterator[PlannedItem]:
    """The items in order of files and tests; of a test, by target, then by sample. Those that others depend on say so (``awaited``).
    ``targets``: the names of each file's; ``samples``: how many the settings ask for."""
    for index, (file, names) in enumerate(zip(files, targets, strict=True)):
        awaited = {each for test in file.tests for each in test.depends_on}
        for test in map(Test.to_json, file.tests):
            own, of_file = test.get("trials"), 1 if file.trials is None else file.trials.count
            count = samples or (of_file if own is None else own["count"])
            for target in names if test.get("targets") is None else [name for name in names if name in test["targets"]]:
                for sample in range(count):
                    payload = _payload(index, file.dataset, test, target, sample, count)
                    if test["id"] in awaited:
                        payload["awaited"] = True
                    yield PlannedItem(item_key(file.dataset, test["id"], target, sample), payload)
        for number, invalid in enumerate(file.invalid):
            key = f"{file.dataset}/{invalid.id or 'test'}!{number}"
            payload = {"file": index, "dataset": file.dataset, "id": invalid.id, "place": str(invalid.location)}
            outcome = Outcome(ItemState.DISCARDED, {"status": INVALID}, reason=INVALID, message=invalid.message)
            yield PlannedItem(key, payload, outcome=outcome)


def item_key(dataset: str, test_id: str, target: str, sample: int) -> str:
    """The key of an item among those of its run. ``sample``: its number, from 0."""
    return f"{dataset}/{test_id}@{target}" + (f"#{sample}" if sample else "")


def _payload(file: int, dataset: str, test: Json, target: str, sample: int, samples: int) -> dict[str, Any]:
    """``group``: tests that share one are not independent of each other (a conversation, or ``metadata.group``)."""
    group = test.get("conversation_id") or test.get("metadata", {}).get("group")
    return {
        "file": file,
        "dataset": dataset,
        "test": test,
        "target": target,
        "trial": sample,
        **({"trials": samples} if samples > 1 else {}),
        "group": None if group is None else str(group),
    }


@dataclass(frozen=True, slots=True)
class StopRules:
    """When no further sample of a test is needed."""

    at_first_pass: bool
    """As soon as one has passed."""
    cost_limit: float | None
    """As soon as they have cost that many US dollars; None for no limit."""


def stop_rules(trials: Trials | None, given: int | None) -> StopRules | None:
    """None if all samples are made whatever comes. ``trials``: what the test says; ``given``: how many samples the settings ask for; then
    that many are made."""
    if trials is None:
        return None
    at_first_pass = given is None and trials.stop_early and trials.strategy == PASS_AT_K
    cost_limit = trials.cost_limit_usd
    return StopRules(at_first_pass, cost_limit) if at_first_pass or cost_limit is not None else None


def in_turn(trials: Iterable[Trials], given: int | None) -> int:
    """How many samples of a test go one after another, at most. ``trials``: what the tests say."""
    counts = (each.count if given is None else given for each in trials if stop_rules(each, given) is not None)
    return max(counts, default=1)


# --- How items end that are not executed


_WHY_NEEDLESS = {
    PASSED_BEFORE: "not needed: another trial of the test has passed",
    COST_LIMIT: "the trials of the test have cost what they may (cost_limit_usd)",
}


def left_out(reason: str) -> Outcome:
    """The end of a sample that is needless. ``reason``: one of ``NEEDLESS``."""
    return Outcome(ItemState.DISCARDED, {"status": reason}, reason=reason, message=_WHY_NEEDLESS[reason])


def stopping_early(outcome: Outcome) -> Outcome:
    """A sample's end, with it on record that further samples would not have been made, which makes estimates of their passing biased."""
    return replace(outcome, record={**outcome.record, "stops_early": True})


SKIP, FAIL, RUN = "skip", "fail", "run"
"""What is done with a test whose dependencies have failed."""


def ended_by_dependencies(item: TestItem, failed: tuple[str, ...]) -> Outcome | None:
    """The end of a test some of whose dependencies have ``failed``; None if it is to be executed."""
    policy = item.written.get("on_dependency_failure", SKIP)
    if not failed or policy == RUN:
        return None
    named = ", ".join(failed)
    why = f"test {named}, which it depends on, has" if len(failed) == 1 else f"tests {named}, which it depends on, have"
    message = f"{why} no score because of an error"
    record: dict[str, Any] = {FAILED_DEPENDENCIES: list(failed), "target": item.target, "trial": item.sample}
    if policy == FAIL:
        record |= {"status": ERROR, "score": None, "error": message}
        return Outcome(ItemState.FAILED, record, cause=Cause.TARGET_ERROR, message=message)
    return Outcome(ItemState.DISCARDED, {**record, "status": SKIPPED}, reason=DEPENDENCY_FAILED, message=message)
