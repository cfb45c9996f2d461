"""Agents that ask no model, for tests of the benchmark itself: one remembers everything, the other nothing.

Both are told by the benchmark what a message is about, which no real agent is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from manyhands.engine.context import Context
from manyhands.memory.agents.protocol import DEFAULT_MESSAGE_SIZE, Answer, Incoming
from manyhands.memory.model import Definition, Message

NOTHING = "I don't remember."


class Ideal(Protocol):
    """What of a dataset says how a perfect memory would answer."""

    def ideal(self, definition: Definition, conversation: Sequence[Message], message: str) -> str: ...

    def ideal_addition(self, definition: Definition, conversation: Sequence[Message]) -> str: ...


@dataclass(frozen=True, slots=True)
class Insight:
    """What the benchmark knows of the message that it sends. ``test``: the test with its dataset, None for filler; ``conversation``: all
    messages before it; ``unfinished``: the tests that have begun and not ended."""

    test: tuple[Definition, Ideal] | None
    conversation: Sequence[Message]
    unfinished: Sequence[tuple[Definition, Ideal]]


class PerfectAgent:
    """Answers as one with a perfect memory would. ``insight``: see ``Insight``."""

    simulated = True
    name = "PerfectAgent"

    def __init__(self, insight: Callable[[], Insight], max_message_size: int = DEFAULT_MESSAGE_SIZE) -> None:
        self.max_message_size = max_message_size
        self._insight = insight

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        known = self._insight()
        if known.test is not None:
            definition, dataset = known.test
            text = dataset.ideal(definition, known.conversation, incoming.text)
        else:
            text = incoming.expected_reply or "[]"
        if incoming.expected_reply is None:
            added = (each.ideal_addition(definition, known.conversation) for definition, each in known.unfinished)
            text = "\n".join([text, *filter(None, added)])
        return Answer(text)

    async def told(self, context: Context, incoming: Incoming, reply: str) -> None:
        """Nothing to do."""

    async def forward_time(self, context: Context, now: float) -> None:
        """Nothing to do."""

    async def reset(self, context: Context) -> None:
        """Nothing to do: what counts is in the conversation."""

    async def close(self) -> None:
        """Nothing to close."""


class ForgetfulAgent:
    """Says of everything that it does not remember."""

    simulated = True
    name = "ForgetfulAgent"

    def __init__(self, max_message_size: int = DEFAULT_MESSAGE_SIZE) -> None:
        self.max_message_size = max_message_size

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        return Answer(NOTHING if incoming.expected_reply is None else incoming.expected_reply)

    async def told(self, context: Context, incoming: Incoming, reply: str) -> None:
        """Nothing to do."""

    async def forward_time(self, context: Context, now: float) -> None:
        """Nothing to do."""

    async def reset(self, context: Context) -> None:
        """Nothing to forget."""

    async def close(self) -> None:
        """Nothing to close."""
