"""The public doubles that users test with."""

from __future__ import annotations

import aiohttp
import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.core.usage import Usage
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.protocol import ChatRequest, ChatSettings, Completion
from manyhands.testing.agent_doubles import ScriptedModel, assistant, texts, tool_call
from manyhands.testing.scripted_server import RecordedRequest, ScriptedResponse, ScriptedServer, chat_response

REQUEST = ChatRequest(ChatSettings("m"), [{"role": "user", "content": "hello"}])


async def ask(model: ScriptedModel, limits: SharedLimits | None = None) -> Completion:
    return await model.complete(REQUEST, limits or SharedLimits(), SystemClock())


async def test_replies_come_in_order() -> None:
    async def later(request: ChatRequest) -> str:
        return f"after {len(request.messages)}"

    whole = Completion({"role": "assistant", "content": "whole"}, "length", Usage(calls=1))
    model = ScriptedModel(
        [
            "text",
            assistant(None, tool_call("t", {"x": 1}), reasoning="why"),
            later,
            lambda _request: ItemError(Cause.MODEL_ERROR, "broken"),
            ValueError("raised"),
            whole,
        ]
    )
    first = await ask(model)
    assert (first.message["content"], first.finish_reason, first.usage.simulated_calls) == ("text", "stop", 1)
    second = await ask(model)
    assert second.finish_reason == "tool_calls"
    assert second.message["tool_calls"][0]["function"] == {"name": "t", "arguments": '{"x":1}'}
    assert (await ask(model)).message["content"] == "after 1"
    with pytest.raises(ItemError, match="broken"):
        await ask(model)
    with pytest.raises(ValueError, match="raised"):
        await ask(model)
    assert await ask(model) is whole
    with pytest.raises(AssertionError, match="only 6 replies"):
        await ask(model)
    assert model.requests == [REQUEST] * 7


async def test_a_default_and_a_function_answer_for_ever() -> None:
    model = ScriptedModel(["first"], default="rest")
    assert [(await ask(model)).message["content"] for _ in range(3)] == ["first", "rest", "rest"]
    model = ScriptedModel(lambda request: str(texts(request.messages, "user")))
    assert (await ask(model)).message["content"] == "['hello']"
    await model.close()
    assert model.closed


async def test_calls_pass_the_limits() -> None:
    limits = SharedLimits()
    model = ScriptedModel(["a", RuntimeError()], usage=Usage(calls=1, input_tokens=3, cost=0.5))
    await ask(model, limits)
    with pytest.raises(RuntimeError):
        await ask(model, limits)
    assert limits.budget.spent == Usage(calls=1, input_tokens=3, cost=0.5)
    assert limits.snapshot()["keys"]["scripted"]["in_flight"] == 0


async def test_the_server_records_and_repeats_its_last_response() -> None:
    message: Message = {"role": "user", "content": "hello"}
    async with (
        ScriptedServer([ScriptedResponse({"a": 1}, 418, {"X-Own": "yes"}), chat_response("b")]) as server,
        aiohttp.ClientSession() as session,
    ):
        async with session.post(f"{server.base_url}/x", json=message) as response:
            assert (response.status, response.headers["X-Own"], await response.json()) == (418, "yes", {"a": 1})
        for _ in range(2):
            async with session.post(f"{server.base_url}/x", data=b"raw") as response:
                assert (await response.json())["choices"][0]["message"]["content"] == "b"
        assert [request.body for request in server.requests] == [message, b"raw", b"raw"]
        assert server.requests[0].path == "/v1/x"


async def test_the_server_asks_a_function() -> None:
    def handler(request: RecordedRequest) -> ScriptedResponse:
        return ScriptedResponse({"path": request.path})

    async with (
        ScriptedServer(handler) as server,
        aiohttp.ClientSession() as session,
        session.get(f"{server.base_url}/models") as response,
    ):
        assert await response.json() == {"path": "/v1/models"}
