"""A real HTTP server on the loopback whose replies are given beforehand."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from manyhands.core.jsonio import Json, dumps, loads


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    """Parsed JSON, or the bytes where it is none."""
    query: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScriptedResponse:
    """One reply."""

    body: Any = b""
    """Bytes as they are, or JSON."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    announced: int | None = None
    """The Content-Length to claim; if it is more than the body, the connection is closed in the middle."""
    delay: float = 0.0
    """Seconds before anything is sent."""


Reply = ScriptedResponse | dict[str, Any] | web.StreamResponse
Handler = Callable[[RecordedRequest], Reply | Awaitable[Reply]]


class ScriptedServer:
    """Gives ``responses`` in order, or what a function of the request gives; the last response is repeated for ever.

    A response that is a plain dict is sent as JSON with status 200. Use as an async context manager; ``base_url`` ends in
    ``/v1``. ``requests`` holds every request as it came. ``port``: 0 for any free one.
    """

    def __init__(self, responses: Iterable[Reply] | Handler, *, port: int = 0) -> None:
        self._port = port
        self._handler: Handler = responses if callable(responses) else _in_order(list(responses))
        self.requests: list[RecordedRequest] = []
        self.base_url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = _parsed(await request.read())
        recorded = RecordedRequest(request.method, request.path, dict(request.headers), body, dict(request.query))
        self.requests.append(recorded)
        reply = self._handler(recorded)
        reply = await reply if inspect.isawaitable(reply) else reply
        if isinstance(reply, web.StreamResponse):
            return reply
        return await send(request, ScriptedResponse(reply) if isinstance(reply, dict) else reply)


async def send(request: web.Request, reply: ScriptedResponse) -> web.StreamResponse:
    """Send a scripted response, truncated if it announces more than it has."""
    await asyncio.sleep(reply.delay)
    data = reply.body if isinstance(reply.body, bytes) else dumps(reply.body)
    headers = {"Content-Type": "application/json", **reply.headers}
    if reply.announced is None:
        return web.Response(body=data, status=reply.status, headers=headers)
    response = web.StreamResponse(status=reply.status, headers=headers)
    response.content_length = reply.announced
    await response.prepare(request)
    await response.write(data)
    if request.transport is not None:
        request.transport.close()
    return response


def chat_response(content: Any = "ok", **message: Any) -> dict[str, Any]:
    """A chat completion with one choice, for scripts. Keywords are further fields of the message."""
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, **message},
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def _in_order(replies: list[Reply]) -> Handler:
    waiting = iter(replies)

    def reply(_request: RecordedRequest) -> Reply:
        return next(waiting, replies[-1])

    return reply


def _parsed(body: bytes) -> Json:
    try:
        return loads(body)
    except ValueError:
        return body
