"""What the journal holds of a conversation: the record of one that has ended, and its steps as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from manyhands.agents.trajectory import MODEL, describe_step
from manyhands.core.errors import UserError
from manyhands.engine.contract import RecordedStep
from manyhands.workloads.memory.agents.external_agent import EXCHANGE
from manyhands.workloads.memory.agents.model_calls import EMBEDDING
from manyhands.workloads.memory.conversation.driver import NO_JUDGE, REPLIED, RESUMED, Conversation, exchange_mark
from manyhands.workloads.memory.conversation.events import RESPONSES, SENDS, Event, read_master_log
from manyhands.workloads.memory.datasets.base import BaseDataset
from manyhands.workloads.memory.folders import MASTER_LOG, RESULTS

RULES_VERSION = 2
"""Of the rules by which answers are scored; goes up where one of them gives an answer another score."""


def conversation_record(conversation: Conversation, name: str) -> dict[str, Any]:
    """The scores of its tests, by dataset, and its figures. ``score``: the sum of the datasets' means, of ``max_score`` datasets. A dataset
    of which a test has no score is in neither, but in ``unscored_datasets``, with the reason; ``unscored``: how many tests these have;
    ``rules``: the version of the rules, which earlier versions did not record."""
    scheduler, datasets = conversation.scheduler, dict[str, list[float | None]]()
    reasons: dict[str, str] = {}
    tests = []
    for ended in scheduler.ended:
        definition = ended.test.definition
        unscored = conversation.unscored.get(definition.unique_id)
        share = None if unscored is not None else ended.evaluation.share
        datasets.setdefault(definition.dataset, []).append(share)
        if unscored is not None:
            reasons.setdefault(definition.dataset, unscored)
        tests.append({"test": definition.unique_id, "score": share, "tokens": ended.tokens})
    counters = scheduler.counters
    return {
        "agent": name,
        "simulated": conversation.agent.simulated,
        "rules": RULES_VERSION,
        **dataset_scores(datasets, reasons),
        "tests": tests,
        "total_tokens": counters.total_tokens,
        "agent_tokens": counters.agent_tokens,
        "duration": counters.duration,
        "agent_cost": conversation.agent_usage.cost,
        "judge_cost": conversation.managing_usage.cost,
    }


def current_record(
    record: Mapping[str, Any], datasets: Mapping[str, BaseDataset], *, has_judge: bool
) -> dict[str, Any]:
    """A record as it would be made now: earlier versions took the mean of the tests that had a score. ``datasets``: by name;
    ``has_judge``: whether a model may have judged what is scored."""
    if "tests" not in record or "unscored_datasets" in record:
        return dict(record)
    scores: dict[str, list[float | None]] = {}
    reasons: dict[str, str] = {}
    for test in record["tests"]:
        name = max((each for each in datasets if test["test"].startswith(f"{each} - ")), key=len, default="")
        judged = name in datasets and datasets[name].is_judged and not has_judge
        score = None if judged else test["score"]
        scores.setdefault(name, []).append(score)
        if score is None:
            reasons.setdefault(name, NO_JUDGE)
    return {**record, **dataset_scores(scores, reasons)}


def dataset_scores(datasets: Mapping[str, Sequence[float | None]], reasons: Mapping[str, str]) -> dict[str, Any]:
    """What the scores of tests, by dataset, come to. ``reasons``: why datasets have no score."""
    known = {
        dataset: [score for score in scores if score is not None]
        for dataset, scores in sorted(datasets.items())
        if dataset not in reasons
    }
    means = {dataset: fmean(scores) for dataset, scores in known.items()}
    return {
        "score": sum(means.values()),
        "max_score": len(means),
        "datasets": means,
        "unscored": sum(len(scores) for dataset, scores in datasets.items() if dataset in reasons),
        **({"unscored_datasets": dict(sorted(reasons.items()))} if reasons else {}),
    }


_BROUGHT = ("user", "system")
"""Roles of messages that the exchange itself shows."""


class LoggedExchanges:
    """The messages and replies in the logs of a run, read when the first of them is wanted.

    Steps hold no text that the agent's own calls or the master logs hold already; it is found there by its mark.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._found: dict[str, tuple[Event, Event]] | None = None

    def describe(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        """As ``Workload.describe_step``."""
        if step.kind == REPLIED:
            return self._exchange(step)
        if step.kind == RESUMED:
            return [("the conversation continued before message", str(step.output["before"]))]
        if step.kind == EMBEDDING:
            return [("an embedding", f"by {step.request['model']}")]
        if step.kind == EXCHANGE:
            return [("agent", str(step.output["text"]))]
        if step.kind == MODEL and not step.scope:
            return [(who, text) for who, text in describe_step(step) if who not in _BROUGHT]
        return describe_step(step)

    def _exchange(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        seconds = f"after {float(step.output['seconds']):.2f} s"
        found = self._exchanges.get(step.request["exchange"])
        if found is None:
            return [(f"message {step.request['number']}, answered", f"{seconds} (its text is not in the log)")]
        sent, reply = found
        who = f"test {sent.test_id}" if sent.test_id else "filler"
        return [(f"message {step.request['number']}, {who}", sent.message), (f"agent, {seconds}", reply.message)]

    @property
    def _exchanges(self) -> dict[str, tuple[Event, Event]]:
        if self._found is None:
            self._found = {}
            for log in sorted((self._run / RESULTS).glob(f"*/{MASTER_LOG}")):
                self._take(log)
        return self._found

    def _take(self, log: Path) -> None:
        try:
            events = read_master_log(log, self._run)
        except UserError:
            return  # a log that can't be read takes nothing from the steps
        sent: Event | None = None
        for event in events:
            if event.type in SENDS:
                sent = event
            elif event.type in RESPONSES and sent is not None and self._found is not None:
                self._found[exchange_mark(sent.message, event.message)] = (sent, event)
