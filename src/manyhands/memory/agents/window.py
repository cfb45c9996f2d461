"""The part of a conversation that fits into a model's context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from manyhands.core.messages import Message

TokenLength = Callable[[str], int]
OVERHEAD = 4
"""Tokens that a message takes besides its text, as chat formats count."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A message of the user and the reply to it. ``sent_at``: virtual time in seconds since 1970 UTC."""

    user: str
    reply: str
    sent_at: float
    tokens: int


class Window:
    """A conversation, and the newest part of it that fits.

    The original started its budget with the size of the whole history instead of the part that is kept,
    so that long histories left the model with nothing but the last message; this one counts what is kept.
    """

    def __init__(self, token_length: TokenLength, limit: int | None, reserve: int) -> None:
        """``limit``: tokens of the context, None if there is no limit; ``reserve``: tokens of it that are kept free for the reply."""
        self._token_length = token_length
        self._limit = limit
        self._reserve = reserve
        self.pairs: list[Pair] = []

    def add(self, user: str, reply: str, sent_at: float) -> None:
        """A message and its reply, which are from now on the newest."""
        tokens = self._token_length(user) + self._token_length(reply) + 2 * OVERHEAD
        self.pairs.append(Pair(user, reply, sent_at, tokens))

    def kept(self, fixed: int) -> list[Pair]:
        """The newest pairs that fit beside ``fixed`` tokens, oldest first."""
        if self._limit is None:
            return list(self.pairs)
        room = self._limit - self._reserve - fixed
        first = len(self.pairs)
        while first and self.pairs[first - 1].tokens <= room:
            first -= 1
            room -= self.pairs[first].tokens
        return self.pairs[first:]

    def forget(self) -> None:
        self.pairs.clear()


def as_messages(pairs: list[Pair]) -> list[Message]:
    """Pairs as chat messages."""
    messages: list[Message] = []
    for pair in pairs:
        messages += [{"role": "user", "content": pair.user}, {"role": "assistant", "content": pair.reply}]
    return messages
