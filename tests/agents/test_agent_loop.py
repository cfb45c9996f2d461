"""How conversations go and end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from manyhands.agents.task import AgentResult, AgentSettings, AgentTask, ToolUse
from manyhands.agents.trajectory import describe_step
from manyhands.core.errors import Divergence, ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.core.outcomes import StopReason
from manyhands.core.usage import Usage
from manyhands.models.protocol import ChatSettings, Completion
from manyhands.testing.agent_doubles import CHAT, FakeTool, ScriptedModel, assistant, hold, tool_call
from manyhands.testing.context import MemoryContext

USAGE = Usage(calls=1, input_tokens=10, output_tokens=5)


def completion(message: Message, finish_reason: str) -> Completion:
    return Completion(message, finish_reason, USAGE)


def cut_off(text: str, **more: Any) -> Completion:
    return completion({"role": "assistant", "content": text, **more}, "length")  # type: ignore[typeddict-item]


def roles(result: AgentResult) -> str:
    return " ".join(message["role"] for message in result.messages)


def search(call_id: str = "c1", **arguments: Any) -> Message:
    return assistant(None, tool_call("search", arguments, call_id))


async def test_a_plain_answer_is_one_step() -> None:
    context = MemoryContext()
    result = await hold(ScriptedModel(["Four."]), context=context)
    assert result.messages == [{"role": "user", "content": "Do it."}, {"role": "assistant", "content": "Four."}]
    assert (result.stop_reason, result.completed, result.partial) == (StopReason.ANSWERED, True, False)
    assert result.api_calls == 1
    assert [step.kind for step in context.steps] == ["model"]


async def test_system_prompt_and_prefill_go_over_the_wire_and_are_not_kept() -> None:
    model = ScriptedModel([search(), "Done."])
    prefill: list[Message] = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "then"}]
    task = AgentTask("Do it.", ephemeral="Be quick.", prefill=prefill)
    result = await hold(model, [FakeTool("search")], task=task)
    for request in model.requests:
        assert request.messages[0]["role"] == "system"
        assert request.messages[0]["content"].endswith("\n\nBe quick.")
        assert list(request.messages[1:3]) == prefill
        assert request.messages[3] == {"role": "user", "content": "Do it."}
    assert roles(result) == "user assistant tool assistant"


async def test_own_system_parts_replace_ours() -> None:
    model = ScriptedModel(["Yes."])
    await hold(model, task=AgentTask("Do it.", system=["One.", "Two."]))
    assert model.requests[0].messages[0]["content"] == "One.\n\nTwo."
    model = ScriptedModel(["Yes."])
    await hold(model, task=AgentTask("Do it.", system=[]))
    assert model.requests[0].messages[0]["role"] == "user"


async def test_tool_results_reach_the_model_as_json_text() -> None:
    model = ScriptedModel([search(query="ä"), "Done."])
    tool = FakeTool("search", lambda arguments: {"found": arguments["query"]})
    result = await hold(model, [tool])
    assert result.messages[2] == {
        "role": "tool",
        "tool_call_id": "c1",
        "name": "search",
        "content": '{"found": "ä"}',
        "_failed": False,
    }
    assert model.requests[1].messages[-1] == result.messages[2]
    assert result.tool_uses == [ToolUse("search", False)]
    assert result.usage == Usage(calls=2, input_tokens=20, output_tokens=10, simulated_calls=2)
    assert [definition["function"]["name"] for definition in model.requests[0].tools] == ["search"]


async def test_an_answer_on_the_last_allowed_turn_is_completed() -> None:
    result = await hold(ScriptedModel([search(), "Done."]), [FakeTool("search")], max_turns=2)
    assert result.stop_reason is StopReason.ANSWERED
    assert result.api_calls == 2


async def test_turns_used_up_ask_for_a_marked_summary_without_tools() -> None:
    model = ScriptedModel([search("a"), search("b"), "Found nothing."])
    result = await hold(model, [FakeTool("search")], max_turns=2)
    assert (result.stop_reason, result.completed, result.partial) == (StopReason.MAX_TURNS, False, False)
    assert result.api_calls == 2
    assert [message.get("_synthetic") for message in result.messages[-2:]] == ["summary_request", "summary"]
    assert not model.requests[-1].tools
    assert result.usage.calls == 3


async def test_the_summary_can_be_left_out() -> None:
    result = await hold(ScriptedModel([search()]), [FakeTool("search")], max_turns=1, summary=False)
    assert result.stop_reason is StopReason.MAX_TURNS
    assert roles(result) == "user assistant tool"


async def test_a_summary_that_calls_tools_or_says_nothing_is_not_kept() -> None:
    result = await hold(ScriptedModel([search("a"), search("b")]), [FakeTool("search")], max_turns=1)
    assert roles(result) == "user assistant tool user"


async def test_tool_results_are_never_edited() -> None:
    tool = FakeTool("search", lambda arguments: {"n": 1})
    result = await hold(ScriptedModel([search(str(n)) for n in range(9)] + ["Done."]), [tool], max_turns=10)
    assert {message["content"] for message in result.messages if message["role"] == "tool"} == {'{"n": 1}'}


async def test_slightly_wrong_tool_names_are_mended_in_the_history() -> None:
    context = MemoryContext()
    model = ScriptedModel([assistant(None, tool_call("Read-File", {}, "a"), tool_call("read_fil", {}, "b")), "Done."])
    result = await hold(model, [FakeTool("read_file")], context=context)
    assert [call["function"]["name"] for call in result.messages[1]["tool_calls"]] == ["read_file", "read_file"]
    assert result.unknown_tools == []
    written = context.steps[0].output["as_written"]
    assert [entry["function"]["name"] for entry in written] == ["Read-File", "read_fil"]


async def test_people_see_what_the_model_was_answered_for_an_unknown_tool() -> None:
    context = MemoryContext()
    await hold(
        ScriptedModel([assistant(None, tool_call("teleport", {})), "Done."]), [FakeTool("todo")], context=context
    )
    shown = dict(describe_step(context.steps[0]))
    assert "(failed)" in shown["teleport({})"]
    assert "no tool called 'teleport'" in shown["teleport({})"]


async def test_unknown_tools_are_answered_and_their_siblings_run() -> None:
    tool = FakeTool("search")
    calls = assistant(None, tool_call("teleport", {}, "a"), tool_call("search", {"q": 1}, "b"))
    result = await hold(ScriptedModel([calls, "Done."]), [tool, FakeTool("todo")])
    assert result.completed
    assert tool.calls == [{"q": 1}]
    assert "no tool called 'teleport'" in result.messages[2]["content"]
    assert "search, todo" in result.messages[2]["content"]
    assert [message["_failed"] for message in result.messages[2:4]] == [True, False]
    assert result.unknown_tools == ["teleport"]
    assert result.tool_uses == [ToolUse("teleport", True), ToolUse("search", False)]


async def test_the_third_turn_of_nothing_but_unknown_tools_ends_it() -> None:
    model = ScriptedModel([assistant(None, tool_call("teleport", {}, str(n))) for n in range(3)])
    result = await hold(model, [FakeTool("search")])
    assert (result.stop_reason, result.partial, result.completed) == (StopReason.UNKNOWN_TOOLS, True, False)
    assert roles(result) == "user assistant tool assistant tool"
    assert result.api_calls == 3


async def test_a_good_turn_resets_the_count_of_bad_ones() -> None:
    def bad(n: int) -> Message:
        return assistant(None, tool_call("teleport", {}, f"b{n}"))

    model = ScriptedModel([bad(1), bad(2), search("good"), bad(3), bad(4), "Done."])
    assert (await hold(model, [FakeTool("search")])).completed


async def test_unreadable_arguments_are_answered_with_the_place_of_the_error() -> None:
    context = MemoryContext()
    tool = FakeTool("search")
    model = ScriptedModel([assistant(None, tool_call("search", '{"q": "a" "b"}')), "Done."])
    result = await hold(model, [tool], context=context)
    assert tool.calls == []
    assert result.messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert "line 1 column 11" in result.messages[2]["content"]
    assert result.messages[2]["_failed"] is True
    assert context.steps[0].output["as_written"][0]["function"]["arguments"] == '{"q": "a" "b"}'


async def test_three_turns_of_unreadable_arguments_end_it() -> None:
    model = ScriptedModel([assistant(None, tool_call("search", "{", str(n))) for n in range(3)])
    result = await hold(model, [FakeTool("search")])
    assert (result.stop_reason, result.partial) == (StopReason.INVALID_ARGUMENTS, True)
    assert roles(result) == "user assistant tool assistant tool"


async def test_missing_and_repeated_call_ids_are_mended_the_same_way_each_time() -> None:
    def calls() -> Message:
        return assistant(None, tool_call("search", {}, ""), tool_call("search", {}, "x"), tool_call("search", {}, "x"))

    results = [await hold(ScriptedModel([calls(), calls(), "Done."]), [FakeTool("search")]) for _ in range(2)]
    assert results[0].messages == results[1].messages
    ids = [call["id"] for message in results[0].messages for call in message.get("tool_calls", ())]
    assert ids == ["call_1_0", "x", "call_1_2", "call_2_0", "call_2_1", "call_2_2"]
    answered = [message["tool_call_id"] for message in results[0].messages if message["role"] == "tool"]
    assert answered == ids


async def test_an_empty_answer_is_asked_for_again_with_nothing_added() -> None:
    model = ScriptedModel([assistant("", reasoning="hm"), "<think>only</think>", "Four."])
    result = await hold(model)
    assert result.completed
    assert roles(result) == "user assistant"
    assert [len(request.messages) for request in model.requests] == [2, 2, 2]
    assert result.api_calls == 3


async def test_three_empty_answers_end_it() -> None:
    model = ScriptedModel([assistant("  ", reasoning="hm")] * 3)
    result = await hold(model)
    assert (result.stop_reason, result.partial, result.api_calls) == (StopReason.EMPTY_ANSWER, True, 3)
    assert roles(result) == "user assistant"
    assert result.messages[1]["reasoning"] == "hm"


async def test_a_repeated_request_has_another_seed() -> None:
    model = ScriptedModel(["", "", "Four."])
    await hold(model, chat=ChatSettings(model="m", seed=7))
    seeds = [request.settings.seed for request in model.requests]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


async def test_a_cut_off_answer_is_continued() -> None:
    model = ScriptedModel([cut_off("One, "), cut_off("two, "), "three."])
    result = await hold(model)
    assert result.completed
    assert roles(result) == "user assistant user assistant user assistant"
    assert [message.get("_synthetic") for message in result.messages] == [
        None,
        None,
        "continue",
        None,
        "continue",
        None,
    ]


async def test_the_third_cut_ends_it() -> None:
    result = await hold(ScriptedModel([cut_off("a"), cut_off("b"), cut_off("c")]))
    assert (result.stop_reason, result.partial) == (StopReason.TRUNCATED, True)
    assert result.messages[-1]["content"] == "c"


async def test_a_cut_on_the_last_turn_ends_it() -> None:
    result = await hold(ScriptedModel([cut_off("a")]), max_turns=1)
    assert result.stop_reason is StopReason.TRUNCATED
    assert roles(result) == "user assistant"


async def test_a_cut_off_tool_call_is_asked_for_again_and_the_rest_is_kept() -> None:
    broken = cut_off("", tool_calls=[tool_call("search", '{"q": "lo', "t")])
    tool = FakeTool("search")
    result = await hold(ScriptedModel([search("a"), broken, search("b"), "Done."]), [tool])
    assert result.completed
    assert len(tool.calls) == 2
    result = await hold(ScriptedModel([search("a"), broken, broken, broken]), [FakeTool("search")])
    assert (result.stop_reason, result.partial) == (StopReason.TRUNCATED, True)
    assert roles(result) == "user assistant tool"


async def test_whole_tool_calls_in_a_cut_off_answer_are_run() -> None:
    tool = FakeTool("search")
    result = await hold(ScriptedModel([cut_off("", tool_calls=[tool_call("search", {"q": 1})]), "Done."]), [tool])
    assert result.completed
    assert tool.calls == [{"q": 1}]


async def test_reasoning_without_end_is_asked_for_again_then_ends_it() -> None:
    endless = "<REASONING_SCRATCHPAD>I think"
    result = await hold(ScriptedModel([endless, endless, "Four."]))
    assert result.completed
    result = await hold(ScriptedModel([search(), endless, endless, endless]), [FakeTool("search")])
    assert result.stop_reason is StopReason.UNCLOSED_REASONING
    assert roles(result) == "user assistant tool"


async def test_a_filtered_answer_ends_it() -> None:
    result = await hold(ScriptedModel([completion({"role": "assistant", "content": None}, "content_filter")]))
    assert (result.stop_reason, result.partial) == (StopReason.CONTENT_FILTER, True)
    assert result.messages[-1]["content"] == ""


async def test_context_overflow_keeps_what_there_is() -> None:
    overflow = ItemError(Cause.CONTEXT_OVERFLOW, "too long")
    context = MemoryContext()
    result = await hold(ScriptedModel([search(), overflow]), [FakeTool("search")], context=context)
    assert (result.stop_reason, result.partial, result.api_calls) == (StopReason.CONTEXT_OVERFLOW, True, 1)
    assert roles(result) == "user assistant tool"
    again = await hold(ScriptedModel(), [FakeTool("search")], context=MemoryContext(context.journal))
    assert again == result


@pytest.mark.parametrize("cause", [Cause.CONTEXT_OVERFLOW, Cause.RATE_LIMIT, Cause.PAYMENT])
async def test_a_failed_first_call_fails_the_item(cause: Cause) -> None:
    with pytest.raises(ItemError) as failure:
        await hold(ScriptedModel([ItemError(cause, "no")]))
    assert failure.value.cause is cause


async def test_a_failed_later_call_fails_the_item_and_goes_on_from_there() -> None:
    tool = FakeTool("search")
    context = MemoryContext()
    with pytest.raises(ItemError):
        await hold(ScriptedModel([search(), ItemError(Cause.RATE_LIMIT, "no")]), [tool], context=context)
    model = ScriptedModel(["Done."])
    result = await hold(model, [tool], context=MemoryContext(context.journal))
    assert result.completed
    assert len(tool.calls) == 1
    assert len(model.requests) == 1


async def test_a_tool_error_is_answered_and_any_other_exception_fails_the_item() -> None:
    def refuse(arguments: dict[str, Any]) -> Any:
        raise ToolError("use another path")

    result = await hold(ScriptedModel([search(), "Done."]), [FakeTool("search", refuse)])
    assert result.messages[2]["content"] == '{"error": "use another path"}'
    assert result.tool_uses == [ToolUse("search", True)]

    def break_down(arguments: dict[str, Any]) -> Any:
        raise KeyError("oops")

    with pytest.raises(ItemError, match="'search' broke: KeyError: 'oops'") as failure:
        await hold(ScriptedModel([search(), "Done."]), [FakeTool("search", break_down)])
    assert failure.value.cause is Cause.TOOL_ERROR


async def test_a_result_that_is_not_json_is_a_defect_of_the_tool() -> None:
    with pytest.raises(ItemError, match="'search' broke"):
        await hold(ScriptedModel([search(), "Done."]), [FakeTool("search", lambda arguments: {"a": {1, 2}})])


async def test_a_slow_tool_is_stopped_and_the_model_told() -> None:
    tool = FakeTool("search", lambda arguments: asyncio.sleep(60))
    result = await hold(ScriptedModel([search(), "Done."]), [tool], tool_timeout=0.05)
    assert "longer than 0.05 seconds" in result.messages[2]["content"]
    assert result.messages[2]["_failed"] is True


async def test_long_results_are_bounded() -> None:
    tool = FakeTool("search", lambda arguments: "x" * 5000)
    result = await hold(ScriptedModel([search(), "Done."]), [tool], max_result=1000)
    assert len(result.messages[2]["content"]) <= 1000
    assert "left out" in result.messages[2]["content"]


async def test_calls_of_one_turn_run_at_the_same_time() -> None:
    meeting = asyncio.Barrier(3)

    async def meet(arguments: dict[str, Any]) -> str:
        async with asyncio.timeout(2):
            await meeting.wait()
        return "met"

    calls = assistant(None, *(tool_call("search", {"n": n}, f"c{n}") for n in range(3)))
    result = await hold(ScriptedModel([calls, "Done."]), [FakeTool("search", meet)])
    assert [message["tool_call_id"] for message in result.messages[2:5]] == ["c0", "c1", "c2"]
    assert {message["content"] for message in result.messages[2:5]} == {"met"}


async def test_sequential_tools_run_one_after_the_other_in_call_order() -> None:
    running: list[str] = []

    async def alone(arguments: dict[str, Any]) -> str:
        running.append(arguments["n"])
        await asyncio.sleep(0.001)
        assert running[-1] == arguments["n"]
        return str(arguments["n"])

    calls = assistant(None, *(tool_call("search", {"n": n}, n) for n in "cab"))
    result = await hold(ScriptedModel([calls, "Done."]), [FakeTool("search", alone)], sequential_tools=True)
    assert [message["content"] for message in result.messages[2:5]] == ["c", "a", "b"]
    assert running == ["c", "a", "b"]


async def test_a_cancelled_conversation_leaves_no_task_behind() -> None:
    started = asyncio.Event()

    async def hang(arguments: dict[str, Any]) -> None:
        started.set()
        await asyncio.sleep(60)

    calls = assistant(None, tool_call("search", {}, "a"), tool_call("search", {}, "b"))
    work = asyncio.create_task(hold(ScriptedModel([calls]), [FakeTool("search", hang)]))
    await started.wait()
    before = asyncio.all_tasks()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert len(before) > 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_one_broken_tool_stops_its_siblings() -> None:
    ended = []

    async def hang(arguments: dict[str, Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    def break_down(arguments: dict[str, Any]) -> Any:
        raise RuntimeError("oops")

    calls = assistant(None, tool_call("slow", {}, "a"), tool_call("bad", {}, "b"))
    with pytest.raises(ItemError, match="'bad' broke"):
        await hold(ScriptedModel([calls]), [FakeTool("slow", hang), FakeTool("bad", break_down)])
    assert ended == [True]


async def test_content_in_parts_becomes_text() -> None:
    parts: Any = [{"type": "text", "text": "Fo"}, {"type": "text", "text": "ur."}]
    result = await hold(ScriptedModel([{"role": "assistant", "content": parts}]))
    assert result.messages[1]["content"] == "Four."


async def test_prompts_in_parts_are_sent_as_they_are() -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    model = ScriptedModel(["A dot."])
    result = await hold(model, task=AgentTask(parts))
    assert model.requests[0].messages[-1]["content"] == parts
    assert result.messages[0]["content"] == parts


async def test_no_steps_hold_a_message_twice() -> None:
    context = MemoryContext()
    tool = FakeTool("search", lambda arguments: "y" * 100)
    await hold(ScriptedModel([*(search(str(n)) for n in range(4)), "Done."]), [tool], context=context)
    text = str([(step.request, step.output) for step in context.steps])
    assert text.count("y" * 100) == 4
    assert text.count("Do it.") == 1


async def test_other_settings_diverge_and_another_time_limit_does_not() -> None:
    context = MemoryContext()
    await hold(ScriptedModel(["Four."]), context=context)
    slower = ChatSettings(model=CHAT.model, call_timeout=1.0)
    assert (await hold(ScriptedModel(), context=MemoryContext(context.journal), chat=slower)).completed
    with pytest.raises(Divergence):
        await hold(ScriptedModel(), context=MemoryContext(context.journal), chat=ChatSettings(model="other"))
    with pytest.raises(Divergence):
        await hold(ScriptedModel(), [FakeTool("new")], context=MemoryContext(context.journal))
    with pytest.raises(Divergence):
        await hold(ScriptedModel(), context=MemoryContext(context.journal), task=AgentTask("Do it.", ephemeral="New."))


def test_no_turns_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="max_turns"):
        AgentSettings(CHAT, max_turns=0)
