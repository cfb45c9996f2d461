"""The conversations of a memory benchmark, for exports: all that was said between the benchmark and an agent is one.

The times of messages are virtual, as the master log has them: the clock that the agent was shown. Those of model calls, and of the whole,
are of the real clock. Steps hold no texts that the log has, so an export needs the folder of results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyhands.agents.trajectory import MODEL
from manyhands.core.digests import content_key
from manyhands.core.errors import UserError
from manyhands.core.messages import Message
from manyhands.core.outcomes import ItemState, StopReason
from manyhands.core.usage import ZERO, Usage
from manyhands.engine.contract import ItemRow, RecordedStep
from manyhands.engine.journal.reader import JournalReader
from manyhands.export.conversations import (
    Conversation,
    ConversationSource,
    ModelCall,
    Turn,
    model_calls,
    note_settings,
    side_conversations,
)
from manyhands.workloads.memory.agents.external_agent import EXCHANGE
from manyhands.workloads.memory.conversation.driver import REPLIED, exchange_mark
from manyhands.workloads.memory.conversation.events import RESPONSES, SENDS, Event, EventType, read_master_log
from manyhands.workloads.memory.folders import ResultPaths

_SOURCE = ("agent", "limit", "round", "start_time", "tests")


@dataclass(slots=True)
class _Reply:
    """How a reply came about: the steps of the agent for it, in order, and the one that records it."""

    recorded: RecordedStep
    steps: list[RecordedStep] = field(default_factory=list)

    @property
    def by_model(self) -> bool:
        return any(step.kind == MODEL for step in self.steps)

    @property
    def from_outside(self) -> bool:
        """Whether an agent that is not this program's gave it."""
        return any(step.kind == EXCHANGE for step in self.steps)

    @property
    def call(self) -> ModelCall | None:
        """All model calls for it as one, with embeddings; None for a reply that was not paid for here."""
        if not self.steps:
            return None
        usage, models = ZERO, [step for step in self.steps if step.kind == MODEL]
        for step in self.steps:
            usage = usage + Usage.from_json(dict(step.usage))
        last = (models or self.steps)[-1]
        model = last.request.get("settings", {}).get("model")
        return ModelCall(f"{last.scope}/{last.seq}", model, usage, self.steps[0].started_at, self.steps[-1].finished_at)


class MemoryConversations(ConversationSource):
    """The one conversation of each agent, with those of the judge. ``score``: the share of the highest score; ``scores``: of each test.

    A run's input is what was last asked for. Agents of earlier times are part of it, but for conversations that were begun anew.
    """

    def __init__(self, reader: JournalReader) -> None:
        super().__init__(reader)
        self._latest: dict[str, int] = {}
        """The latest conversation of each agent, by its number."""
        for row in reader.items():
            name, number = row.payload["name"], row.payload["round"]
            self._latest[name] = max(number, self._latest.get(name, number))

    def has(self, row: ItemRow) -> bool:
        return bool(row.payload["round"] == self._latest[row.payload["name"]])

    def conversations(self, row: ItemRow, steps: Sequence[RecordedStep], usage: Usage) -> Iterator[Conversation]:
        replies = _replies(steps)
        if not replies:
            return
        payload, record = row.payload, row.record or {}
        found = self.begun(row, usage)
        found.simulated = found.simulated or bool(record.get("simulated"))
        found.label = found.agent = payload["name"]
        # Agents with the same tests have had the same task, however their conversations went.
        found.prompt_key = content_key(payload.get("tests") or self.run_id)
        if calls := model_calls(steps):
            note_settings(found, calls[0])
        found.source = {name: payload[name] for name in _SOURCE if payload.get(name) is not None}
        if record.get("max_score"):
            found.score = record["score"] / record["max_score"]
        found.scores = [_test_score(test) for test in record.get("tests", ())]
        found.stop_reason = StopReason.ANSWERED.value if row.state is ItemState.COMPLETED else None
        found.turns = [turn for exchange in self._exchanges(row, replies) for turn in exchange]
        found.others = side_conversations(found, steps)
        for number, other in enumerate(found.others, 1):
            other.name = f"judge {number}"
        yield found

    def _exchanges(self, row: ItemRow, replies: Sequence[_Reply]) -> Iterator[tuple[Turn, Turn]]:
        """Each message with its reply. Raises UserError if the log is not there, or lacks one."""
        log = ResultPaths.of(self.reader.folder, row.payload["name"]).master_log
        logged = _logged(read_master_log(log, self.reader.folder))
        for number, reply in enumerate(replies, 1):
            mark = reply.recorded.request["exchange"]
            found = next((each for each in logged if exchange_mark(each[0].message, each[1].message) == mark), None)
            if found is None:
                raise UserError(f"{log}: item {row.key}: message {number} of its conversation is not in the log")
            yield _turns(*found, reply)


def _replies(steps: Sequence[RecordedStep]) -> list[_Reply]:
    """The replies of a conversation in order, each with what the agent did for it."""
    found: list[_Reply] = []
    own: list[RecordedStep] = []
    for step in sorted((step for step in steps if not step.scope), key=lambda step: step.seq):
        if step.kind == REPLIED:
            found.append(_Reply(step, own))
            own = []
        elif step.kind == EXCHANGE or step.usage:
            own.append(step)
    return found


def _logged(events: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """The messages of a log, each with its reply."""
    sent: Event | None = None
    for event in events:
        if event.type in SENDS:
            sent = event
        elif event.type in RESPONSES and sent is not None:
            yield sent, event


def _turns(sent: Event, replied: Event, reply: _Reply) -> tuple[Turn, Turn]:
    """A reply to filler that no model wrote may be the benchmark's own, which agents can take for theirs: nothing is trained on it."""
    is_filler = replied.type is EventType.RESPONSE_FILL
    message: Message = {"role": "assistant", "content": replied.message}
    if is_filler and not (reply.by_model or reply.from_outside):
        message["_given"] = True
    train = reply.by_model or not is_filler
    return (
        Turn({"role": "user", "content": sent.message}, sent.timestamp),
        Turn(message, replied.timestamp, reply.call, train),
    )


def _test_score(test: Mapping[str, Any]) -> dict[str, Any]:
    """What a test came to, as a grader's score; without one if nobody could judge it."""
    return {"name": test["test"], "score": test["score"], "verdict": None, "hits": [], "misses": []}
