"""What names a tool call: the same when it is repeated after a crash, and no other call has it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.agents.loop import run_agent
from manyhands.agents.task import AgentSettings, AgentTask
from manyhands.core.clock import SystemClock
from manyhands.engine.contract import Item
from manyhands.testing.agent_doubles import CHAT, FakeTool, Reply, ScriptedModel, assistant, no_sandbox, tool_call
from manyhands.testing.context import Crash, CrashPoint, MemoryContext
from manyhands.tools.protocol import ParentRun, ToolEnvironment, ToolResult

TURNS: list[Reply] = [
    assistant(None, tool_call("key", {}, "a"), tool_call("key", {}, "b"), tool_call("other", {}, "c")),
    assistant(None, tool_call("key", {}, "d")),
    "Done.",
]


@dataclass
class KeyTool(FakeTool):
    """Notes the keys of its calls, and that their environments share one state."""

    keys: list[str] = field(default_factory=list)

    async def call(self, arguments: dict[str, Any], environment: ToolEnvironment) -> ToolResult:
        environment.state.setdefault("seen", []).append(environment.call_key)
        self.keys.append(environment.call_key)
        return ToolResult({"seen": len(environment.state["seen"])})


async def keys_of(context: MemoryContext, turns: list[Reply], parent: ParentRun | None = None) -> list[str]:
    tool = KeyTool("key")
    environment = ToolEnvironment(no_sandbox, SystemClock(), parent=parent)
    try:
        await run_agent(
            context,
            AgentTask("Do it."),
            model=ScriptedModel(turns),
            tools=[tool, replace(tool, name="other")],
            environment=environment,
            settings=AgentSettings(CHAT),
        )
    except* Crash:
        pass
    assert environment.call_key == ""
    assert environment.state["seen"] == tool.keys
    return tool.keys


async def test_every_call_has_a_key_of_its_own() -> None:
    keys = await keys_of(MemoryContext(), TURNS)
    assert len(set(keys)) == len(keys) == 4
    other = await keys_of(MemoryContext(item=Item(2, "item", {})), TURNS)
    assert not set(keys) & set(other)
    parent = ParentRun("run", Path("run"), "1-1", {})
    assert not set(keys) & set(await keys_of(MemoryContext(), TURNS, parent))
    assert all(key.startswith("run/") for key in await keys_of(MemoryContext(), TURNS, parent))


@pytest.mark.parametrize("step", [2, 3, 4, 6])
async def test_a_repeated_call_has_its_key_again(step: int) -> None:
    expected = await keys_of(MemoryContext(), TURNS)
    crashed = MemoryContext(crash=CrashPoint(step, "before_recording"))
    first = await keys_of(crashed, TURNS)
    known = sum(record.kind == "model" for record in crashed.steps)
    again = await keys_of(MemoryContext(crashed.journal), TURNS[known:])
    assert set(first) | set(again) == set(expected)
    assert set(first) & set(again)
