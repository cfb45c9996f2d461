"""Agents that ask no model, for trying the benchmark out: one remembers everything, one nothing, one only adds up costs.

The first two are told by the benchmark what a message is about, which no real agent is. The simulated model, behind which any agent's
memory can be tried, knows the tests and recognises their lines in what it is sent. To a question it gives the right answer if all that the
test told before is in the context, and says otherwise that it does not remember: what it scores shows what an agent's memory brought before
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from manyhands.core.clock import Clock
from manyhands.core.messages import text_of
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import CallReport, Context, Limits
from manyhands.models.protocol import ChatRequest, Completion
from manyhands.workloads.memory.agents.chat import OVERHEAD, SYSTEM, TokenLength, Window
from manyhands.workloads.memory.conversation.agent import DEFAULT_MESSAGE_SIZE, Answer, Incoming
from manyhands.workloads.memory.conversation.definitions import Definition, Message

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

    async def forward_time(self, context: Context, now: float) -> None:
        """Nothing to do."""

    async def reset(self, context: Context) -> None:
        """Nothing to forget."""

    async def close(self) -> None:
        """Nothing to close."""


ADD_NOTE = "add_note"
_ACKNOWLEDGED = "Understood."
_CHARACTERS_PER_TOKEN = 4
"""Roughly: what the usage of a made-up call says."""


class ReadingModel:
    """A chat model that answers from what is in its context.

    ``tests``: those of the benchmark, with their datasets; ``latency``: seconds that a call takes."""

    simulated = True

    def __init__(self, tests: Sequence[tuple[Definition, Ideal]], latency: float = 0.0) -> None:
        self._lines: dict[str, list[tuple[Definition, Ideal, int]]] = {}
        for definition, dataset in tests:
            for place, line in enumerate(definition.script):
                self._lines.setdefault(line, []).append((definition, dataset, place))
        self._latency = latency

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """Answer. Raises ItemError only for a budget that is used up."""
        texts = [text_of(message.get("content")) for message in request.messages]
        size = sum(map(len, texts)) // _CHARACTERS_PER_TOKEN
        message = self._message(request, texts)
        said = len(str(message.get("content") or "")) // _CHARACTERS_PER_TOKEN + 1
        permit = await limits.acquire("simulated", Reserve(size + said))
        report = CallReport(failed=True)
        try:
            if self._latency > 0:
                await clock.sleep(self._latency)
            usage = Usage(calls=1, input_tokens=size, output_tokens=said, simulated_calls=1)
            report = CallReport(usage)
            return Completion(message, "tool_calls" if message.get("tool_calls") else "stop", usage)  # type: ignore[arg-type]
        finally:
            limits.release(permit, report)

    async def close(self) -> None:
        """Nothing to close."""

    def _message(self, request: ChatRequest, texts: Sequence[str]) -> dict[str, Any]:
        roles = [message["role"] for message in request.messages]
        last = max((place for place, role in enumerate(roles) if role == "user"), default=-1)
        if last < 0:
            return {"role": "assistant", "content": _ACKNOWLEDGED}
        said = _unstamped(texts[last])
        if request.tools and last == len(roles) - 1 and self._is_told(said):
            return _note(said, len(roles))
        return {"role": "assistant", "content": self._answer(said, "\n".join(texts[:last]))}

    def _is_told(self, text: str) -> bool:
        """Whether a line tells something, rather than asking."""
        return any(not definition.is_question[place] for definition, _, place in self._lines.get(text, ()))

    def _answer(self, text: str, before: str) -> str:
        found = self._lines.get(text)
        if found is None:
            return _ACKNOWLEDGED
        asking = [each for each in found if each[0].is_question[each[2]]]
        if not asking:
            return _ACKNOWLEDGED
        known = [each for each in asking if all(line in before for line in each[0].script[: each[2]])]
        if not known:
            return NOTHING
        definition, dataset, place = max(known, key=lambda each: _last_told(each[0], each[2], before))
        earlier = [
            Message(definition.unique_id, line, _ACKNOWLEDGED, definition.is_question[number], 0.0, 0.0)
            for number, line in enumerate(definition.script[:place])
        ]
        return dataset.ideal(definition, earlier, text)


def _last_told(definition: Definition, place: int, before: str) -> int:
    """How late in the context a test's last line stands: of several repetitions the latest is meant."""
    return max((before.rfind(line) for line in definition.script[:place]), default=-1)


def _unstamped(text: str) -> str:
    """A message without the age that is put before it."""
    return text.partition("] ")[2] if text.startswith("[just now] ") else text


def _note(text: str, number: int) -> dict[str, Any]:
    function = {"name": ADD_NOTE, "arguments": json.dumps({"text": text}, ensure_ascii=False)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"note-{number}", "type": "function", "function": function}],
    }


REPLY_TOKENS = 106
"""Tokens of a reply, as the cost estimator of the GoodAI LTM Benchmark has them."""
_REPLY = " ".join(["word"] * REPLY_TOKENS)


class CostEstimator:
    """No agent, but what one would cost: every message gets a reply of the same number of tokens, and its price is added up.

    ``input_price``, ``output_price``: US dollars for 1,000 tokens. (The original forgot to add the tokens
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

    async def forward_time(self, context: Context, now: float) -> None:
        """Nothing to do."""

    async def reset(self, context: Context) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the conversation; not what was spent."""
        self._window.forget()

    async def close(self) -> None:
        """Nothing to close."""
