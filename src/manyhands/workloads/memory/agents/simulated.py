"""Agents that ask no model, for trying the benchmark out: one remembers everything, one nothing, one only adds up costs.

The first is told by the benchmark what a message is about, which no real agent is. The simulated model, with which any agent's memory can
be tried, knows the tests and recognises their lines in what it is sent. It answers a question rightly if all that the test told before is
in the context, and says otherwise that it does not remember. So its score shows what an agent's memory put into the context.
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
from manyhands.workloads.memory.agents.model_agents import OVERHEAD, SYSTEM, ContextSize, TokenLength, Window
from manyhands.workloads.memory.conversation.definitions import Definition, Message
from manyhands.workloads.memory.conversation.driver import Answer, Incoming, MemoryAgent

NOTHING = "I don't remember."


class Ideal(Protocol):
    """What of a dataset says how a perfect memory would answer."""

    def ideal(self, definition: Definition, conversation: Sequence[Message], message: str) -> str: ...

    def ideal_addition(self, definition: Definition, conversation: Sequence[Message]) -> str: ...


@dataclass(frozen=True, slots=True)
class Insight:
    """What the benchmark knows of the message that it sends."""

    test: tuple[Definition, Ideal] | None
    """With its dataset; None for filler."""
    conversation: Sequence[Message]
    """All messages before it."""
    unfinished: Sequence[tuple[Definition, Ideal]]
    """The tests that have begun and not ended."""


class PerfectAgent(MemoryAgent):
    """Answers as one with a perfect memory would."""

    name = "PerfectAgent"
    simulated = True

    def __init__(self, insight: Callable[[], Insight]) -> None:
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


class ForgetfulAgent(MemoryAgent):
    """Says of everything that it does not remember."""

    name = "ForgetfulAgent"
    simulated = True

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        return Answer(NOTHING if incoming.expected_reply is None else incoming.expected_reply)


ADD_NOTE = "add_note"
_ACKNOWLEDGED = "Understood."
_CHARACTERS_PER_TOKEN = 4
"""Roughly: what the usage of a made-up call says."""


class ReadingModel:
    """A chat model that answers from what is in its context."""

    simulated = True

    def __init__(self, tests: Sequence[tuple[Definition, Ideal]], latency: float = 0.0) -> None:
        """``tests``: those of the benchmark, with their datasets; ``latency``: seconds that a call takes."""
        self._lines: dict[str, list[tuple[Definition, Ideal, int]]] = {}
        for definition, dataset in tests:
            for index, line in enumerate(definition.script):
                self._lines.setdefault(line, []).append((definition, dataset, index))
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
        last = max((index for index, role in enumerate(roles) if role == "user"), default=-1)
        if last < 0:
            return {"role": "assistant", "content": _ACKNOWLEDGED}
        said = _unstamped(texts[last])
        if request.tools and last == len(roles) - 1 and self._is_statement(said):
            return _note(said, len(roles))
        return {"role": "assistant", "content": self._answer(said, "\n".join(texts[:last]))}

    def _is_statement(self, text: str) -> bool:
        """Whether a line tells something, rather than asking."""
        return any(not definition.is_question[index] for definition, _, index in self._lines.get(text, ()))

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
        definition, dataset, index = max(known, key=lambda each: _last_statement(each[0], each[2], before))
        earlier = [
            Message(definition.unique_id, line, _ACKNOWLEDGED, definition.is_question[number], 0.0, 0.0)
            for number, line in enumerate(definition.script[:index])
        ]
        return dataset.ideal(definition, earlier, text)


def _last_statement(definition: Definition, index: int, before: str) -> int:
    """How late in the context a test's last line stands: of several repetitions the latest is meant."""
    return max((before.rfind(line) for line in definition.script[:index]), default=-1)


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


class CostEstimator(MemoryAgent):
    """No agent, but what one would cost: every message gets a reply of the same number of tokens, and its price is added up.

    No model is called, so its usage is no call's. (The estimator of the GoodAI LTM Benchmark leaves out the tokens of replies.)
    """

    simulated = True

    def __init__(
        self, name: str, token_length: TokenLength, size: ContextSize, *, input_price: float, output_price: float
    ) -> None:
        """``input_price``, ``output_price``: US dollars for 1,000 tokens."""
        self.name = name
        self._token_length = token_length
        self._prices = (input_price / 1000, output_price / 1000)
        self._window = Window(token_length, size.free)
        self._fixed = token_length(SYSTEM) + OVERHEAD
        self.spent = Usage()
        """What a model would have used."""

    async def reply(self, context: Context, incoming: Incoming) -> Answer:
        return self.answer(incoming)

    def answer(self, incoming: Incoming) -> Answer:
        """The reply, and what it would have used."""
        if incoming.expected_reply is not None:
            self._window.add(incoming.text, incoming.expected_reply, incoming.now)
            return Answer(incoming.expected_reply)
        input_tokens = self._fixed + self._token_length(incoming.text) + OVERHEAD
        input_tokens += sum(pair.tokens for pair in self._window.kept(input_tokens))
        cost = input_tokens * self._prices[0] + REPLY_TOKENS * self._prices[1]
        used = Usage(calls=1, input_tokens=input_tokens, output_tokens=REPLY_TOKENS, cost=cost, simulated_calls=1)
        self.spent = self.spent + used
        self._window.add(incoming.text, _REPLY, incoming.now)
        return Answer(_REPLY, used)

    async def reset(self, context: Context) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the conversation; not what was spent."""
        self._window.forget()
