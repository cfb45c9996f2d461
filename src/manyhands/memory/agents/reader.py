"""The simulated model as the benchmark uses it: it answers from what is in its context, and only from that.

It knows the tests, and so recognises their lines in what it is sent. To a question it gives the right answer if all that the test told
before is in the context, and says otherwise that it does not remember. So what it scores shows what an agent's memory brought before it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from manyhands.core.clock import Clock
from manyhands.core.messages import text_of
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.context import CallReport, Limits
from manyhands.memory.agents.scripted import NOTHING, Ideal
from manyhands.memory.model import Definition, Message
from manyhands.models.protocol import ChatRequest, Completion

ADD_NOTE = "add_note"
_ACKNOWLEDGED = "Understood."
_LEAST = 4
"""Characters of a token, roughly: what the usage of a made-up call says."""


class ReadingModel:
    """See ``models.protocol.ChatModel``. ``tests``: those of the benchmark, with their datasets; ``latency``: seconds that a call takes."""

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
        size = sum(map(len, texts)) // _LEAST
        message = self._message(request, texts)
        said = len(str(message.get("content") or "")) // _LEAST + 1
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
