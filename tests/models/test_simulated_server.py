"""The simulated model over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from manyhands.core.errors import UserError
from manyhands.models.simulated.model import simulate
from manyhands.models.simulated.server import ServerOptions, SimulatedServer, serve

TOOLS = [{"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {}}}}]


def request(number: int = 0, **more: Any) -> dict[str, Any]:
    return {"model": "simulated", "messages": [{"role": "user", "content": f"prompt {number}"}], **more}


async def statuses(server: SimulatedServer, count: int, **more: Any) -> list[int | str]:
    found: list[int | str] = []
    async with aiohttp.ClientSession() as session:
        for number in range(count):
            try:
                async with session.post(
                    f"{server.base_url}/chat/completions", json=request(number, **more)
                ) as response:
                    await response.read()
                    found.append(response.status)
            except aiohttp.ClientPayloadError:
                found.append("truncated")
    return found


async def post(server: SimulatedServer, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.base_url}/chat/completions", data=data) as response,
    ):
        return response.status, await response.json()


async def test_it_says_what_the_model_in_process_says() -> None:
    async with SimulatedServer(ServerOptions(seed=3)) as server:
        status, payload = await post(server, request(1, tools=TOOLS, seed=9))
        assert status == 200
        assert payload == simulate(request(1)["messages"], TOOLS, seed=3, request_seed=9)


async def test_models_and_statistics() -> None:
    async with SimulatedServer() as server, aiohttp.ClientSession() as session:
        for number in (1, 2, 1):
            await post(server, request(number))
        async with session.get(f"{server.base_url}/models") as response:
            assert (await response.json())["data"][0]["id"] == "simulated"
        async with session.get(server.base_url.replace("/v1", "/stats")) as response:
            stats = await response.json()
        assert stats == server.stats()
        assert (stats["total"], stats["ok"], stats["distinct"]) == (3, 3, 2)
        assert (stats["duplicates"], stats["answered_again"]) == (1, 1)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"messages": [1]}', b'{"messages": [], "tools": 1}'])
async def test_what_is_no_request_is_refused(body: bytes) -> None:
    async with SimulatedServer() as server:
        status, payload = await post(server, body)
        assert status == 400
        assert payload["error"]["message"].startswith("invalid request")
        assert server.stats()["invalid"] == 1


async def test_streaming() -> None:
    body = request(tools=TOOLS, stream=True, stream_options={"include_usage": True})
    body["messages"][0]["content"] = "[simulate: tools=1]"
    whole = simulate(body["messages"], TOOLS)["choices"][0]
    async with (
        SimulatedServer() as server,
        aiohttp.ClientSession() as session,
        session.post(f"{server.base_url}/chat/completions", json=body) as response,
    ):
        assert response.content_type == "text/event-stream"
        events = [line[6:] for line in (await response.text()).split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == whole["message"]["reasoning"]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert pieces[0]["id"] == whole["message"]["tool_calls"][0]["id"]
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert arguments == whole["message"]["tool_calls"][0]["function"]["arguments"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"]["total_tokens"] > 0


async def test_faults_follow_from_the_seed_and_the_number() -> None:
    options = ServerOptions(rate_429=0.2, rate_500=0.2, rate_truncated=0.2, seed=5)
    async with SimulatedServer(options) as server:
        first = await statuses(server, 60)
        stats = server.stats()
    async with SimulatedServer(options) as server:
        assert await statuses(server, 60) == first
    async with SimulatedServer(ServerOptions(rate_429=0.2, rate_500=0.2, rate_truncated=0.2, seed=6)) as server:
        assert await statuses(server, 60) != first
    assert set(first) == {200, 429, 500, "truncated"}
    assert stats["faults"] == {
        "429": first.count(429),
        "500": first.count(500),
        "truncated": first.count("truncated"),
        "hang": 0,
        "malformed": 0,
    }
    assert stats["ok"] == first.count(200)


async def test_malformed_tool_calls() -> None:
    broken = unknown = 0
    async with SimulatedServer(ServerOptions(rate_malformed=1)) as server:
        for number in range(20):
            _, payload = await post(server, request(number, tools=TOOLS))
            function = payload["choices"][0]["message"]["tool_calls"][0]["function"]
            try:
                json.loads(function["arguments"])
            except ValueError:
                broken += 1
            unknown += function["name"] == "imaginary_tool"
        _, payload = await post(server, request(tools=[]))
        assert payload["choices"][0]["message"]["content"]
        assert server.stats()["faults"]["malformed"] == 20
    assert broken + unknown == 20
    assert broken
    assert unknown


async def test_a_hang_ends_when_the_client_leaves() -> None:
    async with SimulatedServer(ServerOptions(rate_hang=1, hang_seconds=30)) as server:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(server, request()), 0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 15


async def test_a_limit_on_requests_per_second() -> None:
    async with SimulatedServer(ServerOptions(requests_per_second=20)) as server, aiohttp.ClientSession() as session:
        found = await statuses(server, 40)
        assert 20 <= found.count(200) <= 30
        async with session.post(f"{server.base_url}/chat/completions", json=request()) as response:
            assert 0 < float(response.headers["Retry-After"]) <= 0.1


async def test_latency_and_its_jitter() -> None:
    async with SimulatedServer(ServerOptions(latency=0.1, latency_jitter=0.05)) as server:
        began = time.monotonic()
        await post(server, request())
        assert 0.05 <= time.monotonic() - began < 15


async def test_the_log_has_a_line_for_each_request_at_once(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    async with SimulatedServer(ServerOptions(rate_500=0.5, log_file=log)) as server:
        found = await statuses(server, 10)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["fault"] for line in lines] == [None if status == 200 else "500" for status in found]
    assert [line["number"] for line in lines] == list(range(1, 11))
    assert len({line["digest"] for line in lines}) == 10


async def test_serve_until_cancelled() -> None:
    ready: asyncio.Future[SimulatedServer] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(ServerOptions(), ready.set_result))
    server = await asyncio.wait_for(ready, 5)
    assert (await post(server, request()))[0] == 200
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(aiohttp.ClientConnectorError):
        await post(server, request())


async def test_a_taken_port_is_one_line() -> None:
    async with SimulatedServer() as server:
        port = int(server.base_url.split(":")[2].split("/")[0])
        with pytest.raises(UserError, match=f"can't serve on 127.0.0.1:{port}"):
            await SimulatedServer(ServerOptions(port=port)).start()


@pytest.mark.parametrize(
    "options", [{"rate_429": 1.5}, {"rate_429": 0.6, "rate_500": 0.6}, {"latency": -1}, {"requests_per_second": 0}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ServerOptions(**options)
