"""No agent, but what one would cost: every message is answered with the same number of tokens, and its price is added up."""

from __future__ import annotations

from manyhands.core.usage import Usage
from manyhands.engine.context import Context
from manyhands.memory.agents.chat import SYSTEM
from manyhands.memory.agents.protocol import DEFAULT_MESSAGE_SIZE, Answer, Incoming
from manyhands.memory.agents.window import OVERHEAD, TokenLength, Window

REPLY_TOKENS = 106
"""Tokens of a reply, as the original's estimator has them."""
_REPLY = " ".join(["word"] * REPLY_TOKENS)


class CostEstimator:
    """See ``protocol.MemoryAgent``. ``input_price``, ``output_price``: US dollars for 1,000 tokens. (The original forgot to add the tokens
    of replies.) Nothing is asked, so its usage is no call's; ``spent`` is what a model would have used."""

    simulated = True

    def __init__(
        self,
        name: str,
        token_length: TokenLength,
        *,
        input_price: float,
        output_price: float,
        limit: int | None,
        reserve: int,
        max_message_size: int = DEFAULT_MESSAGE_SIZE,
    ) -> None:
        self.name = name
        self.max_message_size = max_message_size
        self._token_length = token_length
        self._prices = (input_price / 1000, output_price / 1000)
        self._window = Window(token_length, limit, reserve)
        self._fixed = token_length(SYSTEM) + OVERHEAD
        self.spent = Usage()

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        return self.answer(incoming)

    def answer(self, incoming: Incoming) -> Answer:
        """The reply, and what it would have used."""
        if incoming.expected_reply is not None:
            self._window.add(incoming.text, incoming.expected_reply, incoming.now)
            return Answer(incoming.expected_reply)
        asked = self._fixed + self._token_length(incoming.text) + OVERHEAD
        asked += sum(pair.tokens for pair in self._window.kept(asked))
        cost = asked * self._prices[0] + REPLY_TOKENS * self._prices[1]
        used = Usage(calls=1, input_tokens=asked, output_tokens=REPLY_TOKENS, cost=cost, simulated_calls=1)
        self.spent = self.spent + used
        self._window.add(incoming.text, _REPLY, incoming.now)
        return Answer(_REPLY, used)

    async def told(self, context: Context, incoming: Incoming, reply: str) -> None:
        self._window.add(incoming.text, reply, incoming.now)

    async def forward_time(self, context: Context, now: float) -> None:
        """Nothing to do."""

    async def reset(self, context: Context) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the conversation; not what was spent."""
        self._window.forget()

    async def close(self) -> None:
        """Nothing to close."""
