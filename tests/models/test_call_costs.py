"""What each HTTP try counts towards a budget, however it ended."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError
from manyhands.core.usage import Usage
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.errors import Retries
from manyhands.models.openai.response import parse_usage
from manyhands.models.pricing import FREE, Price, PriceTable, bounded_answer
from manyhands.models.protocol import ChatRequest, ChatSettings
from manyhands.testing.scripted_server import ScriptedResponse, ScriptedServer, chat_response

REQUEST = ChatRequest(ChatSettings("m", max_tokens=1000, call_timeout=0.3), [{"role": "user", "content": "hello"}])
PRICES = PriceTable({"m": Price(1.0, 10.0)})
TOLD = {"usage": {"prompt_tokens": 10, "completion_tokens": 20}}


async def spent(url: str) -> tuple[Usage, float]:
    """What one try counts, and its reserve in US dollars."""
    limits = SharedLimits(budget=Budget(max_cost=1.0))
    model = OpenAIChatModel(url, prices=PRICES, retries=Retries(tries=1), max_rate_limit_wait=0.0)
    try:
        await model.complete(REQUEST, limits, SystemClock())
    except ItemError:
        pass
    finally:
        await model.close()
    return limits.budget.spent, model.worst_case(REQUEST).cost


@pytest.mark.parametrize(
    "reply",
    [
        ScriptedResponse({"error": "broken"}, 500),
        ScriptedResponse(b"<html>", 504),
        ScriptedResponse(b"", 408),
        ScriptedResponse({"choices": []}, 201),
        ScriptedResponse(b'{"choices": [', 200),
        ScriptedResponse({"choices": []}),
        ScriptedResponse({"error": {"message": "the provider broke", "code": 502}}),
        ScriptedResponse(b'{"choices": [{', announced=4000),
        ScriptedResponse(chat_response(), delay=5.0),
        ScriptedResponse({**chat_response(), "usage": None}),
        ScriptedResponse({**chat_response(), "usage": {"prompt_tokens": 10}}),
        ScriptedResponse({**chat_response(), "usage": {"prompt_tokens": 1e300, "completion_tokens": 3}}),
    ],
    ids=lambda reply: f"{reply.status} {reply.body!r}"[:40],
)
async def test_a_try_that_may_have_been_paid_counts_as_its_reserve(reply: ScriptedResponse) -> None:
    async with ScriptedServer([reply]) as server:
        used, reserve = await spent(server.base_url)
    assert used.cost == pytest.approx(reserve)
    assert reserve > 0.01


@pytest.mark.parametrize(
    "reply",
    [
        ScriptedResponse(TOLD, 500),
        ScriptedResponse({**TOLD, "choices": []}),
        ScriptedResponse({**TOLD, "choices": [{"finish_reason": "error"}]}),
        ScriptedResponse({**TOLD, "error": "flagged"}, 400),
        ScriptedResponse({**chat_response(), **TOLD}),
    ],
    ids=lambda reply: f"{reply.status} {reply.body!r}"[:60],
)
async def test_an_answer_costs_the_usage_that_it_names_whatever_else_is_wrong(reply: ScriptedResponse) -> None:
    async with ScriptedServer([reply]) as server:
        used, _ = await spent(server.base_url)
    assert used.cost == pytest.approx((10 + 200) / 1e6)


@pytest.mark.parametrize("status", [307, 400, 401, 402, 404, 413, 422, 429, 529])
async def test_a_refusal_costs_nothing(status: int) -> None:
    async with ScriptedServer([ScriptedResponse({"error": {"message": "no"}}, status)]) as server:
        assert (await spent(server.base_url))[0].cost == 0


async def test_what_was_never_sent_costs_nothing() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        used, _ = await spent(f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
    assert used.cost == 0


async def test_a_call_that_is_cancelled_in_flight_counts_as_its_reserve() -> None:
    limits = SharedLimits(budget=Budget(max_cost=1.0))
    async with ScriptedServer([ScriptedResponse(chat_response(), delay=30)]) as server:
        model = OpenAIChatModel(server.base_url, prices=PRICES)
        asked = asyncio.create_task(model.complete(REQUEST, limits, SystemClock()))
        while not server.requests:
            await asyncio.sleep(0.005)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await model.close()
    assert limits.budget.spent.cost == pytest.approx(model.worst_case(REQUEST).cost)


async def test_what_unreadable_tries_cost_is_on_the_bill_of_the_answer() -> None:
    replies: list[Any] = [{**TOLD, "choices": []}, {**chat_response(), **TOLD}]
    async with ScriptedServer(replies) as server:
        model = OpenAIChatModel(server.base_url, prices=PRICES, retries=Retries(delay=0.001))
        completion = await model.complete(REQUEST, SharedLimits(), SystemClock())
        await model.close()
    assert (completion.usage.calls, completion.usage.output_tokens) == (2, 40)


def test_reasoning_in_the_total_alone_and_a_bill_of_the_providers_own_count() -> None:
    usage, _ = parse_usage({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115})
    assert usage.output_tokens == 105
    own_key = {"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}
    assert parse_usage(own_key)[1] == pytest.approx(0.21)
    assert parse_usage({"cost": 1e300})[1] is None


def test_prices_of_long_prompts_of_cache_writes_and_of_searches() -> None:
    tiered, plain = Price(1.0, 10.0, tiered=True), Price(1.0, 10.0)
    assert tiered.worst_case(200_001, 0) == pytest.approx(2 * plain.worst_case(200_001, 0))
    assert tiered.cost(Usage(input_tokens=300_000, output_tokens=10)) == pytest.approx(0.6 + 0.00015)
    assert plain.worst_case(100, 0, cache_writes=True) == pytest.approx(1.25 * plain.worst_case(100, 0))
    assert PriceTable().price("gpt-4o:online") is None
    assert PriceTable().price("gpt-4o:free") is FREE


def test_older_models_are_asked_for_no_more_than_they_take() -> None:
    assert bounded_answer("openai/gpt-4-turbo-2024-04-09") == 4096
    assert bounded_answer("anthropic/claude-3-haiku") == 4096
    assert bounded_answer("gpt-4o") == 8192
