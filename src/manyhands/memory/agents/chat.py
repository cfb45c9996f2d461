"""A model with as much of the conversation as its context holds, and nothing else to remember by."""

from __future__ import annotations

from collections.abc import Callable

from manyhands.core.messages import Message
from manyhands.engine.context import Context
from manyhands.memory.agents.model_steps import ModelCaller
from manyhands.memory.agents.protocol import DEFAULT_MESSAGE_SIZE, Answer, Incoming
from manyhands.memory.agents.window import OVERHEAD, TokenLength, Window, as_messages

SYSTEM = "You are an assistant in a long conversation. Answer briefly, and keep to what you were told in it."


class ChatAgent:
    """See ``protocol.MemoryAgent``. ``limit``: tokens of the model's context; ``reserve``: of these, for its reply; ``timestamps``: whether
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

    async def told(self, context: Context, incoming: Incoming, reply: str) -> None:
        self._window.add(incoming.text, reply, incoming.now)

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
    """How long ago something was said, in the form of the original's agent with timestamps (section 6)."""
    if seconds < 1:
        return "just now"
    return next(words(seconds / unit) for below, unit, words in _UNITS if seconds < below)
