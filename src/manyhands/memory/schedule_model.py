"""What a scheduler is given and what it has to tell. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from manyhands.memory.course import ScheduledTest
from manyhands.memory.model import Evaluation, Exchange, Json


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """``memory_span``: tokens, > 0. ``isolated``: one test after the other, without filler, the agent reset between them.
    ``max_message_size``: tokens of one filler message. ``reset_messages``: by the dataset's name."""

    memory_span: int
    introduction: str
    reset_messages: Mapping[str, str] = field(default_factory=dict)
    incompatibilities: Sequence[frozenset[str]] = ()
    isolated: bool = False
    max_message_size: int = 4096

    def reset_message(self, test: ScheduledTest) -> str:
        """What takes back what a test told the agent; empty for nothing."""
        if test.reset_message is not None:
            return test.reset_message
        return self.reset_messages.get(test.dataset.name, "")


@dataclass(frozen=True, slots=True)
class Counters:
    """What a session has spent. ``agent_tokens``: of replies only; ``duration``: seconds in which the agent replied; ``filler_state``: of
    the generator that draws filler, in the shape of ``random.Random.getstate``."""

    total_tokens: int = 0
    agent_tokens: int = 0
    duration: float = 0.0
    filler_state: Json = None


@dataclass(frozen=True, slots=True)
class EndedTest:
    """A test that has ended, with what there is to score and show it by.

    ``first`` and ``last``: its part of the conversation, from its first message to before ``last``, with all that came between;
    ``ended``: the index of its END among the events; ``tokens`` and ``characters``: of that part of the conversation.
    """

    test: ScheduledTest
    evaluation: Evaluation
    exchange: Exchange
    first: int
    last: int
    ended: int
    tokens: int
    characters: int
