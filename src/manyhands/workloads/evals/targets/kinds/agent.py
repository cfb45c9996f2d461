"""An agent that answers tests, or a model without tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from manyhands.agents.registry import load_agent
from manyhands.agents.run_settings import chat_settings, sandbox_limits, seeded
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask, moment
from manyhands.agents.toolbox import Toolbox
from manyhands.agents.world import World
from manyhands.core.messages import Message
from manyhands.engine.contract import Context
from manyhands.graders.messages import figures_of, output_of
from manyhands.models.protocol import ChatModel
from manyhands.sandboxes.protocol import SandboxBackend, SandboxRequest
from manyhands.tools.protocol import Tool, ToolEnvironment
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.targets.answers import Answer, read_record
from manyhands.workloads.evals.targets.kinds.model_keys import AgentTargetOptions
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace, keep_folder


class AgentTarget:
    """A ``LiveTarget``. Every model call and tool call is a step. Without tools it is a plain model.

    A test's workspace is that of the sandbox: what is in it is there before the first tool call.
    """

    def __init__(
        self,
        options: AgentTargetOptions,
        tools: Sequence[Tool],
        *,
        model: ChatModel,
        backend: SandboxBackend,
        mark: str,
    ) -> None:
        self._options = options
        self._agent = load_agent(options.agent)
        self._toolbox = Toolbox(tools)
        self._model = model
        self._backend = backend
        self._mark = mark
        self._settings = AgentSettings(
            chat_settings(options),
            max_turns=options.max_turns,
            sequential_tools=options.sequential_tools,
            summary=False,
        )

    @property
    def simulated(self) -> bool:
        return self._model.simulated

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        return await self.answered(context, test, workspace)

    @asynccontextmanager
    async def conversing(self, context: Context) -> AsyncIterator[AgentConversation]:
        """See ``Conversational``: one sandbox for all turns."""
        async with World(context, self._backend, lambda: self._request(context)) as world:
            yield AgentConversation(self, world)

    async def answered(
        self, context: Context, test: Test, workspace: TestWorkspace | None, world: World | None = None
    ) -> Answer:
        """The answer to a test. ``world``: the sandbox that tools change; without one, it is the answer's own."""
        if workspace is not None:
            await workspace.begin()
        began = await moment(context)
        async with AsyncExitStack() as stack:
            if world is None:
                own = World(context, self._backend, lambda: self._request(context))
                world = await stack.enter_async_context(own)
            result = await self._converse(context, test, world)
        ended = await moment(context)
        if workspace is not None:
            await workspace.end()
        if self._options.keep_workspaces and Path(context.workspace).is_dir():
            await asyncio.to_thread(keep_folder, Path(context.workspace))
        return read_record(_conversation_record(result, ended - began))

    async def _converse(self, context: Context, test: Test, world: World) -> AgentResult:
        environment = ToolEnvironment(world.sandbox, context.clock, self._options.tool_timeout)
        return await self._agent(
            context,
            self._task(test),
            model=self._model,
            tools=self._toolbox,
            environment=environment,
            settings=seeded(self._settings, self._options, context),
            world=world,
        )

    def _request(self, context: Context) -> SandboxRequest:
        return SandboxRequest(Path(context.workspace), self._mark, limits=sandbox_limits(self._options))

    def _task(self, test: Test) -> AgentTask:
        """The test's conversation: its last message is the task, those before it are history."""
        chat = test.chat()
        *before, last = chat or [{"role": "user", "content": test.prompt()}]
        own = self._options.system_prompt
        return AgentTask(
            last["content"],
            system=None if own is None and self._toolbox.names else [own] if own else (),
            ephemeral=self._options.ephemeral_system_prompt,
            prefill=[*(self._options.prefill_messages or ()), *cast(Sequence[Message], before)],  # type: ignore[list-item]
        )


class AgentConversation:
    """A ``Talk``: an agent in one conversation, whose turns share a sandbox."""

    def __init__(self, agent: AgentTarget, world: World) -> None:
        self._agent = agent
        self._world = world

    @property
    def simulated(self) -> bool:
        return self._agent.simulated

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        return await self._agent.answered(context, test, workspace, self._world)

    def still(self) -> AbstractAsyncContextManager[None]:
        return self._world.still()


def _conversation_record(result: AgentResult, seconds: float) -> dict[str, Any]:
    """A conversation as a record, the like of those that commands write."""
    figures = figures_of(result.usage, 1000 * seconds)
    record: dict[str, Any] = {
        "output": list(output_of(result.messages)),
        **{name: value for name, value in figures.items() if value is not None},
    }
    if not result.completed:
        record["error"] = f"the conversation ended without an answer: {result.stop_reason}"
    return record
