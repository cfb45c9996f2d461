"""What was said and spent in a conversation: events, messages, tests that have begun, and counters. No I/O.

Messages have running totals, so that no text is counted twice and no part of the conversation is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from manyhands.workloads.memory.conversation.definitions import Evaluation, Json, Message
from manyhands.workloads.memory.conversation.events import Event, EventType
from manyhands.workloads.memory.conversation.schedule import (
    Counters,
    EndedTest,
    FillerWriter,
    RunningTest,
    ScheduledTest,
)


class Tail(Sequence[Message]):
    """The messages from an index on, as a view: making one costs nothing however long the conversation is."""

    __slots__ = ("_first", "_messages")

    def __init__(self, messages: Sequence[Message], first: int) -> None:
        self._messages = messages
        self._first = first

    def __len__(self) -> int:
        return len(self._messages) - self._first

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._messages[self._first + at] for at in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._messages[self._first + index if index >= 0 else index]


class Messages:
    """Messages with their replies, in order."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._tokens = [0]
        self._characters = [0]

    def __len__(self) -> int:
        return len(self.messages)

    def append(self, message: Message, tokens: int) -> None:
        """Add a message. ``tokens``: of its text and its reply."""
        self.messages.append(message)
        self._tokens.append(self._tokens[-1] + tokens)
        self._characters.append(self._characters[-1] + len(message.text) + len(message.reply))

    def tail(self, first: int) -> Tail:
        """The messages from ``first`` on."""
        return Tail(self.messages, first)

    def tokens(self, first: int, last: int) -> int:
        """Tokens of the messages and replies from ``first`` to before ``last``."""
        return self._tokens[last] - self._tokens[first]

    def characters(self, first: int, last: int) -> int:
        """Characters of the messages and replies from ``first`` to before ``last``."""
        return self._characters[last] - self._characters[first]

    def first_with(self, text: str) -> int:
        """The first message that contains a text. Raises StopIteration if none does."""
        return next(at for at, message in enumerate(self.messages) if text in message.text)


class Transcript:
    """What has happened in a conversation. Each text is counted once."""

    def __init__(self, filler: FillerWriter, token_len: Callable[[str], int]) -> None:
        """``token_len``: tokens of a text."""
        self.events: list[Event] = []
        """The master log."""
        self.conversation = Messages()
        self.begun: dict[str, RunningTest] = {}
        """The tests that have begun, by id."""
        self.total_tokens = 0
        """Of all messages and replies."""
        self.agent_tokens = 0
        """Of all replies."""
        self.duration = 0.0
        """Seconds in which the agent replied."""
        self._filler = filler
        self._token_len = token_len

    @property
    def counters(self) -> Counters:
        return Counters(self.total_tokens, self.agent_tokens, self.duration, self._filler.state)

    def begin(self, test: ScheduledTest, start_tokens: int) -> RunningTest:
        """A test begins."""
        running = self.begun[test.id] = RunningTest(test, start_tokens)
        return running

    def log(self, kind: EventType, now: float, test_id: str = "", **data: Json) -> None:
        """Something happened."""
        self.events.append(Event(kind, now, test_id, data))

    def exchanged(self, message: Message) -> None:
        """A message was sent and replied to."""
        kinds = (EventType.SEND_MESSAGE, EventType.RESPONSE_MESSAGE)
        if not message.test_id:
            kinds = (EventType.SEND_FILL, EventType.RESPONSE_FILL)
        is_question = message.is_question
        self.log(kinds[0], message.sent_at, message.test_id, message=message.text, is_question=is_question)
        self.log(kinds[1], message.replied_at, message.test_id, message=message.reply, is_question=is_question)
        tokens, reply_tokens = self.note(message)
        self.total_tokens += tokens
        self.agent_tokens += reply_tokens
        self.duration += message.replied_at - message.sent_at

    def note(self, message: Message) -> tuple[int, int]:
        """Take a message into the conversation, and into its test if that is under way; its tokens in all, and those of its reply."""
        reply_tokens = self._token_len(message.reply) if message.reply else 0
        tokens = reply_tokens + (self._token_len(message.text) if message.text else 0)
        if running := self.begun.get(message.test_id):
            if running.first is None:
                running.first = len(self.conversation)
            if running.first_question is None and message.is_question:
                running.first_question = len(self.conversation)
            running.messages.append(message)
            running.last_reply, running.reply = reply_tokens, message.reply
        self.conversation.append(message, tokens)
        return tokens, reply_tokens

    def ended(self, running: RunningTest, evaluation: Evaluation) -> EndedTest:
        """A test ends with the next event."""
        last = len(self.conversation)
        first = last if running.first is None else running.first
        return EndedTest(
            test=running.test,
            evaluation=evaluation,
            exchange=running.exchange,
            first=first,
            last=last,
            ended=len(self.events),
            tokens=self.conversation.tokens(first, last),
            characters=self.conversation.characters(first, last),
        )
