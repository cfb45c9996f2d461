"""The steps of sessions for people: what was said, to which test it belongs, and how long the reply took.

Steps hold no text that the agent's own calls or the master logs hold already; it is found there by its mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from manyhands.agents.descriptions import describe_step
from manyhands.agents.trajectory import MODEL
from manyhands.core.errors import UserError
from manyhands.engine.contract import RecordedStep
from manyhands.workloads.memory.agents.external.agent import EXCHANGE
from manyhands.workloads.memory.agents.model_calls import EMBEDDING
from manyhands.workloads.memory.conversation.driver import REPLIED, RESUMED, exchange_mark
from manyhands.workloads.memory.conversation.events import RESPONSES, SENDS, Event, read_master_log
from manyhands.workloads.memory.folders import MASTER_LOG, RESULTS

_BROUGHT = ("user", "system")
"""Roles of messages that the exchange itself shows."""


class LoggedExchanges:
    """The messages and replies in the logs of a run. They are read when the first of them is wanted."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._found: dict[str, tuple[Event, Event]] | None = None

    def describe(self, step: RecordedStep) -> Iterable[tuple[str, str]]:
        """As ``Workload.describe_step``."""
        if step.kind == REPLIED:
            return self._exchange(step)
        if step.kind == RESUMED:
            return [("the session went on before message", str(step.output["before"]))]
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
            events = read_master_log(log)
        except UserError:
            return  # a log that can't be read takes nothing from the steps
        sent: Event | None = None
        for event in events:
            if event.type in SENDS:
                sent = event
            elif event.type in RESPONSES and sent is not None and self._found is not None:
                self._found[exchange_mark(sent.message, event.message)] = (sent, event)
