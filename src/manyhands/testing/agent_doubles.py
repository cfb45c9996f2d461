"""Doubles of tools, sandboxes and chat models (whose answers are given beforehand, in this process), and a way to hold a conversation
with them, for tests of agents."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from manyhands.agents.loop import FollowUp, run_agent
from manyhands.agents.registry import Agent
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask
from manyhands.agents.toolbox import Toolbox
from manyhands.agents.trajectory import fold
from manyhands.agents.worlds.world import World
from manyhands.core.clock import Clock, SystemClock
from manyhands.core.jsonio import as_text
from manyhands.core.messages import Message, ToolCall
from manyhands.core.usage import Reserve, Usage
from manyhands.engine.contract import CallReport, Limits
from manyhands.models.protocol import ChatRequest, ChatSettings, Completion
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest
from manyhands.testing.context import MemoryContext
from manyhands.tools.protocol import Tool, ToolEnvironment, ToolResult
from manyhands.tools.services.registry import ToolServices

CHAT = ChatSettings(model="scripted")


@dataclass
class FakeTool:
    """A tool whose calls are counted."""

    name: str
    answer: Callable[[dict[str, Any]], Any] = lambda arguments: {"ok": True}
    """Gets the arguments; may raise or wait."""
    changes_world: bool = False
    reads_world: bool = False
    description: str = "A tool for tests."
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    calls: list[dict[str, Any]] = field(default_factory=list)
    restored: list[tuple[dict[str, Any], ToolResult]] = field(default_factory=list)

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        self.calls.append(arguments)
        if self.changes_world:
            sandbox = cast(FakeSandbox, await environment.sandbox())
            sandbox.log.append(f"{self.name} {arguments}")
        answer = self.answer(arguments)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return answer if isinstance(answer, ToolResult) else ToolResult(answer)

    def restore(self, arguments: dict[str, Any], result: ToolResult, environment: ToolEnvironment) -> None:
        self.restored.append((arguments, result))


@dataclass
class Folder:
    """What a sandbox leaves behind: outlives a crash in a test."""

    open_step: str | None = None
    survives: bool = True


@dataclass
class FakeSandbox:
    """As much of a sandbox as a World needs."""

    folder: Folder
    log: list[str]
    closed: int = 0
    ends: int = 0

    @property
    def open_step(self) -> str | None:
        return self.folder.open_step

    @property
    def can_undo(self) -> bool:
        return True

    async def begin_step(self, address: str) -> None:
        self.log.append(f"begin {address}")
        self.folder.open_step = address

    async def end_step(self) -> None:
        self.ends += 1

    async def reattach(self, recorded: bool, address: str) -> bool:
        self.log.append(f"reattach {recorded} {address}")
        return self.folder.survives

    async def close(self) -> None:
        self.closed += 1

    async def discard(self) -> None:
        await self.close()


class FakeBackend:
    """Makes FakeSandboxes over one folder."""

    kind = "fake"

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.made: list[FakeSandbox] = []
        self.log: list[str] = []

    def unavailable(self) -> str | None:
        return None

    async def create(self, request: SandboxRequest) -> Sandbox:
        self.made.append(FakeSandbox(self.folder, self.log))
        return cast(Sandbox, self.made[-1])


async def no_sandbox() -> Sandbox:
    raise AssertionError("nobody should need a sandbox here")


async def hold(
    model: ScriptedModel,
    tools: Sequence[Tool] = (),
    *,
    context: MemoryContext | None = None,
    backend: FakeBackend | None = None,
    task: AgentTask | None = None,
    follow_up: FollowUp | None = None,
    agent: Agent = run_agent,
    services: ToolServices | None = None,
    **settings: Any,
) -> AgentResult:
    """Hold a conversation, and check that the fold over its steps gives the same messages. ``settings``: fields of ``AgentSettings``."""
    context = context or MemoryContext()
    settings.setdefault("chat", CHAT)
    world = World(context, backend, lambda: SandboxRequest(Path("folder"), "run")) if backend else None
    made = ToolEnvironment(sandbox=world.sandbox if world else no_sandbox, clock=SystemClock(), services=services)
    try:
        async with made as environment:
            result = await agent(
                context,
                task or AgentTask("Do it."),
                model=model,
                tools=Toolbox.of(tools),
                environment=environment,
                settings=AgentSettings(**settings),
                world=world,
                follow_up=follow_up,
            )
    finally:
        if world:
            await world.close()
    assert fold(context.steps) == result.messages
    return result


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
