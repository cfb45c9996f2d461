"""Doubles of tools and sandboxes, and a way to hold a conversation with them, for tests of agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from manyhands.agents.loop import FollowUp, run_agent
from manyhands.agents.registry import Agent
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask
from manyhands.agents.toolbox import Toolbox
from manyhands.agents.trajectory import fold
from manyhands.agents.world import World
from manyhands.core.clock import SystemClock
from manyhands.models.protocol import ChatSettings
from manyhands.sandboxes.protocol import Sandbox, SandboxRequest
from manyhands.testing.context import MemoryContext
from manyhands.testing.scripted_model import ScriptedModel
from manyhands.tools.protocol import Tool, ToolEnvironment, ToolResult

CHAT = ChatSettings(model="scripted")


@dataclass
class FakeTool:
    """A tool whose calls are counted."""

    name: str
    answer: Callable[[dict[str, Any]], Any] = lambda arguments: {"ok": True}
    """Gets the arguments; may raise or wait."""
    changes_world: bool = False
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

    @property
    def open_step(self) -> str | None:
        return self.folder.open_step

    async def begin_step(self, address: str) -> None:
        self.log.append(f"begin {address}")
        self.folder.open_step = address

    async def reattach(self, recorded: bool, address: str) -> bool:
        self.log.append(f"reattach {recorded} {address}")
        return self.folder.survives

    async def close(self) -> None:
        self.closed += 1


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
    **settings: Any,
) -> AgentResult:
    """Hold a conversation, and check that the fold over its steps gives the same messages. ``settings``: fields of ``AgentSettings``."""
    context = context or MemoryContext()
    settings.setdefault("chat", CHAT)
    world = World(context, backend, lambda: SandboxRequest(Path("folder"), "run")) if backend else None
    environment = ToolEnvironment(sandbox=world.sandbox if world else no_sandbox, clock=SystemClock())
    try:
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
