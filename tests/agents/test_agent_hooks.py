"""What a workload adds to the conversation: results that end it, and words for an agent that would end it too early."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.agents.task import AgentResult
from manyhands.core.errors import Divergence, ToolError
from manyhands.core.messages import Message
from manyhands.core.outcomes import StopReason
from manyhands.testing.agent_doubles import (
    FakeBackend,
    FakeTool,
    Folder,
    ScriptedModel,
    assistant,
    hold,
    texts,
    tool_call,
)
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, When
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.registry import tool
from manyhands.tools.results import result_of


def reporting(**marks: bool) -> FakeTool:
    return FakeTool(
        "report", lambda arguments: ToolResult({"accepted": True}, marks.get("failed", False), marks.get("ends", False))
    )


def report(call_id: str = "r1") -> Message:
    return assistant(None, tool_call("report", {}, call_id))


def insisting(times: int, asked: list[int] | None = None) -> Any:
    def follow_up(number: int) -> str | None:
        if asked is not None:
            asked.append(number)
        return f"Report now ({number})." if number < times else None

    return follow_up


def roles(result: AgentResult) -> str:
    return " ".join(message["role"] for message in result.messages)


# --- Results that end the conversation


async def test_a_result_that_ends_is_the_last_message_and_no_model_call_follows() -> None:
    model = ScriptedModel([report()])
    result = await hold(model, [reporting(ends=True)])
    assert (result.stop_reason, result.completed, result.api_calls) == (StopReason.ANSWERED, True, 1)
    assert roles(result) == "user assistant tool"
    assert len(model.requests) == 1


async def test_a_failed_result_ends_nothing() -> None:
    result = await hold(ScriptedModel([report(), "Well."]), [reporting(ends=True, failed=True)])
    assert roles(result) == "user assistant tool assistant"


async def test_all_calls_of_the_turn_are_answered_first() -> None:
    turn = assistant(None, tool_call("report", {}, "a"), tool_call("search", {}, "b"), tool_call("nothing", {}, "c"))
    search = FakeTool("search")
    result = await hold(ScriptedModel([turn]), [reporting(ends=True), search])
    assert [message["tool_call_id"] for message in result.messages if message["role"] == "tool"] == ["a", "b", "c"]
    assert len(search.calls) == 1
    assert result.stop_reason is StopReason.ANSWERED


async def test_on_the_last_turn_it_is_an_answer_without_a_summary() -> None:
    result = await hold(ScriptedModel([report()]), [reporting(ends=True)], max_turns=1)
    assert result.stop_reason is StopReason.ANSWERED
    assert roles(result) == "user assistant tool"


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("changes_world", [False, True])
async def test_a_replay_ends_where_the_conversation_did(changes_world: bool, sequential: bool) -> None:
    def tools() -> list[FakeTool]:
        ends = reporting(ends=True)
        ends.changes_world = changes_world
        return [ends, FakeTool("write", changes_world=True)]

    turn = assistant(None, tool_call("write", {}, "w"), tool_call("report", {}, "r"))
    context, folder = MemoryContext(), Folder()
    first = await hold(
        ScriptedModel([turn]), tools(), context=context, backend=FakeBackend(folder), sequential_tools=sequential
    )
    again, replayed = MemoryContext(context.journal), tools()
    second = await hold(
        ScriptedModel(), replayed, context=again, backend=FakeBackend(folder), sequential_tools=sequential
    )
    assert second == first
    assert second.stop_reason is StopReason.ANSWERED
    assert again.performed == 0
    assert [result.ends for _, result in replayed[0].restored] == [True]


async def test_a_journal_from_before_there_were_such_results_goes_on() -> None:
    context = MemoryContext()
    first = await hold(ScriptedModel([report(), "Done."]), [reporting()], context=context)
    assert [step.output for step in context.steps if step.kind == "tool"] == [{"content": {"accepted": True}}]
    assert await hold(ScriptedModel(), [reporting(ends=True)], context=MemoryContext(context.journal)) == first


async def test_a_tool_made_of_a_function_can_end_the_conversation() -> None:
    @tool(changes_world=False)
    def finish(environment: ToolEnvironment) -> ToolResult:
        """Finish."""
        return ToolResult("Finished.", ends=True)

    result = await hold(ScriptedModel([assistant(None, tool_call("finish", {}))]), [finish])
    assert result.stop_reason is StopReason.ANSWERED
    assert result_of(ToolResult("x" * 1000, ends=True), 300).ends


# --- Words for an agent that ends too early


async def test_an_agent_that_answers_is_sent_on_and_the_words_are_marked_as_ours() -> None:
    asked: list[int] = []
    model = ScriptedModel(["I think so.", report()])
    result = await hold(model, [reporting(ends=True)], follow_up=insisting(3, asked))
    assert roles(result) == "user assistant user assistant tool"
    assert result.messages[2] == {"role": "user", "content": "Report now (0).", "_synthetic": "follow_up"}
    assert model.requests[1].messages[-1]["content"] == "Report now (0)."
    assert (asked, result.stop_reason) == ([0], StopReason.ANSWERED)


async def test_it_ends_when_nothing_more_is_said() -> None:
    asked: list[int] = []
    result = await hold(ScriptedModel(["One.", "Two.", "Three."]), follow_up=insisting(2, asked))
    assert texts(result.messages, "assistant") == ["One.", "Two.", "Three."]
    assert (asked, result.stop_reason, result.api_calls) == ([0, 1, 2], StopReason.ANSWERED, 3)


async def test_turns_bound_it() -> None:
    asked: list[int] = []
    result = await hold(ScriptedModel(default="No."), follow_up=insisting(99, asked), max_turns=3)
    assert (asked, result.api_calls, result.stop_reason) == ([0, 1], 3, StopReason.ANSWERED)
    assert result.messages[-1]["role"] == "assistant"


async def test_calls_between_are_not_followed_up() -> None:
    asked: list[int] = []
    turns: list[Message | str] = ["One.", assistant(None, tool_call("search", {})), "Two."]
    await hold(ScriptedModel(turns), [FakeTool("search")], follow_up=insisting(1, asked))
    assert asked == [0, 1]


@pytest.mark.parametrize("when", ["before_effect", "before_recording", "after_recording"])
@pytest.mark.parametrize("step", range(1, 6))
async def test_a_conversation_with_both_goes_on_after_any_crash_as_if_there_had_been_none(
    step: int, when: When
) -> None:
    def refusing_once() -> FakeTool:
        refused = iter([True])

        def answer(arguments: dict[str, Any]) -> ToolResult:
            if not arguments["good"] and next(refused, False):
                raise ToolError("Not like this.")
            return ToolResult({"accepted": True}, ends=True)

        return FakeTool("report", answer)

    def script(start: int) -> ScriptedModel:
        turns: list[Message | str] = [
            "I think so.",
            assistant(None, tool_call("report", {"good": False}, "a")),
            assistant(None, tool_call("report", {"good": True}, "b")),
        ]
        return ScriptedModel(turns[start:])

    whole = await hold(script(0), [refusing_once()], follow_up=insisting(3))
    assert roles(whole) == "user assistant user assistant tool assistant tool"
    broken = MemoryContext(crash=CrashPoint(step, when))
    with pytest.raises(Crash):
        await hold(script(0), [refusing_once()], context=broken, follow_up=insisting(3))
    answered = sum(recorded.kind == "model" for recorded in broken.steps)
    context = MemoryContext(broken.journal)
    assert await hold(script(answered), [refusing_once()], context=context, follow_up=insisting(3)) == whole
    assert len(context.steps) == 5


async def test_other_words_than_the_recorded_ones_are_a_divergence() -> None:
    context = MemoryContext()
    await hold(ScriptedModel(["One.", "Two."]), context=context, follow_up=insisting(1))
    with pytest.raises(Divergence):
        await hold(ScriptedModel(), context=MemoryContext(context.journal), follow_up=lambda number: "Other words.")
