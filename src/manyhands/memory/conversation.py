"""All messages of a session, with running totals, so that no text is counted twice and no part of it is copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from manyhands.memory.model import Message


class Tail(Sequence[Message]):
    """The messages from some place on, as a view: making one costs nothing however long the conversation is."""

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


class Conversation:
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
