"""What happened in a session before it was begun here: the log and the counters of a session of the original's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.workloads.memory.conversation.definitions import Message
from manyhands.workloads.memory.conversation.events import RESPONSES, SENDS, Event, EventType
from manyhands.workloads.memory.conversation.schedule import Counters


@dataclass(frozen=True, slots=True)
class PastScore:
    """The score of a test that had ended, from 0 to 1. ``tokens``: from its first message to its evaluation."""

    dataset: str
    score: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Past:
    """``events``: the whole log; ``counters``: as they were saved last; ``scores``: of tests that had ended, by id; ``lengths``: tokens of
    texts that were counted by another tokenizer; ``cost``: US dollars that the agent had cost, ``judge_cost`` the judge."""

    events: tuple[Event, ...] = ()
    counters: Counters = field(default_factory=Counters)
    scores: Mapping[str, PastScore] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    cost: float = 0.0
    judge_cost: float = 0.0

    @property
    def now(self) -> float:
        """Virtual time at its end."""
        return self.events[-1].timestamp

    def messages(self) -> list[Message]:
        """The messages that were answered, in order."""
        found: list[Message] = []
        sent: Event | None = None
        for event in self.events:
            if event.type in SENDS:
                sent = event
            elif event.type in RESPONSES and sent is not None:
                times = (sent.timestamp, event.timestamp)
                found.append(Message(sent.test_id, sent.message, event.message, sent.is_question, *times))
                sent = None
        return found

    def of_test(self, test_id: str) -> list[Event]:
        """The events of one test."""
        return [event for event in self.events if event.test_id == test_id]

    def to_json(self) -> dict[str, Any]:
        counters = self.counters
        return {
            "events": [[int(each.type), each.timestamp, each.test_id, dict(each.data)] for each in self.events],
            "counters": [counters.total_tokens, counters.agent_tokens, counters.duration, counters.filler_state],
            "scores": {test: [each.dataset, each.score, each.tokens] for test, each in self.scores.items()},
            "lengths": dict(self.lengths),
            "cost": self.cost,
            "judge_cost": self.judge_cost,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Past:
        return cls(
            tuple(Event(EventType(kind), at, test, data) for kind, at, test, data in value["events"]),
            Counters(*value["counters"]),
            {test: PastScore(*each) for test, each in value["scores"].items()},
            value["lengths"],
            value["cost"],
            value["judge_cost"],
        )


NO_PAST = Past()
