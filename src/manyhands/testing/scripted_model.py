"""A chat model whose answers are given beforehand, in this process."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from manyhands.core.clock import Clock
from manyhands.core.jsonio import as_text
from manyhands.core.messages import Message, ToolCall
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import CallReport, Limits
from manyhands.models.protocol import ChatRequest, Completion

Answer = Completion | Message | str | BaseException
"""What one call comes to. Text is a final answer; a message's finish reason follows from its tool calls; an exception
is raised."""

Reply = Answer | Callable[[ChatRequest], Answer | Awaitable[Answer]]
"""An answer, or a function of the request that gives one (or waits first)."""


class ScriptedModel:
    """Gives ``replies`` in order, one a call; then ``default`` for ever, or AssertionError without one.

    One function of the request instead of ``replies`` answers all calls. ``requests`` holds every request as it came.
    Calls go through the limits like real ones, with ``usage`` for each.
    """

    def __init__(
        self,
        replies: Iterable[Reply] | Callable[[ChatRequest], Answer | Awaitable[Answer]] = (),
        *,
        default: Reply | None = None,
        simulated: bool = True,
        usage: Usage | None = None,
    ) -> None:
        if callable(replies):
            self._replies: list[Reply] = []
            default = replies
        else:
            self._replies = list(replies)
        self._default = default
        self._next = 0
        self.requests: list[ChatRequest] = []
        self.closed = False
        self.simulated = simulated
        self.usage = usage or Usage(calls=1, input_tokens=10, output_tokens=5, simulated_calls=1 if simulated else 0)

    async def complete(self, request: ChatRequest, limits: Limits, clock: Clock) -> Completion:
        """The next reply. Raises what the script says."""
        permit = await limits.acquire("scripted", Reserve(self.usage.total_tokens, self.usage.cost))
        report = CallReport(failed=True)
        try:
            self.requests.append(request)
            answer = await self._answer(request)
            if isinstance(answer, BaseException):
                raise answer
            completion = as_completion(answer, self.usage)
            report = CallReport(usage=completion.usage)
            return completion
        finally:
            limits.release(permit, report)

    async def close(self) -> None:
        self.closed = True

    async def _answer(self, request: ChatRequest) -> Answer:
        reply = self._take()
        if not callable(reply):
            return reply
        answer = reply(request)
        return await answer if inspect.isawaitable(answer) else answer

    def _take(self) -> Reply:
        if self._next < len(self._replies):
            self._next += 1
            return self._replies[self._next - 1]
        if self._default is None:
            raise AssertionError(f"the script has only {len(self._replies)} replies")
        return self._default


def as_completion(answer: Completion | Message | str, usage: Usage) -> Completion:
    """The completion that an answer stands for."""
    if isinstance(answer, Completion):
        return answer
    message: Message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
    return Completion(message, "tool_calls" if message.get("tool_calls") else "stop", usage)


def assistant(content: str | None = None, *calls: ToolCall, reasoning: str | None = None) -> Message:
    """An assistant message, for scripts."""
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    if reasoning is not None:
        message["reasoning"] = reasoning
    return message


def tool_call(name: str, arguments: dict[str, Any] | str, call_id: str = "call_1") -> ToolCall:
    """A tool call, for scripts. ``arguments``: an object, or the raw text (which need not be JSON)."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": as_text(arguments)}}


def texts(messages: Sequence[Message], role: str) -> list[Any]:
    """The contents of all messages of a role, for assertions."""
    return [message.get("content") for message in messages if message.get("role") == role]
