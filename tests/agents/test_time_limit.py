"""Conversations with a time limit: it cuts off what is in flight, is recorded, and is the same on a replay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from manyhands.agents.loop import run_agent
from manyhands.agents.task import AgentResult, AgentSettings, AgentTask
from manyhands.agents.toolbox import Toolbox
from manyhands.agents.trajectory import describe_step, fold
from manyhands.agents.worlds.world import World
from manyhands.core.clock import SystemClock
from manyhands.core.messages import Message
from manyhands.core.outcomes import StopReason
from manyhands.export.conversations import stop_reason_of
from manyhands.models.protocol import ChatRequest
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import SandboxRequest
from manyhands.testing.agent_doubles import CHAT, FakeTool, ScriptedModel, assistant, hold, texts, tool_call
from manyhands.testing.context import Crash, CrashPoint, MemoryContext
from manyhands.tools.protocol import ToolEnvironment
from manyhands.tools.terminal import terminal
from tests.support.clocks import ManualClock


async def slow(request: ChatRequest) -> str:
    await asyncio.sleep(30)
    return "Too late."


def call(number: int = 1) -> Message:
    return assistant(None, tool_call("look", {"n": number}, f"c{number}"))


async def test_a_model_call_in_flight_is_cut_off() -> None:
    context = MemoryContext()
    model = ScriptedModel([call(), slow])
    result = await hold(model, [FakeTool("look")], context=context, time_limit=0.2)
    assert (result.stop_reason, result.completed, result.partial) == (StopReason.TIME_LIMIT, False, False)
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool"]
    assert stop_reason_of(context.steps) == "time_limit"
    assert list(describe_step(context.steps[-1])) == [
        ("time limit", f"over after {context.steps[-1].output['elapsed']:g} s")
    ]


async def test_it_is_the_same_on_a_replay_with_nothing_left_to_measure() -> None:
    context = MemoryContext()
    first = await hold(ScriptedModel([call(), slow]), [FakeTool("look")], context=context, time_limit=0.2)
    silent = ScriptedModel()
    again = await hold(silent, [FakeTool("look")], context=MemoryContext(context.journal), time_limit=1e6)
    assert again == first
    assert silent.requests == []


async def test_time_between_a_crash_and_the_resume_does_not_count_but_time_before_it_does() -> None:
    clock = ManualClock()

    def answer(request: ChatRequest) -> Message:
        clock.time += 40
        return call(len(request.messages))

    tools = [FakeTool("look")]
    context = MemoryContext(clock=clock, crash=CrashPoint(4, "before_effect"))
    with pytest.raises(Crash):
        await hold(ScriptedModel(answer), tools, context=context, time_limit=100)
    clock.time += 1e6
    model = ScriptedModel(answer)
    again = MemoryContext(context.journal, clock=clock)
    result = await hold(model, tools, context=again, time_limit=100)
    assert result.stop_reason is StopReason.TIME_LIMIT
    assert result.api_calls == 3  # 40, 80 and 120 s
    assert len(model.requests) == 1
    assert [step.output["elapsed"] for step in again.steps if step.kind == "model"] == [40, 80, 120, 120]


async def test_without_a_limit_nothing_is_recorded_of_time() -> None:
    context = MemoryContext()
    await hold(ScriptedModel([call(), "Done."]), [FakeTool("look")], context=context)
    assert not any("elapsed" in step.output for step in context.steps)


async def test_a_call_after_the_end_is_not_made() -> None:
    clock = ManualClock()

    def late(request: ChatRequest) -> Message:
        clock.time += 200
        return call()

    tool = FakeTool("look")
    result = await hold(ScriptedModel(late), [tool], context=MemoryContext(clock=clock), time_limit=100)
    assert tool.calls == []
    assert "not made" in texts(result.messages, "tool")[0]
    assert result.stop_reason is StopReason.TIME_LIMIT


async def test_a_command_in_flight_is_killed(tmp_path: Path) -> None:
    context = MemoryContext(workspace=tmp_path / "w")
    script = [assistant(None, tool_call("terminal", {"command": "(sleep 2; touch late) & sleep 30.0625; touch later"}))]

    async def conversation() -> AgentResult:
        request = SandboxRequest(tmp_path / "w", "run")
        async with World(context, LocalBackend(), lambda: request) as world:
            result = await run_agent(
                context,
                AgentTask("Wait."),
                model=ScriptedModel(script),
                tools=Toolbox.of([terminal]),
                environment=ToolEnvironment(world.sandbox, SystemClock()),
                settings=AgentSettings(CHAT, time_limit=1.0),
                world=world,
            )
            sandbox = await world.sandbox()
            left = await sandbox.run(["pgrep", "-f", "sleep 30.062[5]"], timeout=10)
            assert left.output == b""
            return result

    async with asyncio.timeout(20):
        result = await conversation()
    assert result.stop_reason is StopReason.TIME_LIMIT
    assert "stopped at the time limit" in texts(result.messages, "tool")[0]
    assert fold(context.steps) == result.messages
    assert not (tmp_path / "w" / "workspace" / "later").exists()


def test_a_limit_must_be_more_than_nothing() -> None:
    with pytest.raises(ValueError, match="time_limit"):
        AgentSettings(CHAT, time_limit=0)
