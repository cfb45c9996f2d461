"""The client against real servers on the loopback."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack
from typing import Any

import pytest
from aiohttp import web

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.messages import Message
from manyhands.core.usage import Usage
from manyhands.engine.contract import CallReport
from manyhands.engine.limits.budget import Budget
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.errors import Retries
from manyhands.models.openai.replicas import limit_key
from manyhands.models.openai.request import Endpoint
from manyhands.models.pricing import Price, PriceTable
from manyhands.models.protocol import ChatRequest, ChatSettings, Completion
from manyhands.models.simulated.server import ServerOptions, SimulatedServer
from manyhands.testing.scripted_server import ScriptedResponse, ScriptedServer, chat_response

KEY = "sk-very-secret-key"
HELLO: list[Message] = [{"role": "user", "content": "hello"}]
CLOCK = SystemClock()


async def ask(
    server: ScriptedServer | SimulatedServer | str,
    *,
    limits: SharedLimits | None = None,
    settings: ChatSettings | None = None,
    messages: list[Message] = HELLO,
    **options: Any,
) -> Completion:
    base_url = server if isinstance(server, str) else server.base_url
    model = OpenAIChatModel(base_url, **{"api_key": KEY, "retries": Retries(delay=0.005), **options})
    limits = limits or SharedLimits(first_pause=0.01)
    try:
        return await model.complete(ChatRequest(settings or ChatSettings("m"), messages), limits, CLOCK)
    finally:
        await model.close()
        assert all(key["in_flight"] == 0 for key in limits.snapshot()["keys"].values())


async def failure(server: ScriptedServer | str, **options: Any) -> ItemError:
    with pytest.raises(ItemError) as caught:
        await ask(server, **options)
    assert KEY not in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


async def test_an_answer() -> None:
    async with ScriptedServer([chat_response("yes", reasoning_content="why")]) as server:
        completion = await ask(server)
        assert completion.message == {"role": "assistant", "content": "yes", "reasoning": "why"}
        assert completion.finish_reason == "stop"
        assert completion.usage == Usage(calls=1, input_tokens=10, output_tokens=5, unpriced_calls=1)
        assert completion.extra["id"] == "chatcmpl-scripted"
        assert completion.extra["tries"] == 1
        assert completion.extra["latency"] >= 0
        (request,) = server.requests
        assert request.path == "/v1/chat/completions"
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        assert request.body == {"model": "m", "messages": HELLO}


async def test_a_key_that_an_answer_repeats_is_taken_out() -> None:
    answer = chat_response(f"it is {KEY}", reasoning_content=f"is it {KEY}?")
    async with ScriptedServer([answer]) as server:
        message = (await ask(server)).message
        assert message == {"role": "assistant", "content": "it is [redacted]", "reasoning": "is it [redacted]?"}


async def test_a_key_that_is_only_a_word_stays_in_answers() -> None:
    async with ScriptedServer([chat_response("a dummy answer")]) as server:
        assert (await ask(server, api_key="dummy")).message["content"] == "a dummy answer"


async def test_a_base_url_without_a_key_is_used_without_a_key() -> None:
    async with ScriptedServer([chat_response()]) as server:
        await ask(f"{server.base_url}/", api_key=None)
        assert "Authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("message", "reasoning", "content"),
    [
        ({"content": "<think>plan</think>yes"}, "plan", "yes"),
        ({"content": "yes", "reasoning": "a", "reasoning_details": [{"text": "a"}, {"text": "b"}]}, "a\n\nb", "yes"),
        ({"content": "yes", "thinking": "t"}, "t", "yes"),
        ({"content": [{"type": "text", "text": "yes"}]}, None, "yes"),
        ({"content": None, "refusal": "I can't"}, None, "I can't"),
    ],
)
async def test_reasoning_shapes(message: dict[str, Any], reasoning: str | None, content: str) -> None:
    async with ScriptedServer([chat_response(**message)]) as server:
        completion = await ask(server)
        assert completion.message.get("reasoning") == reasoning
        assert completion.message["content"] == content
        assert completion.message.get("reasoning_details") == message.get("reasoning_details")


async def test_tool_calls_come_in_their_standard_shape() -> None:
    calls = [
        {"id": "a", "function": {"name": "t", "arguments": {"x": 1}}, "extra_content": {"signature": "s"}},
        {"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}},
        {"type": "function", "function": {"name": "t", "arguments": None}},
        {"no": "function"},
    ]
    async with ScriptedServer([chat_response(None, tool_calls=calls)]) as server:
        completion = await ask(server)
        first, second, third = completion.message["tool_calls"]
        assert first == {
            "id": "a",
            "type": "function",
            "function": {"name": "t", "arguments": '{"x":1}'},
            "extra_content": {"signature": "s"},
        }
        assert len({first["id"], second["id"], third["id"]}) == 3
        assert third["function"]["arguments"] == ""
        assert completion.finish_reason == "tool_calls"
        again = await ask(server)
        assert again.message == completion.message


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "prompt_tokens_details": {"cached_tokens": 60},
                "completion_tokens_details": {"reasoning_tokens": 7},
                "cost": 0.5,
            },
            Usage(1, 100, 20, cached_tokens=60, reasoning_tokens=7, cost=0.5),
        ),
        (
            {"input_tokens": 10, "output_tokens": 20, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30},
            Usage(1, 100, 20, cached_tokens=60, cache_write_tokens=30, unpriced_calls=1),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 20, "cost": None}, Usage(1, 100, 20, unpriced_calls=1)),
        (
            {"prompt_tokens": 100, "completion_tokens": 20, "prompt_cache_hit_tokens": 50, "cost": "x"},
            Usage(1, 100, 20, cached_tokens=50, unpriced_calls=1),
        ),
        ({"prompt_tokens": -1, "completion_tokens": 20, "cost": -1}, Usage(1, 0, 20, unpriced_calls=1)),
    ],
)
async def test_usage_shapes(reported: dict[str, Any], usage: Usage) -> None:
    async with ScriptedServer([{**chat_response(), "usage": reported}]) as server:
        assert (await ask(server)).usage == usage


async def test_the_price_table_is_asked_where_the_server_names_no_cost() -> None:
    async with ScriptedServer([chat_response()]) as server:
        usage = (await ask(server, prices=PriceTable({"m": Price(100, 1000)}))).usage
        assert usage.cost == pytest.approx(0.006)
        assert usage.unpriced_calls == 0


async def test_usage_that_the_server_does_not_report_is_estimated_and_marked() -> None:
    response = chat_response("x" * 400)
    del response["usage"]
    async with ScriptedServer([response]) as server:
        completion = await ask(server)
        assert completion.usage.output_tokens == 100
        assert completion.usage.input_tokens > 5
        assert completion.extra["usage_estimated"] is True


@pytest.mark.parametrize(
    ("status", "cause", "tries"),
    [
        (400, Cause.MODEL_REFUSED, 1),
        (401, Cause.AUTHENTICATION, 1),
        (402, Cause.PAYMENT, 1),
        (404, Cause.MODEL_REFUSED, 1),
        (413, Cause.CONTEXT_OVERFLOW, 1),
        (500, Cause.MODEL_ERROR, 4),
        (408, Cause.MODEL_ERROR, 4),
    ],
)
async def test_errors_are_classified_and_only_passing_ones_tried_again(status: int, cause: Cause, tries: int) -> None:
    async with ScriptedServer([ScriptedResponse({"error": {"message": f"bad key {KEY}"}}, status)]) as server:
        error = await failure(server)
        assert error.cause is cause
        assert "bad key [redacted]" in error.message
        assert server.base_url in error.message
        assert len(server.requests) == tries


@pytest.mark.parametrize(
    "broken",
    [
        ScriptedResponse({"error": "x"}, 502),
        ScriptedResponse(b'{"choices": [', announced=1000),
        ScriptedResponse(b"<html>"),
        ScriptedResponse(b""),
        ScriptedResponse(b'{"choices": [{"mess'),
        ScriptedResponse({"choices": []}),
        ScriptedResponse({"choices": [{"index": 0}]}),
        ScriptedResponse([]),
        ScriptedResponse({"error": {"code": 502, "message": "x"}}),
        ScriptedResponse(b"[" * 100_000),
        ScriptedResponse(b"garbage", headers={"Content-Encoding": "gzip"}),
    ],
)
async def test_what_breaks_is_tried_again(broken: ScriptedResponse) -> None:
    async with ScriptedServer([broken, broken, broken, chat_response("yes")]) as server:
        completion = await ask(server)
        assert completion.message["content"] == "yes"
        assert completion.extra["tries"] == 4
    async with ScriptedServer([broken]) as server:
        error = await failure(server)
        assert error.cause is Cause.MODEL_ERROR
        assert "(4 tries)" in error.message


async def test_a_connection_that_is_closed_without_an_answer_is_tried_again() -> None:
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(slam, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        error = await failure(f"http://127.0.0.1:{port}/v1")
    assert error.cause is Cause.MODEL_ERROR
    assert "the connection broke" in error.message


async def test_a_dead_endpoint_is_one_clear_line() -> None:
    async with ScriptedServer([chat_response()]) as server:
        base_url = server.base_url
    error = await failure(base_url)
    assert error.cause is Cause.MODEL_ERROR
    assert error.message == f"{base_url}: can't connect: Connection refused (4 tries)"


async def test_a_hang_is_cut_off_at_the_call_timeout() -> None:
    async with ScriptedServer([ScriptedResponse(chat_response(), delay=30), chat_response("yes")]) as server:
        began = time.monotonic()
        completion = await ask(server, settings=ChatSettings("m", call_timeout=0.2))
        assert completion.message["content"] == "yes"
        assert 0.2 <= time.monotonic() - began < 25
    async with ScriptedServer([ScriptedResponse(chat_response(), delay=30)]) as server:
        error = await failure(server, settings=ChatSettings("m", call_timeout=0.05))
        assert error.cause is Cause.MODEL_ERROR
        assert "no answer within 0.05 s" in error.message


async def test_an_endless_answer_is_refused() -> None:
    async with ScriptedServer([ScriptedResponse(b"x" * 200_000)]) as server:
        error = await failure(server, max_response=100_000)
        assert "larger than 100,000 bytes" in error.message
        assert len(server.requests) == 1


async def test_a_redirect_is_not_followed() -> None:
    async with ScriptedServer([chat_response()]) as other:
        moved = ScriptedResponse(status=307, headers={"Location": other.base_url})
        async with ScriptedServer([moved]) as server:
            error = await failure(server)
            assert error.cause is Cause.MODEL_REFUSED
        assert other.requests == []


async def test_rate_limits_are_waited_out_through_the_limits() -> None:
    limited = ScriptedResponse({"error": "slow"}, 429, {"Retry-After": "0.1"})
    overloaded = ScriptedResponse({"error": "busy"}, 529)
    limits = SharedLimits(first_pause=0.02)
    async with ScriptedServer([limited] * 5 + [overloaded, chat_response("yes")]) as server:
        began = time.monotonic()
        completion = await ask(server, limits=limits)
        assert time.monotonic() - began >= 0.5
        assert completion.extra["tries"] == 7
    (figures,) = limits.snapshot()["keys"].values()
    assert figures["episodes"] == 6


@pytest.mark.parametrize(
    ("status", "body", "headers", "statuses", "requests", "cause"),
    [
        (503, {}, {}, {503}, 3, Cause.MODEL_ERROR),
        (503, {}, {"Retry-After": "0.01"}, {503}, 3, Cause.RATE_LIMIT),
        (503, {}, {"Retry-After": "0.01"}, {500}, 1, Cause.RATE_LIMIT),
        (500, {}, {}, set(), 1, Cause.MODEL_ERROR),
        (418, {}, {}, {418}, 3, Cause.MODEL_REFUSED),
        (401, {}, {}, {401}, 3, Cause.AUTHENTICATION),
        (429, {}, {}, {429}, 3, Cause.RATE_LIMIT),
        (429, {}, {}, {503}, 1, Cause.RATE_LIMIT),
        # No wait mends these.
        (429, {"error": {"code": "insufficient_quota"}}, {}, {429}, 1, Cause.PAYMENT),
        (400, {"error": "context length exceeded"}, {}, {400}, 1, Cause.CONTEXT_OVERFLOW),
    ],
)
async def test_the_statuses_that_are_named_are_tried_again_and_no_others(
    status: int, body: dict[str, Any], headers: dict[str, str], statuses: set[int], requests: int, cause: Cause
) -> None:
    retries = Retries(tries=3, delay=0.005, statuses=frozenset(statuses))
    async with ScriptedServer([ScriptedResponse(body, status, headers)]) as server:
        error = await failure(server, retries=retries)
        assert (error.cause, len(server.requests)) == (cause, requests)


async def test_what_is_no_lesson_is_not_counted_as_one() -> None:
    async with ScriptedServer([ScriptedResponse(b"", 500), chat_response()]) as server:
        completion = await ask(server)
    assert (completion.extra["tries"], "refused_first" in completion.extra) == (2, False)


async def test_an_answer_after_a_status_that_is_named() -> None:
    async with ScriptedServer([ScriptedResponse({}, 418), chat_response("yes")]) as server:
        retries = Retries(tries=2, delay=0.005, statuses=frozenset((418,)))
        assert (await ask(server, retries=retries)).extra["tries"] == 2


def test_pauses_grow_by_their_factor_up_to_the_longest_one() -> None:
    pauses = [Retries(delay=1, factor=3, max_delay=20).pause(failures, "x") for failures in range(1, 9)]
    for pause, middle in zip(pauses, (1, 3, 9, 20, 20, 20, 20, 20), strict=True):
        assert 0.75 * middle <= pause <= min(20, 1.25 * middle)
    assert len({pause / middle for pause, middle in zip(pauses, (1, 3, 9), strict=False)}) == 3
    assert Retries(factor=1e300).pause(500, "x") <= 60


async def test_waiting_for_rate_limits_has_an_end() -> None:
    async with ScriptedServer([ScriptedResponse({}, 429, {"Retry-After": "0.05"})]) as server:
        error = await failure(server, max_rate_limit_wait=0.2)
        assert error.cause is Cause.RATE_LIMIT
        assert 2 <= len(server.requests) <= 8
    async with ScriptedServer([ScriptedResponse({}, 429, {"Retry-After": "7200"})]) as server:
        error = await failure(server)
        assert (error.cause, error.retry_after) == (Cause.RATE_LIMIT, 7200.0)
        assert len(server.requests) == 1


async def test_a_used_up_allowance_holds_the_next_call() -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "300ms"}
    limits = SharedLimits()
    async with ScriptedServer([ScriptedResponse(chat_response(), headers=headers), chat_response()]) as server:
        await ask(server, limits=limits)
        began = time.monotonic()
        await ask(server, limits=limits)
        assert time.monotonic() - began > 0.2


async def test_the_budget_is_reserved_and_settled() -> None:
    limits = SharedLimits(budget=Budget(max_cost=1.0))
    prices = PriceTable({"m": Price(1.0, 1000.0)})
    async with ScriptedServer([chat_response()]) as server:
        await ask(server, limits=limits, settings=ChatSettings("m", max_tokens=100), prices=prices)
        assert limits.budget.spent.cost == pytest.approx(0.00501)
        error = await failure(server, limits=limits, settings=ChatSettings("m", max_tokens=1000), prices=prices)
        assert error.cause is Cause.OVER_BUDGET
        assert len(server.requests) == 1


async def test_a_cancelled_call_gives_its_place_back() -> None:
    limits = SharedLimits()
    async with ScriptedServer([ScriptedResponse(chat_response(), delay=30)]) as server:
        task = asyncio.create_task(ask(server, limits=limits))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (figures,) = limits.snapshot()["keys"].values()
    assert figures["in_flight"] == 0


async def test_connections_are_used_again() -> None:
    ports = set()

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.json_response(chat_response())

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model = OpenAIChatModel(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    for _ in range(5):
        await model.complete(ChatRequest(ChatSettings("m"), HELLO), SharedLimits(), CLOCK)
    await model.close()
    await runner.cleanup()
    assert len(ports) == 1


def test_the_worst_case_covers_what_is_asked() -> None:
    model = OpenAIChatModel("http://h/v1", prices=PriceTable({"m": Price(3, 15)}))
    request = ChatRequest(ChatSettings("m", max_tokens=1000), [{"role": "user", "content": "word " * 4000}])
    reserve = model.worst_case(request)
    assert 21_000 < reserve.tokens < 21_500  # a token for each byte, the answer, and a little
    assert reserve.cost == pytest.approx(((reserve.tokens - 1000) * 3 + 15_000) / 1e6)
    assert model.worst_case(ChatRequest(ChatSettings("x"), HELLO)).cost == 0.0


def test_an_inline_image_does_not_count_as_text() -> None:
    model = OpenAIChatModel("http://h/v1")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    request = ChatRequest(ChatSettings("m", max_tokens=1), [{"role": "user", "content": [image]}])
    assert model.worst_case(request).tokens < 5000


def test_the_limiter_key_names_the_endpoint_and_not_the_key() -> None:
    key = limit_key(Endpoint.of("http://me:pass@h/v1"), KEY)
    assert key.startswith("http://h/v1#")
    assert KEY not in key
    assert key != limit_key(Endpoint.of("http://h/v1"), "another")


async def test_every_fault_of_the_simulated_server_is_survived() -> None:
    options = ServerOptions(
        rate_429=0.1, retry_after=0.01, rate_500=0.05, rate_truncated=0.02, rate_hang=0.01, hang_seconds=20
    )
    async with SimulatedServer(options) as server:
        model = OpenAIChatModel(server.base_url, retries=Retries(tries=6, delay=0.005))
        limits = SharedLimits()

        async def one(number: int) -> Completion:
            messages: list[Message] = [{"role": "user", "content": f"prompt {number}"}]
            settings = ChatSettings("simulated", call_timeout=3)
            return await model.complete(ChatRequest(settings, messages), limits, CLOCK)

        completions = await asyncio.gather(*(one(number) for number in range(300)))
        await model.close()
        assert all(completion.usage.simulated_calls == 1 for completion in completions)
        assert limits.budget.spent.calls == 300
        stats = server.stats()
        assert stats["ok"] == stats["distinct"] == 300
        assert stats["faults"]["429"] > 5
        assert stats["answered_again"] == 0


class Listening(SharedLimits):
    """Limits that keep what they are told of calls."""

    def __init__(self) -> None:
        super().__init__(first_pause=0.01)
        self.reports: list[CallReport] = []

    def release(self, permit: int, report: CallReport) -> None:
        self.reports.append(report)
        super().release(permit, report)


async def test_the_limits_are_told_why_a_call_failed_and_when_it_is_made_again() -> None:
    limits = Listening()
    broken = ScriptedResponse({"error": {"message": f"upstream broke for {KEY}\n\x1b[31m" + "x" * 2000}}, 500)
    refused = ScriptedResponse({"error": {"message": "no such model"}}, 404)
    async with ScriptedServer([broken, broken, refused]) as server:
        with pytest.raises(ItemError, match="no such model"):
            await ask(server, limits=limits)
        first, second, last = limits.reports
        for report in (first, second):
            assert report.said is not None
            assert report.said.startswith(f"{server.base_url}: HTTP 500: upstream broke for ")
            assert KEY not in report.said
            assert report.said.isprintable()
            assert len(report.said) <= 1001
            assert report.again_in is not None
        assert (first.refused, last.refused, last.again_in) == (False, True, None)
        assert last.said == f"{server.base_url}: HTTP 404: no such model"


@pytest.mark.parametrize(
    ("path", "hint"),
    [("/v1", "is --base_url right?"), ("", "does --base_url lack a path, as /v1?")],
)
async def test_a_path_that_is_not_there_is_told_with_what_was_asked(path: str, hint: str) -> None:
    async with ScriptedServer([ScriptedResponse({"detail": "Not Found"}, 404)]) as server:
        base_url = server.base_url.removesuffix("/v1") + path
        error = await failure(base_url)
    assert error.message == f"{base_url}: HTTP 404: Not Found (asked: {base_url}/chat/completions; {hint})"


async def test_a_host_that_drops_what_it_gets_is_told_as_unreachable() -> None:
    with socket.socket() as full, ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # more than wait to be accepted: the next are dropped
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        base_url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        error = await failure(base_url, max_connect=0.2, retries=Retries(tries=1))
    assert "can't connect: no connection within 0.2 s" in error.message
