"""A model with as much of the conversation as its context holds, and the part that fits: the context window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from manyhands.core.messages import Message
from manyhands.engine.contract import Context
from manyhands.workloads.memory.agents.model_calls import ModelCaller
from manyhands.workloads.memory.conversation.agent import DEFAULT_MESSAGE_SIZE, Answer, Incoming

SYSTEM = "You are an assistant in a long conversation. Answer briefly, and keep to what you were told in it."


class ChatAgent:
    """An agent that is a model with as much of the conversation as its context holds.

    ``limit``: tokens of the model's context; ``reserve``: of these, for its reply; ``timestamps``: whether
    each of the user's messages says how long ago it was sent."""

    def __init__(
        self,
        name: str,
        model: ModelCaller,
        token_length: TokenLength,
        *,
        limit: int | None,
        reserve: int,
        timestamps: bool = False,
        max_message_size: int = DEFAULT_MESSAGE_SIZE,
    ) -> None:
        self.name = name
        self.max_message_size = max_message_size
        self._model = model
        self._window = Window(token_length, limit, reserve)
        self._token_length = token_length
        self._fixed = token_length(SYSTEM) + OVERHEAD
        self._timestamps = timestamps

    @property
    def simulated(self) -> bool:
        return self._model.simulated

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        if incoming.expected_reply is not None:
            self._window.add(incoming.text, incoming.expected_reply, incoming.now)
            return Answer(incoming.expected_reply)
        said: Message = {"role": "user", "content": self._stamped(incoming.text, 0.0)}
        pairs = self._window.kept(self._fixed + self._token_length(incoming.text) + OVERHEAD)
        if self._timestamps:
            past = [
                message
                for pair in pairs
                for message in self._with_ages(pair.user, pair.reply, incoming.now - pair.sent_at)
            ]
        else:
            past = as_messages(pairs)
        system: Message = {"role": "system", "content": SYSTEM}
        message, usage, _ = await self._model.ask(context, [system, *past, said], added=[said])
        text = message.get("content") or ""
        self._window.add(incoming.text, str(text), incoming.now)
        return Answer(str(text), usage)

    async def forward_time(self, context: Context, now: float) -> None:
        """Nothing: each message brings its time."""

    async def reset(self, context: Context) -> None:
        self._window.forget()

    async def close(self) -> None:
        await self._model.close()

    def _with_ages(self, user: str, reply: str, age: float) -> list[Message]:
        return [{"role": "user", "content": self._stamped(user, age)}, {"role": "assistant", "content": reply}]

    def _stamped(self, text: str, age: float) -> str:
        return f"[{age_in_words(age)}] {text}" if self._timestamps else text


_UNITS: tuple[tuple[float, float, Callable[[float], str]], ...] = (
    (60.0, 1.0, lambda n: f"{n:.0f} second{'' if round(n) == 1 else 's'} ago"),
    (3600.0, 60.0, lambda n: f"{n:.0f} minute{'' if round(n) == 1 else 's'} ago"),
    (86400.0, 3600.0, lambda n: f"{n:.1f} hour{'' if f'{n:.1f}' == '1.0' else 's'} ago"),
    (float("inf"), 86400.0, lambda n: f"{n:.1f} day{'' if f'{n:.1f}' == '1.0' else 's'} ago"),
)


def age_in_words(seconds: float) -> str:
    """How long ago something was said, as the GoodAI LTM Benchmark's agents with timestamps (``ts-MODEL``) are told."""
    if seconds < 1:
        return "just now"
    return next(words(seconds / unit) for below, unit, words in _UNITS if seconds < below)


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
